"""Walks folders for GGUF files: each model once, within limits; downloads that did not end too."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAX_DEPTH = 8
"""Folders below a scanned one that are entered; a Hugging Face cache needs four."""
MAX_VISITED = 50_000
"""Directory entries looked at below one scanned folder."""

UNFINISHED = re.compile(
    r"(?P<name>.+\.gguf)(\.[0-9a-f]+)?\.(part|incomplete|crdownload|download|downloadInProgress|tmp|!qb)$",
    re.IGNORECASE,
)
"""What browsers, LM Studio, Hugging Face's and llama.cpp's downloads call what is not yet whole."""
NOT_FINISHED = "its download is not finished"
ARIA2 = ".aria2"
"""Behind the name of a file that lies beside one that aria2 has not finished."""
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GGUF file, or the files that one model is split into."""

    path: Path
    name: str
    nbytes: int
    problem: str | None = None


def find_candidates(folders: Sequence[Path]) -> list[Candidate]:
    """Give each GGUF file below the folders once, by folder and then by path."""
    seen_files: set[tuple[int, int]] = set()
    seen_folders: set[tuple[int, int]] = set()
    found: list[Candidate] = []
    for folder in folders:
        # Of two ways to one file the shorter one is shown.
        files = sorted(_gguf_files(folder, seen_folders), key=lambda path: (len(path.parts), path))
        candidates = (_candidate(path, seen_files) for path in files)
        found += sorted((c for c in candidates if c is not None), key=lambda c: c.path)
    return found


def _gguf_files(root: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Give GGUF files below a folder; links are followed, each folder is entered once."""
    waiting = [(root, 0)]
    n_visited = 0
    while waiting:
        folder, depth = waiting.pop()
        try:
            identity = _identity(folder)
            entries = list(os.scandir(folder))
        except OSError:
            continue  # gone, or not ours to read: it holds nothing that could be loaded
        if identity in seen or identity[0] in _of_the_kernel():
            continue
        seen.add(identity)
        for entry in entries:
            n_visited += 1
            path = Path(entry.path)
            if _is_model_name(entry.name):
                if entry.is_file():
                    yield path
            elif depth < MAX_DEPTH and not entry.name.startswith(".") and entry.is_dir():
                waiting.append((path, depth + 1))
        if n_visited > MAX_VISITED:
            return


@cache
def _of_the_kernel() -> frozenset[int]:
    """The file systems in which the kernel shows itself: they hold no models, and have no end."""
    places = (path for path in map(Path, ("/proc", "/sys", "/dev")) if path.is_dir())
    return frozenset(_identity(path)[0] for path in places) - {_identity(Path("/"))[0]}


def is_projector_name(name: str) -> bool:
    """Whether a file is called as the projectors of image models are."""
    return "mmproj" in name.lower()


def _is_model_name(name: str) -> bool:
    """Whether it is called a model, or the beginning of one."""
    if name.startswith("."):
        return False
    return name.lower().endswith(".gguf") or UNFINISHED.match(name) is not None


def _candidate(path: Path, seen: set[tuple[int, int]]) -> Candidate | None:
    """Describe the model at a path; None for later shards and for a file that was seen already."""
    try:
        identity = _identity(path)
        shard = SHARD.match(path.stem)
        if identity in seen or (shard is not None and int(shard["number"]) != 1):
            return None
        seen.add(identity)
        unfinished = UNFINISHED.match(path.name)
        if unfinished is not None:
            name = unfinished["name"].removesuffix(".gguf")
            return Candidate(path, name, path.stat().st_size, NOT_FINISHED)
        if path.with_name(f"{path.name}{ARIA2}").exists():
            return Candidate(path, path.stem, path.stat().st_size, NOT_FINISHED)
        if shard is None:
            return Candidate(path, path.stem, path.stat().st_size)
    except OSError as error:
        return Candidate(path, path.stem, 0, f"it cannot be read: {error.strerror}")
    return _split_candidate(path, shard["stem"], int(shard["total"]))


def _split_candidate(first: Path, stem: str, total: int) -> Candidate:
    parts = [first.with_name(f"{stem}-{n:05}-of-{total:05}.gguf") for n in range(1, total + 1)]
    there = [part for part in parts if part.is_file()]
    nbytes = sum(part.stat().st_size for part in there)
    n_missing = total - len(there)
    problem = f"{n_missing} of its {total} files are missing" if n_missing else None
    return Candidate(first, stem, nbytes, problem)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
