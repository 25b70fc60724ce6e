"""What else fits beside a found configuration, each better in something."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine.configuration import Configuration
from engine.memory.estimate import Estimate
from engine.memory.search.best import Choice
from engine.memory.search.goals import pair_label
from engine.memory.search.space import Knobs, Space
from engine.memory.search.steps import describe_placement
from engine.model.architecture import Model


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another configuration that fits."""

    label: str
    """What is other about it, with its context."""
    configuration: Configuration
    estimate: Estimate


def alternatives(space: Space, model: Model, best: Choice) -> tuple[Alternative, ...]:
    """Give what one other knob would make of a choice: cache type, draft, place of the layers."""
    knobs, steps = best
    found = [*_other_pairs(space, model, knobs, steps), *_other_draft(space, knobs)]
    farther = _farther(space, model, knobs, steps)
    if farther is not None:
        found.append(farther)
    return tuple(_alternative(space, *choice) for choice in found if choice[1] != best)


def _other_pairs(
    space: Space, model: Model, knobs: Knobs, steps: int
) -> Iterator[tuple[str, Choice]]:
    """Give finer caches with less context or slower layers, and coarser ones with more context."""
    for pair in range(len(space.pairs)):
        other, label = replace(knobs, pair=pair), f"{pair_label(space.pairs[pair])} cache"
        reached = space.largest(other)
        if reached is not None and (pair < knobs.pair or (pair > knobs.pair and reached > steps)):
            yield label, (other, reached)
        if pair < knobs.pair and (reached or 0) < steps:
            slower = _at_context(space, other, steps)
            if slower is not None:
                where = describe_placement(space, model, slower[0].placement)
                yield f"{label}, {where}", slower


def _at_context(space: Space, knobs: Knobs, steps: int) -> Choice | None:
    """Give a choice at the fastest placement from its own on where a context fits."""
    index = space.first_fitting(knobs, steps, (knobs.placement, len(space.placements) - 1))
    if index is None:
        return None
    placed = replace(knobs, placement=index)
    return placed, space.largest(placed) or steps


def _other_draft(space: Space, knobs: Knobs) -> list[tuple[str, Choice]]:
    if len(space.drafts) == 1:
        return []
    other = replace(knobs, with_draft=not knobs.with_draft)
    steps = space.largest(other)
    label = "with the draft model" if other.with_draft else "without the draft model"
    return [] if steps is None else [(label, (other, steps))]


def _farther(space: Space, model: Model, knobs: Knobs, steps: int) -> tuple[str, Choice] | None:
    """Give the fastest placement where twice the context fits, or all of it."""
    wanted = min(2 * steps, space.most)
    found = _at_context(space, replace(knobs, placement=0), wanted) if wanted > steps else None
    if found is None:
        return None
    return describe_placement(space, model, found[0].placement), found


def _alternative(space: Space, label: str, choice: Choice) -> Alternative:
    knobs, steps = choice
    estimate = space.estimate(knobs, steps)
    return Alternative(f"{label}: {space.tokens(steps):,} tokens", estimate.configuration, estimate)
