"""Index of cached segments: which of them form the longest prefix of a prompt?"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from engine.cache.segments import (
    TOKEN_BYTES,
    CachedSegment,
    Payload,
    Segment,
    count_continuations,
    is_worth_loading,
    n_tokens_shared,
    unpack,
)
from engine.errors import StateError

N_NEWEST = 4
"""Newest whole states cached per sequence: the ends of two prompts and two replies, so that the
last two turns can be regenerated."""


@dataclass(slots=True, eq=False)
class Match:
    """The longest prefix that can be restored; its segments are not evicted until `release`."""

    sequence: bytes = b""
    """All tokens that were looked up, packed."""
    entries: list[CachedSegment] = field(default_factory=list)
    """Consecutive segments; the last one may extend past the prefix."""
    n_tokens: int = 0
    """Length of the prefix; after `PrefixCache.read`, of what the returned states cover."""
    n_known: int = 0
    """Length of the longest prefix of any segment, whether it can be restored or not."""
    unlock: Callable[[Iterable[CachedSegment]], None] = lambda _: None
    n_cold: int = 0
    """Matching tokens whose state is read from disk."""

    @property
    def n_warm(self) -> int:
        """Matching tokens whose state is in RAM."""
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


class SegmentIndex:
    """Index of cached segments over token prefixes; moves no data and is not thread-safe.

    Args:
        can_slice: Whether segments may begin after token 0.
    """

    def __init__(self, *, can_slice: bool) -> None:
        self._can_slice = can_slice
        self.entries: dict[str, CachedSegment] = {}
        """By key, most recently used last."""
        self._children: defaultdict[str, list[CachedSegment]] = defaultdict(list)
        """By the parent's key."""
        self.ram_bytes = 0

    def add(self, entry: CachedSegment) -> None:
        """Add a segment whose parent is in the index."""
        self.entries[entry.segment.key] = entry
        self._children[entry.segment.parent].append(entry)

    def remove(self, entry: CachedSegment) -> list[CachedSegment]:
        """Remove a segment and its descendants, whose readers keep their payloads; return them."""
        removed = [entry]
        self._children[entry.segment.parent].remove(entry)
        for each in removed:
            if each.payload is not None:
                self.ram_bytes -= each.segment.nbytes
            del self.entries[each.segment.key]
            removed += self._children.pop(each.segment.key, ())
        return removed

    def touch(self, entry: CachedSegment, **about: object) -> None:
        """Change a segment's use, and make it the most recently used one."""
        entry.change(**about)
        self.entries[entry.segment.key] = self.entries.pop(entry.segment.key)

    def add_payload(self, entry: CachedSegment, payload: Payload) -> None:
        """Hold a copy in RAM."""
        entry.payload = payload
        self.ram_bytes += entry.segment.nbytes

    def drop_payload(self, entry: CachedSegment) -> None:
        """Drop the copy in RAM."""
        self.ram_bytes -= entry.segment.nbytes
        entry.payload = None

    def has_children(self, entry: CachedSegment) -> bool:
        """Whether other segments need this one."""
        return bool(self._children.get(entry.segment.key))

    def chain(self, entry: CachedSegment) -> list[CachedSegment]:
        """A segment and those before it, from the start of the sequence on."""
        found = [entry]
        while parent := found[-1].segment.parent:
            found.append(self.entries[parent])
        return found[::-1]

    def shared(
        self, sequence: bytes, max_end: float = math.inf
    ) -> Iterator[tuple[CachedSegment, int]]:
        """Find the segments that share tokens with a packed sequence.

        Yields all segments within the sequence, parents before children, and the segment that
        shares most of those that diverge from it; each with the end of the shared tokens. Segments
        that end after `max_end` are left out.
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

    def longest(self, sequence: bytes, max_end: float) -> tuple[list[CachedSegment], int, int]:
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
            if entry.segment.end == n_shared
            or (self._can_slice and is_worth_loading(entry.segment, n_shared))
        ]
        if not usable:
            return [], 0, n_known
        n_tokens, _, last = max(usable, key=lambda found: found[:2])
        return self.chain(last), n_tokens, n_known

    def ending_at(self, sequence: bytes, length: int) -> CachedSegment | None:
        """The segment that ends after `length` tokens of a packed sequence; None for 0 tokens.

        Raises:
            StateError: there is none.
        """
        if not length:
            return None
        for entry, n_shared in self.shared(sequence):
            if self._can_slice and n_shared == entry.segment.end == length:
                return entry
        raise StateError(f"the state begins at token {length}, but no cached state ends there")

    def load(self, segments: Iterable[Segment]) -> set[str]:
        """Add the segments of a disk; return the keys of those without their parent."""
        unusable = set()
        for segment in sorted(segments, key=lambda each: each.start):
            if segment.parent and not (self._can_slice and segment.parent in self.entries):
                unusable.add(segment.key)
            else:
                self.add(CachedSegment(segment, is_on_disk=True))
        recent = sorted(self.entries.values(), key=lambda entry: entry.segment.used_at)
        self.entries = {entry.segment.key: entry for entry in recent}
        return unusable

    def older_states(self, newest: Segment) -> list[CachedSegment]:
        """The whole states of a sequence that are dropped when it has a new one.

        All but the `N_NEWEST` longest, without those where sequences diverge.
        """
        if self._can_slice:
            return []
        within = [each for each, end in self.shared(newest.packed) if end == each.segment.end]
        older = sorted(within, key=lambda each: -each.segment.end)[N_NEWEST:]
        if not older:
            return []
        n_next = count_continuations(each.segment for each in self.entries.values())
        free = [each for each in older if not (each.n_locks or each.segment.is_pinned)]
        return [each for each in free if n_next[each.segment.key] < 2]

    def next_to_write(self) -> CachedSegment | None:
        """The first unwritten segment before the most recently used one."""
        for entry in reversed(self.entries.values()):
            if not entry.is_waiting:
                continue
            unwritten = [each for each in self.chain(entry) if not each.is_on_disk]
            if all(each.should_write for each in unwritten):
                return unwritten[0]
            entry.should_write = False  # a file without its parent's would be of no use
        return None

    def keys_in_use(self) -> set[str]:
        """Keys of segments that are locked, or that unwritten ones continue."""
        entries = self.entries.values()
        unwritten = [each for each in entries if each.is_waiting]
        before = {each for entry in unwritten for each in self.chain(entry)}
        return {each.segment.key for each in entries if each.n_locks or each in before}

    def pinned_bytes(self, entry: CachedSegment) -> int:
        """Size of the pinned segments and those before them, with one more pinned."""
        pinned = [each for each in self.entries.values() if each.segment.is_pinned]
        held = {each for one in (*pinned, entry) for each in self.chain(one)}
        return sum(each.segment.nbytes for each in held)
