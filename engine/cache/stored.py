"""One kept state: which tokens it stands for, and how it is named."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

KEY_BYTES = 8
LINE_BYTES = 16
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state of tokens `start` to `end` of a line; its bytes lie in a tier.

    Where states can be sliced, those of a line follow one another and each holds its own stretch.
    Where they cannot, each begins at 0.
    """

    key: str
    """Name: hexadecimal, 16 characters; equal for equal namespace, line and start."""
    parent: str
    """Digest of the line's first `start` tokens; empty where `start` is 0."""
    line: str
    """Digest of the line's first `end` tokens."""
    start: int
    end: int
    packed: bytes
    """The tokens of its own stretch, `end - start` of them, as little-endian 32-bit integers: a
    tenth of the memory of numbers, and read from a file as they are."""
    nbytes: int
    """Size of the state as the backend gave it."""
    recompute_s: float = 0.0
    """Measured time of computing the stretch."""
    owners: frozenset[str] = field(default_factory=frozenset)
    is_pinned: bool = False
    n_uses: int = 0
    used_at: float = 0.0
    """Seconds since the epoch."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of its own stretch."""
        return struct.unpack(f"<{len(self.packed) // TOKEN_BYTES}i", self.packed)


def line_digest(tokens: Sequence[int]) -> str:
    """Give the digest of a line of tokens: BLAKE2b of them as little-endian 32-bit integers."""
    return blake2b(struct.pack(f"<{len(tokens)}i", *tokens), digest_size=LINE_BYTES).hexdigest()


def state_key(namespace: str, start: int, line: str) -> str:
    """Give the name of a state of a line from `start` on, in a namespace."""
    spelled = f"{namespace}:{start}:{line}".encode()
    return blake2b(spelled, digest_size=KEY_BYTES).hexdigest()
