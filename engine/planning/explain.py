"""What a search chose at each knob, what that buys, and what else fits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from engine.configuration import Configuration, PredictorName
from engine.memory.estimate import Estimate
from engine.memory.kv_cache import PAD
from engine.model.architecture import Model
from engine.planning.placements import OffloadLevel, placement_text
from engine.planning.space import Knobs, Point, Space
from engine.planning.verdict import n_tokens

KnobName = Literal["split", "layers", "kv types", "ubatch", "draft", "context"]


@dataclass(frozen=True, slots=True)
class ChosenKnob:
    """One knob of a found configuration."""

    knob: KnobName
    taken: str
    best: str
    """Its best setting where memory does not count."""
    gained_tokens: int | None = None
    """Context that `taken` buys against `best`; None where nothing fits with `best`."""


def chosen_knobs(space: Space, model: Model, best: Point) -> tuple[ChosenKnob, ...]:
    """What was taken at each knob, beside its best setting with the others as they were taken."""
    knobs, steps = best
    own = space.base.draft
    draft = "" if own is None else own.model_path.name
    rows: list[tuple[KnobName, str, str, Knobs]] = []

    def add(name: KnobName, finest: Knobs, text: Callable[[Knobs], str]) -> None:
        rows.append((name, text(knobs), text(finest), finest))

    if any(each.device.kind == "gpu" for each in space.estimate(*best).devices):
        add(
            "layers",
            replace(knobs, placement=0),
            lambda each: placement_text(space.placements[each.placement], model),
        )
    add("kv types", replace(knobs, pair=0), lambda each: str(space.pairs[each.pair]))
    largest = replace(knobs, n_ubatch=space.micro_batches[0])
    add("ubatch", largest, lambda each: str(each.n_ubatch))
    if own is not None and space.drafts != (False,):
        with_it = replace(knobs, with_draft=True)
        add("draft", with_it, lambda each: draft if each.with_draft else "none")
    n_ctx, most = space.tokens(steps), space.tokens(space.most)
    return (
        *(
            ChosenKnob(name, taken, finest, _gained(space, best, other))
            for name, taken, finest, other in rows
        ),
        ChosenKnob("context", f"{n_ctx:,}", f"{most:,}", 0 if n_ctx == most else None),
    )


def chosen_split(space: Space, shared: Space, best: Point) -> ChosenKnob:
    """What an even split of the layers among the GPUs buys against llama.cpp's own."""
    layers = " : ".join(f"{share:g}" for share in shared.base.tensor_split)
    return ChosenKnob("split", layers, "by free memory", _gained(space, best, best[0]))


def _gained(space: Space, best: Point, other: Knobs) -> int | None:
    had = space.largest(other)
    return None if had is None else (best[1] - had) * PAD


def configuration_rows(now: Configuration, model: Model) -> list[tuple[str, str]]:
    """A configuration as names and texts: context, cache, layers, batch and drafts."""
    slots = now.n_slots
    each = f", {now.n_ctx // slots:,} for each of {slots} slots" if slots > 1 else ""
    split = " : ".join(f"{share:g}" for share in now.tensor_split)
    k, v = now.type_k, now.type_v
    return [
        ("context", f"{n_tokens(now.n_ctx)}{each}"),
        ("cache", k if k == v else f"keys {k}, values {v}"),
        ("layers", placement_text(OffloadLevel(now.n_gpu_layers, now.n_cpu_moe), model)),
        *([("split", f"{split} across the GPUs")] if split else []),
        ("batch", f"{now.n_batch}, ubatches of {now.n_ubatch}"),
        ("drafts", _drafts(now)),
    ]


def _drafts(now: Configuration) -> str:
    if now.draft is not None:
        return f"by {now.draft.model_path.name}"
    is_off = now.speculation.predictor is PredictorName.OFF
    return "none" if is_off else "from the text so far"


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another configuration that fits."""

    label: str
    """What is other about it, with its context."""
    configuration: Configuration
    estimate: Estimate


def alternatives(space: Space, model: Model, best: Point) -> tuple[Alternative, ...]:
    """The choices with one other knob: cache type, draft, placement of the layers."""
    found = []
    for label, (knobs, steps) in _others(space, model, *best):
        if (knobs, steps) != best:
            cost = space.estimate(knobs, steps)
            text = f"{label}: {space.tokens(steps):,} tokens"
            found.append(Alternative(text, cost.configuration, cost))
    return tuple(found)


def _others(space: Space, model: Model, knobs: Knobs, steps: int) -> Iterator[tuple[str, Point]]:
    """Finer caches with less context or slower layers, coarser ones with more; twice the context.

    And the draft model that was left out, or none.
    """
    for pair in range(len(space.pairs)):
        other, label = replace(knobs, pair=pair), f"{space.pairs[pair]} cache"
        reached = space.largest(other)
        if reached is not None and (pair < knobs.pair or (pair > knobs.pair and reached > steps)):
            yield label, (other, reached)
        if pair < knobs.pair and (reached or 0) < steps:
            for slower, text in _at_context(space, model, other, steps):
                yield f"{label}, {text}", slower
    if len(space.drafts) > 1:
        other = replace(knobs, with_draft=not knobs.with_draft)
        reached = space.largest(other)
        if reached is not None:
            yield f"{'with' if other.with_draft else 'without'} the draft model", (other, reached)
    if steps < space.most:
        start = replace(knobs, placement=0)
        for farther, text in _at_context(space, model, start, min(2 * steps, space.most)):
            yield text, farther


def _at_context(
    space: Space, model: Model, knobs: Knobs, steps: int
) -> Iterator[tuple[Point, str]]:
    """The fastest placement from that of a choice on where a context fits, in words, if any."""
    index = space.first_fitting(knobs, steps, (knobs.placement, space.last))
    if index is not None:
        placed = replace(knobs, placement=index)
        point = placed, space.largest(placed) or steps
        yield point, placement_text(space.placements[index], model)
