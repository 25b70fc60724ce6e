"""Finds the files that run beside a model: projectors and adapters."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from engine.errors import ModelFileError
from engine.model.gguf import GgufFile, read_gguf
from engine.model.library import ModelEntry

CompanionKind = Literal["projector", "adapter"]
MAX_DEPTH = 4
MAX_FILES = 2000


def find_companions(kind: CompanionKind, folders: Sequence[Path]) -> list[ModelEntry]:
    """Give the projectors or the adapters below some folders, as entries of a list.

    What cannot be read is no companion; the list of models names it.
    """
    found = {}
    for path in _files(folders):
        try:
            file = read_gguf(path)
        except ModelFileError:
            continue
        if companion_kind(file) == kind:
            found[path.resolve()] = ModelEntry(
                path, path.stem, file.architecture or None, None, None, file.nbytes, None
            )
    return list(found.values())


def companion_kind(file: GgufFile) -> CompanionKind | None:
    """Say what a file is beside a model; None for a model."""
    kind = file.text("general.type")
    if file.architecture == "clip" or kind == "mmproj":
        return "projector"
    return "adapter" if kind == "adapter" else None


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    n_found = 0
    for folder in dict.fromkeys(folders):
        for root, names, files in os.walk(folder):
            depth = len(Path(root).relative_to(folder).parts)
            names[:] = [] if depth >= MAX_DEPTH else [n for n in names if not n.startswith(".")]
            for name in sorted(files):
                if name.lower().endswith(".gguf"):
                    n_found += 1
                    if n_found > MAX_FILES:
                        return
                    yield Path(root) / name
