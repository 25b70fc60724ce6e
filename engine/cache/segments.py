"""Saved states as immutable segments, found again by the longest prefix that a prompt shares.

A segment is the state of tokens `start` to `end` of a sequence. Its parent is the segment that ends
at `start`. If states cannot be sliced (sliding window, recurrent), every segment begins at 0.
"""

import math
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from engine.errors import StateError

Payload = bytes | memoryview
KEY_BYTES = 8
TOKEN_BYTES = 4


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
class Entry:
    """A segment in RAM, on disk or both."""

    segment: Segment
    payload: Payload | None = None
    """The copy in RAM."""
    is_on_disk: bool = False
    should_write: bool = True
    """Whether it should be written to disk; False after it was evicted from there."""
    n_locks: int = 0
    """Readers that it must not be evicted from."""

    def change(self, **about: object) -> None:
        """Set owners, pin or use of the segment."""
        self.segment = replace(self.segment, **about)  # type: ignore[arg-type]  # replace checks names

    @property
    def is_waiting(self) -> bool:
        """Whether its only copy is in RAM and should be written to disk."""
        return self.should_write and not self.is_on_disk


class SegmentIndex:
    """Index of cached segments over token prefixes; moves no data and is not thread-safe."""

    def __init__(self, *, can_slice: bool) -> None:
        self._can_slice = can_slice
        self.entries: dict[str, Entry] = {}
        """By key, most recently used last."""
        self._children: defaultdict[str, list[Entry]] = defaultdict(list)
        """By the parent's key."""
        self.ram_bytes = 0

    def add(self, entry: Entry) -> None:
        """Add a segment whose parent is in the index."""
        self.entries[entry.segment.key] = entry
        self._children[entry.segment.parent].append(entry)

    def remove(self, entry: Entry) -> list[Entry]:
        """Remove a segment and its descendants, whose readers keep their payloads; return them."""
        removed = [entry]
        self._children[entry.segment.parent].remove(entry)
        for each in removed:
            if each.payload is not None:
                self.ram_bytes -= each.segment.nbytes
            del self.entries[each.segment.key]
            removed += self._children.pop(each.segment.key, ())
        return removed

    def touch(self, entry: Entry, **about: object) -> None:
        """Change a segment's use, and make it the most recently used one."""
        entry.change(**about)
        self.entries[entry.segment.key] = self.entries.pop(entry.segment.key)

    def add_payload(self, entry: Entry, payload: Payload) -> None:
        """Hold a copy in RAM."""
        entry.payload = payload
        self.ram_bytes += entry.segment.nbytes

    def drop_payload(self, entry: Entry) -> None:
        """Drop the copy in RAM."""
        self.ram_bytes -= entry.segment.nbytes
        entry.payload = None

    def has_children(self, entry: Entry) -> bool:
        """Whether other segments need this one."""
        return bool(self._children.get(entry.segment.key))

    def chain(self, entry: Entry) -> list[Entry]:
        """A segment and those before it, from the start of the sequence on."""
        found = [entry]
        while parent := found[-1].segment.parent:
            found.append(self.entries[parent])
        return found[::-1]

    def shared(self, sequence: bytes, max_end: float = math.inf) -> Iterator[tuple[Entry, int]]:
        """Find the segments that share tokens with a packed sequence.

        Yields all segments within the sequence, parents before children, with their end; and of
        those that diverge from it one that shares most, with the end of the shared tokens.
        Segments that end after `max_end` are left out.
        """
        waiting, n_most = [("", 0)], 0
        while waiting:
            parent, start = waiting.pop()
            at = start * TOKEN_BYTES
            for entry in self._children.get(parent, ()):
                segment = entry.segment
                n_bytes = max(n_most - start + 1, 1) * TOKEN_BYTES
                if segment.end > max_end:
                    continue
                if sequence.startswith(segment.packed, at):
                    waiting.append((segment.key, segment.end))
                    yield entry, segment.end
                elif sequence.startswith(segment.packed[:n_bytes], at):
                    n_most = start + n_tokens_shared(segment.packed, sequence, at)
                    yield entry, n_most

    def longest(self, sequence: bytes, max_end: float) -> tuple[list[Entry], int, int]:
        """Find the longest prefix that can be restored.

        Returns:
            The chain of its segments, of which the last may extend past the prefix; its length;
            and the length of the longest prefix of any segment.
        """
        shared = list(self.shared(sequence, max_end if self._can_slice else math.inf))
        n_known = max((n_shared for _, n_shared in shared), default=0)
        usable = [
            (n_shared, -entry.segment.end, entry)
            for entry, n_shared in shared
            if self._can_slice or entry.segment.end == n_shared
        ]
        if not usable:
            return [], 0, n_known
        n_tokens, _, last = max(usable, key=lambda found: found[:2])
        return self.chain(last), n_tokens, n_known

    def ending_at(self, sequence: bytes, length: int) -> Entry | None:
        """The segment that ends after `length` tokens of a packed sequence; None for 0 tokens.

        Raises:
            StateError: there is none.
        """
        if not length:
            return None
        for entry, n_shared in self.shared(sequence):
            if self._can_slice and n_shared == entry.segment.end == length:
                return entry
        raise StateError(f"the state begins at token {length}, where no cached state ends")

    def load(self, segments: Iterable[Segment]) -> set[str]:
        """Add the segments of a disk; return the keys of those without their parent."""
        unusable = set()
        for segment in sorted(segments, key=lambda each: each.start):
            if segment.parent and not (self._can_slice and segment.parent in self.entries):
                unusable.add(segment.key)
            else:
                self.add(Entry(segment, is_on_disk=True))
        recent = sorted(self.entries.values(), key=lambda entry: entry.segment.used_at)
        self.entries = {entry.segment.key: entry for entry in recent}
        return unusable


@dataclass(slots=True, eq=False)
class Match:
    """The longest prefix that can be restored; its segments are not evicted until `release`."""

    sequence: bytes = b""
    """All tokens that were looked up, packed."""
    entries: list[Entry] = field(default_factory=list)
    """Consecutive segments; the last one may extend past the prefix."""
    n_tokens: int = 0
    """Length of the prefix; after `PrefixCache.read`, of what the returned states cover."""
    n_known: int = 0
    """Length of the longest prefix of any segment, whether it can be restored or not."""
    unlock: Callable[[Iterable[Entry]], None] = lambda _: None
    n_cold: int = 0
    """Of `n_tokens`, those whose state is read from disk."""

    @property
    def n_warm(self) -> int:
        """Of `n_tokens`, those whose state is in RAM."""
        return self.n_tokens - self.n_cold

    @property
    def n_whole(self) -> int:
        """Length of the prefix that ends with a segment: a new segment may begin there."""
        if not self.entries:
            return 0
        last = self.entries[-1].segment
        return last.end if last.end <= self.n_tokens else last.start

    @property
    def tail(self) -> tuple[int, ...]:
        """Tokens of the last segment that extend past the prefix."""
        if not self.entries:
            return ()
        last = self.entries[-1].segment
        return unpack(last.packed[(self.n_tokens - last.start) * TOKEN_BYTES :])

    @property
    def recompute_s(self) -> float | None:
        """Measured time of computing the `n_tokens`; None if a segment has no measurement."""
        segments = [entry.segment for entry in self.entries]
        if not segments or any(each.recompute_s <= 0.0 for each in segments):
            return None
        last = segments[-1]
        n_beyond = max(last.end - self.n_tokens, 0)
        share = n_beyond / (last.end - last.start)
        return sum(each.recompute_s for each in segments) - share * last.recompute_s

    def shorten(self, n_entries: int) -> None:
        """Release all but the first segments."""
        lost, self.entries = self.entries[n_entries:], self.entries[:n_entries]
        self.unlock(lost)
        end = self.entries[-1].segment.end if self.entries else 0
        self.n_tokens = min(self.n_tokens, end)

    def release(self) -> None:
        """Allow eviction of the segments; a second call does nothing."""
        entries, self.entries = self.entries, []
        self.unlock(entries)

    def __enter__(self) -> "Match":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
