"""Eviction order: lowest worth first, and the end of a sequence before its start."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from engine.cache.segments import Entry, Segment

HALF_LIFE_S = 3600.0
"""Time without use that halves a segment's worth."""
MIN_RECOMPUTE_S = 1e-6
"""Used for a time that was not measured."""


def worth(segment: Segment, now: float) -> float:
    """Log2 of the seconds saved per byte, weighted by uses and age.

    Only values of the same `now` are comparable. Uses x cost / bytes is the value of
    GreedyDual-Size-Frequency (Cherkasova 1998, HP Labs HPL-98-69R1). That algorithm ages by a
    clock of one process that rises with each eviction. Here wall-clock age halves the value every
    `HALF_LIFE_S`, so that restarts and other processes agree.
    """
    cost_s = max(segment.recompute_s, MIN_RECOMPUTE_S)
    value = (1 + segment.n_uses) * cost_s / max(segment.nbytes, 1)
    return math.log2(value) - max(now - segment.used_at, 0.0) / HALF_LIFE_S


def eviction_order(
    segments: Iterable[Segment],
    *,
    may_go: Callable[[Segment], bool],
    is_useless: Callable[[Segment], bool] = lambda _: False,
    now: float,
) -> Iterator[Segment]:
    """Segments in the order of eviction; those before a protected segment stay.

    Args:
        segments: All segments in RAM or of a folder.
        may_go: Whether a segment may be evicted.
        is_useless: Whether a segment has no worth; one without its parent has none either.
        now: Seconds since the epoch.
    """
    by_key = {segment.key: segment for segment in segments}
    n_children = Counter(segment.parent for segment in by_key.values())

    def rank(segment: Segment) -> tuple[float, str]:
        is_orphan = bool(segment.parent) and segment.parent not in by_key
        is_worthless = is_orphan or is_useless(segment)
        return -math.inf if is_worthless else worth(segment, now), segment.key

    ends = [rank(each) for each in by_key.values() if not n_children[each.key] and may_go(each)]
    heapq.heapify(ends)
    while ends:
        segment = by_key[heapq.heappop(ends)[1]]
        yield segment
        n_children[segment.parent] -= 1
        parent = by_key.get(segment.parent)
        if parent is not None and not n_children[parent.key] and may_go(parent):
            heapq.heappush(ends, rank(parent))


def ram_order(
    entries: Mapping[str, Entry],
    *,
    superseded: Collection[str],
    newest: Entry | None,
    can_wait: bool,
    now: float,
) -> Iterator[Entry]:
    """Copies in RAM in the order of eviction: those on disk, unwritten ones, those to be written.

    Locked copies are left out, and pinned segments whose only copy is in RAM.

    Args:
        entries: All segments by key.
        superseded: Keys of segments without worth.
        newest: The entry to evict last.
        can_wait: Whether the disk accepts writes.
        now: Seconds since the epoch.
    """
    free = [each for each in entries.values() if each.payload is not None and not each.n_locks]
    lossy = [each for each in free if not (each.is_on_disk or each.segment.is_pinned)]
    older = [each for each in lossy if each is not newest]

    def rank(entry: Entry) -> tuple[bool, float]:
        return entry.segment.key not in superseded, worth(entry.segment, now)

    def order(group: Iterable[Entry]) -> Iterator[Entry]:
        keys = {each.segment.key for each in group}
        segments = eviction_order(
            [each.segment for each in entries.values()],
            may_go=lambda segment: segment.key in keys,
            is_useless=lambda segment: segment.key in superseded,
            now=now,
        )
        return (entries[segment.key] for segment in segments)

    yield from sorted((each for each in free if each.is_on_disk), key=rank)
    yield from order(each for each in older if not (can_wait and each.is_waiting))
    yield from order(each for each in older if can_wait and each.is_waiting)
    yield from order(each for each in lossy if each is newest)
