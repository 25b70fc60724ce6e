"""Eviction order: lowest worth first, and the end of a sequence before its start."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from engine.cache.segments import Segment

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
        segments: All segments in RAM, or all of a folder.
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
