"""The file of a kept state: a header that says what it is, its tokens, its bytes, a checksum.

A file is prelude, description (JSON), tokens (little-endian 32-bit integers) and payload, with
nothing between or after them. The prelude's last field is the SHA-256 of the rest of the head,
which holds the SHA-256 of the payload: no part can come from another file.
"""

import json
import math
import os
import struct
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BufferedReader
from pathlib import Path

from engine.cache.namespace import CacheTypes, Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState
from engine.errors import StateError
from engine.files import replace_file
from engine.parsing import parse_json

MAGIC = b"KVCHATST"
VERSION = 1
MAX_DESCRIPTION_BYTES = 1 << 20
MAX_TOKENS = 1 << 27
DIGEST_BYTES = 32
PRELUDE = struct.Struct(f"<8sIIIQ{DIGEST_BYTES}s{DIGEST_BYTES}s")
DIGEST_AT = PRELUDE.size - DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Prelude:
    """The sizes that a file claims; they add up to its own."""

    n_description_bytes: int
    n_tokens: int
    payload_bytes: int
    payload_digest: bytes
    digest: bytes

    @property
    def head_bytes(self) -> int:
        """Where the payload begins."""
        return PRELUDE.size + self.n_description_bytes + TOKEN_BYTES * self.n_tokens


@dataclass(frozen=True, slots=True)
class Header:
    """What a snapshot file says of itself."""

    namespace: Namespace
    state: StoredState
    prelude: Prelude


def head_of(namespace: Namespace, state: StoredState, payload: bytes | memoryview) -> bytes:
    """Everything that stands before a payload in its file.

    Args:
        namespace: What the state belongs to.
        state: What it stands for.
        payload: Its bytes.

    Raises:
        StateError: the description is larger than any that is read again.
    """
    description = describe(namespace, state)
    n_tokens = len(state.packed) // TOKEN_BYTES
    if len(description) > MAX_DESCRIPTION_BYTES or n_tokens > MAX_TOKENS:
        raise StateError(
            f"a state of {n_tokens:,} tokens with a description of {len(description):,} "
            "bytes is too large for a file: start a new chat"
        )
    sizes = PRELUDE.pack(
        MAGIC,
        VERSION,
        len(description),
        n_tokens,
        len(payload),
        sha256(payload).digest(),
        bytes(DIGEST_BYTES),
    )[:DIGEST_AT]
    digest = sha256(b"".join((sizes, description, state.packed))).digest()
    return b"".join((sizes, digest, description, state.packed))


def read_prelude(data: bytes, file_bytes: int) -> Prelude:
    """Read the first `PRELUDE.size` bytes of a file of `file_bytes` bytes.

    Raises:
        StateError: it is no snapshot of this version, or its sizes are not those of the file.
    """
    if len(data) < PRELUDE.size:
        raise StateError(f"it ends after {len(data)} bytes, within its head")
    (magic, version, n_description_bytes, n_tokens, payload_bytes, payload_digest,
     digest) = PRELUDE.unpack(data)  # fmt: skip
    if magic != MAGIC:
        raise StateError("it is no snapshot of kvchat")
    if version != VERSION:
        raise StateError(f"it is of version {version} and this kvchat reads {VERSION}")
    prelude = Prelude(n_description_bytes, n_tokens, payload_bytes, payload_digest, digest)
    if n_description_bytes > MAX_DESCRIPTION_BYTES or n_tokens > MAX_TOKENS:
        raise StateError("its sizes cannot be")
    if prelude.head_bytes + payload_bytes != file_bytes:
        raise StateError(
            f"it has {file_bytes:,} bytes and should have {prelude.head_bytes + payload_bytes:,}"
        )
    return prelude


def read_head(prelude: Prelude, data: bytes, rest: bytes) -> Header:
    """Read the rest of a head, of `prelude.head_bytes - PRELUDE.size` bytes.

    Args:
        prelude: What `read_prelude` made of `data`.
        data: The prelude's bytes.
        rest: What stands between it and the payload.

    Raises:
        StateError: it was changed since it was written.
    """
    if sha256(data[:DIGEST_AT] + rest).digest() != prelude.digest:
        raise StateError("its head is damaged: the checksum differs")
    at = prelude.n_description_bytes
    namespace, state = read_description(rest[:at], rest[at:], prelude.payload_bytes)
    return Header(namespace, state, prelude)


KINDS: dict[str, type] = {
    "namespace": str,
    "model": str,
    "fields": list,
    "key": str,
    "parent": str,
    "line": str,
    "start": int,
    "end": int,
    "recompute_s": float,
    "owners": list,
    "n_uses": int,
    "used_at": float,
}
ORIGIN = "origin"
"""Stands only where there is one: other versions of kvchat read files without it."""


def describe(namespace: Namespace, state: StoredState) -> bytes:
    """Write the description of a state: JSON, for `read_description`."""
    about: dict[str, object] = {
        "namespace": namespace.key,
        "model": namespace.model,
        "fields": [list(field) for field in namespace.fields],
        "key": state.key,
        "parent": state.parent,
        "line": state.line,
        "start": state.start,
        "end": state.end,
        "recompute_s": float(state.recompute_s),
        "owners": sorted(state.owners),
        "n_uses": state.n_uses,
        "used_at": float(state.used_at),
    }
    if state.origin:
        about[ORIGIN] = state.origin
    return json.dumps(about).encode()


def read_description(text: bytes, packed: bytes, nbytes: int) -> tuple[Namespace, StoredState]:
    """Read what `describe` wrote.

    Args:
        text: The description.
        packed: The tokens that stand behind it.
        nbytes: Size of the state as the backend gave it.

    Raises:
        StateError: it says something else, or nothing that can be.
    """
    try:
        about = parse_json(text)
    except ValueError as error:
        raise StateError(f"its description is no JSON ({error})") from error
    if not isinstance(about, dict):
        raise StateError("its description is not that of a state")
    origin = about.pop(ORIGIN, "")
    if set(about) != set(KINDS):
        raise StateError("its description is not that of a state")
    if origin != "" and (not isinstance(origin, str) or CacheTypes.read(origin) is None):
        raise StateError("it says of cache types what cannot be")
    wrong = [name for name, kind in KINDS.items() if type(about[name]) is not kind]
    if wrong:
        raise StateError(f"its description is wrong about {', '.join(wrong)}")
    state = StoredState(
        key=about["key"],
        parent=about["parent"],
        line=about["line"],
        start=about["start"],
        end=about["end"],
        packed=packed,
        nbytes=nbytes,
        recompute_s=about["recompute_s"],
        owners=frozenset(map(str, about["owners"])),
        n_uses=about["n_uses"],
        used_at=about["used_at"],
        origin=origin,
    )
    _check(state)
    return Namespace(about["namespace"], about["model"], _fields(about["fields"])), state


def _check(state: StoredState) -> None:
    n_tokens = len(state.packed) // TOKEN_BYTES
    if not 0 <= state.start < state.end or state.end - state.start != n_tokens:
        raise StateError(f"it claims tokens {state.start} to {state.end} and holds {n_tokens}")
    times = (state.recompute_s, state.used_at)
    if state.n_uses < 0 or not all(math.isfinite(time) and time >= 0 for time in times):
        raise StateError("its times and uses cannot be")


def _fields(pairs: list[object]) -> tuple[tuple[str, str], ...]:
    fields = []
    for pair in pairs:
        if not isinstance(pair, list) or [type(part) for part in pair] != [str, str]:
            raise StateError("its namespace is not spelled as one")
        fields.append((pair[0], pair[1]))
    return tuple(fields)


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
