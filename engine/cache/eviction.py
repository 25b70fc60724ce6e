"""What leaves first: the state of least worth, and the end of a line before its start."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from engine.cache.radix import StoredState

HALF_LIFE_S = 3600.0
"""Time without use after which a state counts half."""
MIN_RECOMPUTE_S = 1e-6
"""Stands for a time that was not measured."""


def worth(state: StoredState, now: float) -> float:
    """The logarithm (base 2) of seconds spared per byte, weighted by uses and by age.

    Only comparing two of them at one moment means something. Uses x cost / bytes is the value of
    GreedyDual-Size-Frequency (Cherkasova 1998, HP Labs HPL-98-69R1). That algorithm ages by a
    clock that rises with each eviction and lives in one process; here age itself counts,
    halving the value every `HALF_LIFE_S`, so that restarts and other processes agree.
    """
    cost_s = max(state.recompute_s, MIN_RECOMPUTE_S)
    value = (1 + state.n_uses) * cost_s / max(state.nbytes, 1)
    return math.log2(value) - max(now - state.used_at, 0.0) / HALF_LIFE_S


Place = tuple[str, str]
"""A namespace and the digest of a line in it."""


def eviction_order(
    states: Iterable[StoredState],
    *,
    may_go: Callable[[StoredState], bool],
    is_useless: Callable[[StoredState], bool],
    now: float,
) -> Iterator[StoredState]:
    """States as they leave a full disk: of least worth first, the end of a line before its start.

    No end is of use without its start, so the start of what may not go never goes. A state whose
    line's start is missing is worth nothing.

    Args:
        states: All states of a folder.
        may_go: Whether a state may be evicted at all.
        is_useless: Whether a state is worth nothing otherwise.
        now: Seconds since the epoch.
    """
    ending_at: defaultdict[Place, list[StoredState]] = defaultdict(list)
    n_continuing: Counter[Place] = Counter()
    for state in states:
        ending_at[state.namespace, state.line].append(state)
        if state.start:
            n_continuing[_before(state)] += 1

    def rank(state: StoredState) -> tuple[float, str]:
        is_cut_off = state.start > 0 and _before(state) not in ending_at
        return -math.inf if is_cut_off or is_useless(state) else worth(state, now), state.key

    def ends(place: Place) -> list[tuple[tuple[float, str], StoredState]]:
        found = [] if n_continuing[place] else ending_at.get(place, [])
        return [(rank(state), state) for state in found if may_go(state)]

    free = [each for place in ending_at for each in ends(place)]
    heapq.heapify(free)
    while free:
        state = heapq.heappop(free)[1]
        yield state
        if state.start:
            n_continuing[_before(state)] -= 1
            for each in ends(_before(state)):
                heapq.heappush(free, each)


def _before(state: StoredState) -> Place:
    return state.namespace, state.parent
