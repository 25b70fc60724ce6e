"""One snapshot as one file: written whole or not at all, and never read wrongly."""

import os
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BufferedReader
from pathlib import Path

from engine.cache.cold.header import PRELUDE, Header, head_of, read_head, read_prelude
from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState
from engine.errors import StateError
from engine.files import replace_file


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A snapshot file whose head was read."""

    header: Header
    nbytes: int
    is_pinned: bool

    @property
    def state(self) -> StoredState:
        """What the payload stands for."""
        return replace(self.header.state, is_pinned=self.is_pinned)


def write_snapshot(
    path: Path, namespace: Namespace, state: StoredState, payload: bytes | memoryview
) -> int:
    """Write a state to its file and give the file's size in bytes.

    Raises:
        OSError: it cannot be written; what was there before still is.
        StateError: the state is larger than a file may say.
    """
    head = head_of(namespace, state, payload)
    # A power cut may cost the newest snapshots: they are computed again then.
    replace_file(path, [head, payload], is_durable=False)
    return len(head) + len(payload)


def read_facts(path: Path) -> FileFacts:
    """Read the head of a file, and of its payload nothing.

    Raises:
        OSError: it cannot be read.
        StateError: it is damaged.
    """
    with path.open("rb") as file:
        return _facts(file)


def read_snapshot(path: Path) -> tuple[FileFacts, bytes]:
    """Read a file, and give what it says of itself and the state as the backend gave it.

    Raises:
        OSError: it cannot be read.
        StateError: it is damaged.
    """
    with path.open("rb") as file:
        facts = _facts(file)
        prelude = facts.header.prelude
        payload = file.read(prelude.payload_bytes)
    if len(payload) != prelude.payload_bytes:
        raise StateError("it became shorter while it was read")
    if sha256(payload).digest() != prelude.payload_digest:
        raise StateError("its state is damaged: the checksum differs")
    return facts, payload


def _facts(file: BufferedReader) -> FileFacts:
    status = os.fstat(file.fileno())
    data = file.read(PRELUDE.size)
    prelude = read_prelude(data, status.st_size)
    rest = file.read(prelude.head_bytes - PRELUDE.size)
    header = read_head(prelude, data, rest)
    return FileFacts(header, status.st_size, is_pinned=not status.st_mode & 0o200)
