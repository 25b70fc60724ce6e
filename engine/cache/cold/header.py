"""The head of a snapshot file: what it holds, said so that no damage goes unseen.

A file is prelude, description (JSON), tokens (little-endian 32-bit integers) and payload, with
nothing between or behind them. The prelude's last field is the SHA-256 of the rest of the head,
which holds the SHA-256 of the payload: no part can come from another file.
"""

import struct
from dataclasses import dataclass
from hashlib import sha256

from engine.cache.cold.description import describe, read_description
from engine.cache.namespace import Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState
from engine.errors import StateError

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
    """Give everything that stands before a payload in its file.

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
