"""Saved states as immutable segments, found again by the longest prefix that a prompt shares.

A segment is the state of tokens `start` to `end` of a sequence. Its parent is the segment that ends
at `start`. If states cannot be sliced (sliding window, recurrent), every segment begins at 0.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

Payload = bytes | memoryview
KEY_BYTES = 8
TOKEN_BYTES = 4
LOAD_BYTES_PER_S = 0.5e9
"""Measured when a new process restored 46 MB from disk in 109 ms (`benchmarks/restore.py`)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Metadata of the saved state of tokens `start` to `end` of a sequence."""

    key: str
    """Hash of namespace, parent, start and tokens: 16 hexadecimal characters."""
    namespace: str
    """Key of its `Namespace`: model, build and settings."""
    parent: str
    """Key of the segment that ends at `start`; empty if `start` is 0."""
    start: int
    end: int
    packed: bytes
    """Tokens `start` to `end` as little-endian 32-bit integers."""
    nbytes: int
    """Size of the backend's state."""
    recompute_s: float = 0.0
    """Measured time of computing tokens `start` to `end`."""
    owners: frozenset[str] = field(default_factory=frozenset)
    is_pinned: bool = False
    n_uses: int = 0
    used_at: float = 0.0
    """Seconds since the epoch."""


def segment_key(namespace: str, parent: str, start: int, packed: bytes) -> str:
    """Key of a segment; through the parent's key it depends on all tokens before it."""
    digest = blake2b(f"{namespace}:{parent}:{start}\n".encode(), digest_size=KEY_BYTES)
    digest.update(packed)
    return digest.hexdigest()


def new_segment(
    namespace: str,
    packed: bytes,
    *,
    parent: Segment | None = None,
    nbytes: int,
    recompute_s: float = 0.0,
    used_at: float = 0.0,
) -> Segment:
    """The segment of packed tokens that follow `parent`."""
    start, before = (0, "") if parent is None else (parent.end, parent.key)
    return Segment(
        key=segment_key(namespace, before, start, packed),
        namespace=namespace,
        parent=before,
        start=start,
        end=start + len(packed) // TOKEN_BYTES,
        packed=packed,
        nbytes=nbytes,
        recompute_s=recompute_s,
        used_at=used_at,
    )


def pack(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian 32-bit integers."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpack(packed: bytes) -> tuple[int, ...]:
    """The tokens of a packed sequence."""
    return struct.unpack(f"<{len(packed) // TOKEN_BYTES}i", packed)


def n_tokens_shared(packed: bytes, sequence: bytes, at: int) -> int:
    """Number of leading tokens that `packed` shares with `sequence[at:]`, by binary search."""
    low, high = 0, min(len(packed), len(sequence) - at) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        here, there = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if packed[here:there] == sequence[at + here : at + there]:
            low = middle
        else:
            high = middle - 1
    return low


def is_worth_loading(segment: Segment, n_shared: int) -> bool:
    """Whether computing a segment's tokens up to `n_shared` takes longer than loading it whole."""
    share = (n_shared - segment.start) / (segment.end - segment.start)
    load_s = segment.nbytes / LOAD_BYTES_PER_S
    return share * segment.recompute_s >= load_s or not segment.recompute_s


def count_continuations(segments: Iterable[Segment]) -> Counter[str]:
    """Number of next longer states of each whole state, by key: 2 where sequences diverge."""
    found: Counter[str] = Counter()
    prefixes: list[Segment] = []
    for each in sorted(segments, key=lambda segment: segment.packed):
        while prefixes and not each.packed.startswith(prefixes[-1].packed):
            prefixes.pop()
        if prefixes:
            found[prefixes[-1].key] += 1
        prefixes.append(each)
    return found


@dataclass(slots=True, eq=False)
class CachedSegment:
    """A segment in RAM, on disk or both."""

    segment: Segment
    payload: Payload | None = None
    """The copy in RAM."""
    is_on_disk: bool = False
    should_write: bool = True
    """Whether to write the segment to disk; false after it was evicted from disk."""
    n_locks: int = 0
    """Readers that it must not be evicted from."""

    def change(self, **about: object) -> None:
        """Set owners, pin or use of the segment."""
        self.segment = replace(self.segment, **about)  # type: ignore[arg-type]  # replace checks names

    @property
    def is_waiting(self) -> bool:
        """Whether its only copy is in RAM and should be written to disk."""
        return self.should_write and not self.is_on_disk
