"""Which of two choices is better for a goal: the one order that search and tests share."""

from math import log2

from engine.configuration import KVTypeName
from engine.memory.kv_cache import PAD
from engine.memory.search.goals import Goal, Pair
from engine.memory.search.space import Knobs, Space

COARSENESS: dict[KVTypeName, float] = {
    "f32": 0.0, "f16": 0.0, "bf16": 0.0, "q8_0": 0.1, "q5_1": 0.5, "q5_0": 0.6, "q4_1": 0.9,
    "iq4_nl": 0.9, "q4_0": 1.0,
}  # fmt: skip
"""What a cache type costs the balanced goal, in halvings of the context: 8 bits are as good as
free, 4 bits must at least double the context."""

KEY_SHARE = 2 / 3
"""Weight of the keys in a pair: they suffer more from few bits than values do."""

DRAFT_GAIN = 0.5
"""What a draft model gains the balanced goal, in doublings: 1.4 times the speed."""

SMALL_BATCH_COST = 0.25
"""What halving the micro-batch costs the balanced goal: slower prompts, the same replies."""

SPEED_TOLERANCE = 0.5
"""Halvings of the speed that do not count: a layer more or less in main memory is no reason to give
up most of the context, or a finer cache."""

Rank = tuple[float, ...]


def rank(space: Space, goal: Goal, knobs: Knobs, steps: int) -> Rank:
    """Give what sorts choices of placements that are about as fast, the best last."""
    pair, draft, batch = -knobs.pair, float(knobs.with_draft), knobs.n_ubatch
    place = -knobs.placement
    match goal:
        case Goal.CONTEXT:
            return (steps, pair, batch, place, draft)
        case Goal.QUALITY:
            return (pair, batch, steps, place, draft)
        case Goal.SPEED:
            return (draft, pair, batch, place, steps)
        case Goal.BALANCED:
            return (log2(steps * PAD) - cost_of(space, knobs), steps, batch, pair, place)


def last_as_fast(space: Space, first: int) -> int:
    """Give the last placement that counts as being as fast as one.

    That is any within a factor of 1.4 of its speed; only itself where nothing has left the GPUs.
    """
    fastest = space.placements[first].slowness
    if not fastest:
        return first
    last = first
    while (
        last + 1 < len(space.placements)
        and space.placements[last + 1].slowness <= fastest + SPEED_TOLERANCE
    ):
        last += 1
    return last


def cost_of(space: Space, knobs: Knobs) -> float:
    """Give what a choice costs the balanced goal, in halvings of the context.

    A doubling of the context is worth as much as a doubling of the speed.
    """
    halvings = log2(space.micro_batches[0] / knobs.n_ubatch)
    return (
        space.placements[knobs.placement].slowness
        + coarseness(space.pairs[knobs.pair])
        + halvings * SMALL_BATCH_COST
        - (DRAFT_GAIN if knobs.with_draft else 0.0)
    )


def coarseness(pair: Pair) -> float:
    """Give what a pair of cache types costs, in halvings of the context."""
    return KEY_SHARE * COARSENESS[pair[0]] + (1 - KEY_SHARE) * COARSENESS[pair[1]]
