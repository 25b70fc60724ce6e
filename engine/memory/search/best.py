"""The best choice of a space for a goal, without trying them all.

A goal orders choices knob by knob (`score.rank`); costs grow with the context, with the
micro-batch and with what lies on a GPU, so each knob is bisected where an order allows it. The
result is that of trying everything, which the tests do on small spaces.
"""

from collections.abc import Callable
from dataclasses import replace

from engine.memory.search.goals import Goal, Offload
from engine.memory.search.score import Rank, cost_of, last_as_fast, rank
from engine.memory.search.space import Knobs, Space, bisect

Choice = tuple[Knobs, int]
"""A choice and its context in steps of 256 tokens."""

Places = tuple[int, int]
"""The first and the last placement that may be taken."""


def best_choice(space: Space, goal: Goal, offload: Offload) -> Choice | None:
    """Give the best choice for a goal, None where nothing fits."""

    def value(choice: Choice) -> Rank:
        return rank(space, goal, *choice)

    match goal:
        case Goal.CONTEXT:
            choices = space.choices()
            return _farthest(space, choices, _places(space, choices, offload), value)
        case Goal.QUALITY:
            return _finest(space, offload, value)
        case Goal.SPEED:
            return _fastest(space, value)
        case Goal.BALANCED:
            return _balanced(space)


def _finest(space: Space, offload: Offload, value: Callable[[Choice], Rank]) -> Choice | None:
    """Give the best choice with the first pair of cache types that fits, and the first batch."""
    for pair in range(len(space.pairs)):
        of_pair = [knobs for knobs in space.choices() if knobs.pair == pair]
        places = _places(space, of_pair, offload)
        for n_ubatch in space.micro_batches:
            choices = [knobs for knobs in of_pair if knobs.n_ubatch == n_ubatch]
            found = _farthest(space, choices, places, value)
            if found is not None:
                return found
    return None


def _fastest(space: Space, value: Callable[[Choice], Rank]) -> Choice | None:
    """Give the best choice of the fastest placements, the context counting last."""
    places = _places(space, space.choices(), Offload.PARTIAL)
    if places is None:
        return None
    for knobs in sorted(space.choices(), key=lambda k: value((k, space.least)), reverse=True):
        index = space.first_fitting(knobs, space.least, places)
        if index is not None:
            placed = replace(knobs, placement=index)
            return placed, space.largest(placed) or space.least
    return None


def _places(space: Space, choices: list[Knobs], offload: Offload) -> Places | None:
    """Give the placements that may be taken: all, or those about as fast as the fastest that fits.

    Once one is known, another choice matters only where it fits a faster placement.
    """
    everywhere = (0, len(space.placements) - 1)
    if offload is Offload.ANY:
        return everywhere
    first: int | None = None
    for knobs in reversed(choices):  # the smallest come last
        if first is None:
            first = space.first_fitting(knobs, space.least, everywhere)
        elif first:
            faster = space.first_fitting(knobs, space.least, (0, first - 1))
            first = first if faster is None else faster
    if first is None:
        return None
    return first, last_as_fast(space, first)


def _farthest(
    space: Space,
    choices: list[Knobs],
    places: Places | None,
    value: Callable[[Choice], Rank],
) -> Choice | None:
    """Give the best of the choices at the largest context that any of them reaches in the places.

    At that context a finer cache may lie a little farther down than the places, as long as it is
    hardly slower than the fastest that reaches it.
    """
    if places is None:
        return None
    reached = space.least - 1
    for knobs in reversed(choices):
        reached = max(reached, _reach(space, knobs, places, reached + 1))
    if reached < space.least:
        return None
    fitting = {knobs: _place_for(space, knobs, reached, places) for knobs in choices}
    found = {knobs: index for knobs, index in fitting.items() if index is not None}
    last = last_as_fast(space, min(found.values()))
    return max(
        ((replace(k, placement=index), reached) for k, index in found.items() if index <= last),
        key=value,
    )


def _place_for(space: Space, knobs: Knobs, steps: int, places: Places) -> int | None:
    """Give the fastest placement at which a context fits: one of the places, else a slower one."""
    found = space.first_fitting(knobs, steps, places)
    end = len(space.placements) - 1
    if found is None and places[1] < end:
        found = space.first_fitting(knobs, steps, (places[1] + 1, end))
    return found


def _reach(space: Space, knobs: Knobs, places: Places, low: int) -> int:
    """Give the largest context of a choice at any placement, 0 where it is under `low`."""

    def is_too_much(steps: int) -> bool:
        return space.first_fitting(knobs, steps, places) is None

    if low > space.most or is_too_much(low):
        return 0
    beyond = bisect(low, space.most, is_too_much)
    return space.most if beyond is None else beyond - 1


def _balanced(space: Space) -> Choice | None:
    """Give the choice of the best score, by bounds: what cannot win is not looked at.

    Among placements from `first` to `last` none has more context than the GPUs allow at `last`, and
    none is faster than `first`.
    """
    best: Choice | None = None
    best_rank: Rank = (float("-inf"),)
    for choice in sorted(space.choices(), key=lambda knobs: cost_of(space, knobs)):
        ranges = [(0, len(space.placements) - 1)]
        while ranges:
            first, last = ranges.pop()
            knobs = replace(choice, placement=first)
            if _balance(space, (knobs, space.most)) < best_rank:
                continue
            steps = space.reach(replace(choice, placement=last))
            if steps is None or _balance(space, (knobs, steps)) < best_rank:
                continue
            if first < last:
                middle = (first + last) // 2
                ranges += [(middle + 1, last), (first, middle)]  # the faster half is next
                continue
            steps = space.largest(knobs)
            if steps is not None and _balance(space, (knobs, steps)) > best_rank:
                best, best_rank = (knobs, steps), _balance(space, (knobs, steps))
    return best


def _balance(space: Space, choice: Choice) -> Rank:
    return rank(space, Goal.BALANCED, *choice)
