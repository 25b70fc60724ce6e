"""The file of a kept state: a header that says what it is, its tokens, its bytes, a checksum.

A file is prelude, description (JSON), tokens (little-endian 32-bit integers) and payload, with
nothing between or after them. The prelude's last field is the SHA-256 of the rest of the head,
which holds the SHA-256 of the payload: no part can come from another file.
"""

import json
import os
import struct
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from engine.cache.namespace import CacheTypes, Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState
from engine.configuration import STRICT, Bounds
from engine.errors import StateError
from engine.files import replace_file

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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


OF_STATE = (
    "key", "parent", "line", "start", "end", "recompute_s", "n_uses", "used_at", "origin",
)  # fmt: skip
"""What a description says of a state in the state's own words."""

Index = Annotated[int, Bounds(ge=0, lt=2**63)]
NotNegative = Annotated[float, Bounds(ge=0)]
TO_THE_LETTER = {**STRICT, "strict": True}
"""No type is read as another."""


@dataclass(frozen=True, slots=True)
class _Description:
    """The JSON in a head."""

    __pydantic_config__ = TO_THE_LETTER

    namespace: str
    model: str
    fields: tuple[tuple[str, str], ...]
    key: str
    parent: str
    line: str
    start: Index
    end: Index
    recompute_s: NotNegative
    owners: tuple[str, ...]
    n_uses: Index
    used_at: NotNegative
    origin: str = ""
    """Stands only where there is one: other versions of kvchat read files without it."""


@cache
def _descriptions() -> "TypeAdapter[_Description]":
    from pydantic import TypeAdapter  # files that the index knows are listed without it

    return TypeAdapter(_Description)


def describe(namespace: Namespace, state: StoredState) -> bytes:
    """The description of a state: JSON, for `read_description`."""
    about = {
        "namespace": namespace.key,
        "model": namespace.model,
        "fields": namespace.fields,
        "owners": sorted(state.owners),
        **{name: getattr(state, name) for name in OF_STATE if name != "origin" or state.origin},
    }
    return json.dumps(about).encode()


def read_description(text: bytes, packed: bytes, nbytes: int) -> tuple[Namespace, StoredState]:
    """What `describe` wrote.

    Args:
        text: The description.
        packed: The tokens that stand behind it.
        nbytes: Size of the state as the backend gave it.

    Raises:
        StateError: it says something else, or nothing that can be.
    """
    from pydantic import ValidationError

    try:
        about = _descriptions().validate_json(text)
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, each["loc"])) or each["msg"] for each in error.errors())
        raise StateError(f"its description is wrong about {wrong}") from error
    if about.origin and CacheTypes.read(about.origin) is None:
        raise StateError("it says of cache types what cannot be")
    n_tokens = len(packed) // TOKEN_BYTES
    if about.start >= about.end or about.end - about.start != n_tokens:
        raise StateError(f"it claims tokens {about.start} to {about.end} and holds {n_tokens}")
    state = StoredState(
        packed=packed,
        nbytes=nbytes,
        owners=frozenset(about.owners),
        **{name: getattr(about, name) for name in OF_STATE},
    )
    return Namespace(about.namespace, about.model, about.fields), state


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
