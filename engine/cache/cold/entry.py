"""One state on disk, as the index knows it."""

from dataclasses import dataclass

from engine.cache.radix import StoredState


@dataclass(frozen=True, slots=True)
class ColdEntry:
    """A snapshot file: where it belongs, what it stands for, what it takes."""

    namespace: str
    """Key of its namespace."""
    state: StoredState
    file_bytes: int
