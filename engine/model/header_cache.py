"""What the headers of GGUF files said, remembered by path, size and time of change."""

import contextlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.gguf import read_gguf

PROJECTORS = ("clip", "mmproj")
"""Architectures of files that turn images into embeddings for a model."""

FORMAT = 1
"""Rises when `HeaderFacts` changes; a file of another format is not used."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The part of a header that a list of models shows."""

    architecture: str | None = None
    file_type: str | None = None
    n_ctx_train: int | None = None
    is_projector: bool = False
    """It is the image part of a model, not a model."""
    problem: str | None = None


class HeaderCache:
    """Gives facts from memory where a file is as it was, and reads its header otherwise."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = _load(path)
        self._used: dict[str, object] = {}

    def facts(self, model: Path) -> HeaderFacts:
        """Give what the header of a model says, or why it says nothing."""
        try:
            status = model.stat()
        except OSError as error:
            return HeaderFacts(problem=f"it cannot be read: {error.strerror}")
        stamp = [status.st_size, status.st_mtime_ns]
        facts = _remembered(self._known.get(str(model)), stamp) or read_facts(model)
        self._used[str(model)] = {"stamp": stamp, "facts": asdict(facts)}
        return facts

    def save(self) -> None:
        """Remember what was asked for since this cache was made."""
        if self._path is None or self._used == self._known:
            return
        text = json.dumps({"format": FORMAT, "models": self._used})
        # The next scan reads the headers again then; nothing that the user asked for is lost.
        with contextlib.suppress(OSError):
            _replace(self._path, text)


def read_facts(model: Path) -> HeaderFacts:
    """Read the header of a model."""
    try:
        header = read_gguf(model)
    except ModelFileError as error:
        return HeaderFacts(problem=str(error))
    architecture = header.architecture
    if not architecture:
        return HeaderFacts(problem="its header names no architecture, so it is no language model")
    if not header.tensors:
        return HeaderFacts(architecture, problem="it holds no weights")
    return HeaderFacts(
        architecture=architecture,
        file_type=header.file_type,
        n_ctx_train=header.integer(f"{architecture}.context_length"),
        is_projector=architecture in PROJECTORS,
    )


def _remembered(entry: object, stamp: list[int]) -> HeaderFacts | None:
    """Give the facts of an entry of the file, None if it is of another time or not ours."""
    if not isinstance(entry, dict) or entry.get("stamp") != stamp:
        return None
    facts = entry.get("facts")
    if not isinstance(facts, dict) or set(facts) != {field.name for field in fields(HeaderFacts)}:
        return None
    return HeaderFacts(**facts)


def _load(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return {}
    models = content.get("models")
    return models if isinstance(models, dict) else {}


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)
