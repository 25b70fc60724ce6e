"""What else fits beside a found configuration, each better in something."""

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
    found = [*_other_pairs(space, knobs, steps), *_other_draft(space, knobs)]
    farther = _farther(space, model, knobs, steps)
    if farther is not None:
        found.append(farther)
    return tuple(_alternative(space, *choice) for choice in found if choice[1] != best)


def _other_pairs(space: Space, knobs: Knobs, steps: int) -> list[tuple[str, Choice]]:
    """Give finer caches with less context, and coarser ones with more."""
    others = (replace(knobs, pair=pair) for pair in range(len(space.pairs)) if pair != knobs.pair)
    found = []
    for other in others:
        reached = space.largest(other)
        if reached is not None and (other.pair < knobs.pair or reached > steps):
            found.append((f"{pair_label(space.pairs[other.pair])} cache", (other, reached)))
    return found


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
    places = (0, len(space.placements) - 1)
    index = space.first_fitting(knobs, wanted, places) if wanted > steps else None
    if index is None:
        return None
    other = replace(knobs, placement=index)
    return describe_placement(space, model, index), (other, space.largest(other) or wanted)


def _alternative(space: Space, label: str, choice: Choice) -> Alternative:
    knobs, steps = choice
    estimate = space.estimate(knobs, steps)
    return Alternative(f"{label}: {space.tokens(steps):,} tokens", estimate.configuration, estimate)
