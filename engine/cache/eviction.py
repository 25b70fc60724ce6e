"""Eviction order: lowest worth first, and the end of a sequence before its start."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from engine.cache.radix import StoredState

HALF_LIFE_S = 3600.0
"""Time without use that halves a state's worth."""
MIN_RECOMPUTE_S = 1e-6
"""Used for a time that was not measured."""


def worth(state: StoredState, now: float) -> float:
    """Log2 of the seconds saved per byte, weighted by uses and age.

    Only values of the same `now` are comparable. Uses x cost / bytes is the value of
    GreedyDual-Size-Frequency (Cherkasova 1998, HP Labs HPL-98-69R1). That algorithm ages by a
    clock of one process that rises with each eviction. Here wall-clock age halves the value every
    `HALF_LIFE_S`, so that restarts and other processes agree.
    """
    cost_s = max(state.recompute_s, MIN_RECOMPUTE_S)
    value = (1 + state.n_uses) * cost_s / max(state.nbytes, 1)
    return math.log2(value) - max(now - state.used_at, 0.0) / HALF_LIFE_S


Position = tuple[str, str]
"""A namespace and the digest of a token sequence in it."""


def eviction_order(
    states: Iterable[StoredState],
    *,
    may_go: Callable[[StoredState], bool],
    is_useless: Callable[[StoredState], bool],
    now: float,
) -> Iterator[StoredState]:
    """States in the order of eviction: lowest worth first, the end of a sequence before its start.

    A state is useless without the states before it, so those before a protected state stay. A
    state whose predecessor is missing has no worth.

    Args:
        states: All states of a folder.
        may_go: Whether a state may be evicted.
        is_useless: Whether a state has no worth for another reason.
        now: Seconds since the epoch.
    """
    ending_at: defaultdict[Position, list[StoredState]] = defaultdict(list)
    n_continuing: Counter[Position] = Counter()
    for state in states:
        ending_at[state.namespace, state.line].append(state)
        if state.start:
            n_continuing[_before(state)] += 1

    def rank(state: StoredState) -> tuple[float, str]:
        is_cut_off = state.start > 0 and _before(state) not in ending_at
        return -math.inf if is_cut_off or is_useless(state) else worth(state, now), state.key

    def ends(place: Position) -> list[tuple[tuple[float, str], StoredState]]:
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


def _before(state: StoredState) -> Position:
    return state.namespace, state.parent
