"""What a search chose at each knob and what else fits, in words with numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from engine.configuration import Configuration, PredictorName
from engine.errors import PresetError
from engine.memory.estimate import Estimate
from engine.memory.kv_cache import PAD, is_whole
from engine.memory.units import format_bytes
from engine.model.architecture import Model
from engine.planning.goals import Goal
from engine.planning.placements import Placement, placement_text
from engine.planning.solve import Choice
from engine.planning.space import Knobs, Space

Knob = Literal["split", "placement", "kv types", "micro-batch", "draft", "context"]


@dataclass(frozen=True, slots=True)
class Step:
    """One knob of a found configuration."""

    knob: Knob
    text: str
    """A sentence for the user."""
    gained_tokens: int | None = None
    """Context that the knob bought against its best setting; negative where it cost some."""
    freed_bytes: int | None = None
    """Memory of the GPUs that the knob freed."""


def steps_to(space: Space, model: Model, goal: Goal, best: Choice) -> tuple[Step, ...]:
    """The reasons for a choice, from the best setting of each knob to the one that was taken."""
    knobs, _ = best
    start = Knobs(0, 0, space.micro_batches[0], with_draft=False)
    placed = replace(start, placement=knobs.placement)
    typed = replace(placed, pair=knobs.pair)
    batched = replace(typed, n_ubatch=knobs.n_ubatch)
    found = [
        _placement(space, model, goal, knobs),
        _types(space, placed, typed),
        _batch(space, typed, batched),
        _draft(space, batched, knobs),
        _context(space, model, goal, best),
    ]
    return tuple(step for step in found if step is not None)


def split_step(space: Space, shared: Space, best: Choice) -> Step:
    """What an even split of the layers among the GPUs buys against llama.cpp's own."""
    knobs, steps = best
    layers = " and ".join(f"{share:g}" for share in shared.base.tensor_split)
    had = space.largest(knobs)
    text = f"{layers} layers on the GPUs, not as their free memory is,"
    if had is None:
        return Step("split", f"{text} make room for {space.tokens(steps):,} tokens")
    gained = (steps - had) * PAD
    return Step("split", f"{text} buy {gained:,} tokens" if gained else f"{text} fill them", gained)


def configuration_rows(now: Configuration, model: Model) -> list[tuple[str, str]]:
    """A configuration as names and texts: context, cache, layers, batch and drafts."""
    slots = now.n_slots
    each = f", {now.n_ctx // slots:,} for each of {slots} slots" if slots > 1 else ""
    split = " : ".join(f"{share:g}" for share in now.tensor_split)
    k, v = now.type_k, now.type_v
    return [
        ("context", f"{n_tokens(now.n_ctx)}{each}"),
        ("cache", k if k == v else f"keys {k}, values {v}"),
        ("layers", placement_text(Placement(now.n_gpu_layers, now.n_cpu_moe), model)),
        *([("split", f"{split} among the GPUs")] if split else []),
        ("batch", f"{now.n_batch}, micro-batches of {now.n_ubatch}"),
        ("drafts", _drafts(now)),
    ]


def n_tokens(n: int) -> str:
    """A number of tokens with its noun."""
    return "1 token" if n == 1 else f"{n:,} tokens"


def _drafts(now: Configuration) -> str:
    if now.draft is not None:
        return f"by {now.draft.model_path.name}"
    is_off = now.speculation.predictor is PredictorName.OFF
    return "none" if is_off else "from the text so far"


def _placement(space: Space, model: Model, goal: Goal, knobs: Knobs) -> Step | None:
    if not _has_gpu(space, knobs):
        return Step("placement", "everything lies in main memory: there is no GPU to plan for")
    if knobs.placement == 0:
        return Step("placement", "all layers lie on the GPU: no token waits for main memory")
    text = placement_text(space.placements[knobs.placement], model)
    if len(space.placements) == 1:
        return Step("placement", f"{text}, as asked")
    freed = _gpu_bytes(space, replace(knobs, placement=0)) - _gpu_bytes(space, knobs)
    verb = "frees" if text.startswith("1 of") else "free"
    return Step(
        "placement",
        f"{text} {verb} {format_bytes(freed)} on the GPU{_why_moved(space, goal, knobs)}",
        freed_bytes=freed,
    )


def _why_moved(space: Space, goal: Goal, knobs: Knobs) -> str:
    """What the next faster placement would lack."""
    faster = replace(knobs, placement=knobs.placement - 1)
    steps = space.largest(faster)
    if steps is None:
        return f": with less there, {space.tokens(space.least):,} tokens do not fit"
    here = space.largest(knobs) or space.least
    if goal is Goal.SPEED or here == steps:
        return ""
    fewer, now = space.tokens(steps), space.tokens(here)
    return f": with one layer less there, {fewer:,} tokens instead of {now:,} would fit"


def _types(space: Space, before: Knobs, after: Knobs) -> Step | None:
    finest, taken = str(space.pairs[0]), str(space.pairs[after.pair])
    if before == after:
        rank = "finest that was" if is_whole(space.pairs[0]) else "quickest that is"
        return Step("kv types", f"the cache stays {finest}, the {rank} allowed")
    gained, text = _gain(space, before, after)
    return Step("kv types", f"{taken} instead of {finest} {text}", gained)


def _batch(space: Space, before: Knobs, after: Knobs) -> Step | None:
    if before == after:
        return None
    gained, text = _gain(space, before, after, ("buy", "make"))
    return Step(
        "micro-batch",
        f"micro-batches of {after.n_ubatch} instead of {before.n_ubatch} {text}; "
        "prompts are read slower",
        gained,
    )


def _draft(space: Space, before: Knobs, after: Knobs) -> Step | None:
    if space.base.draft is None or space.drafts == (False,):
        return None
    with_it, without = replace(after, with_draft=True), replace(after, with_draft=False)
    cost = _cost_of_draft(space, with_it, without)
    if before != after:
        return Step("draft", f"the draft model is used: {cost}", _gain(space, before, after)[0])
    return Step("draft", f"the draft model is left out: {cost}")


def _cost_of_draft(space: Space, with_it: Knobs, without: Knobs) -> str:
    try:
        nbytes = (
            space.estimate(with_it, space.least).total_bytes
            - space.estimate(without, space.least).total_bytes
        )
    except PresetError as refusal:
        return str(refusal)
    reached, kept = space.largest(with_it), space.largest(without)
    size = format_bytes(nbytes)
    if reached is None:
        return f"with its {size} not even {space.tokens(space.least):,} tokens fit"
    if kept is None or kept == reached:
        return f"it takes {size} and no context"
    return f"it takes {size}, or {(kept - reached) * PAD:,} tokens of context"


def _context(space: Space, model: Model, goal: Goal, best: Choice) -> Step:
    knobs, steps = best
    n_ctx, trained = space.tokens(steps), model.architecture.n_ctx_train * space.n_slots
    if steps < space.most:
        more = _missing(space, knobs, steps)
        return Step("context", f"{n_tokens(n_ctx)} fit{more}")
    if goal is Goal.BALANCED and space.tokens(space.most) < trained:
        return Step("context", f"{n_ctx:,} tokens are enough for this goal; the rest stays free")
    if n_ctx == trained:
        each = f", for each of {space.n_slots} slots" if space.n_slots > 1 else ""
        return Step("context", f"{n_ctx:,} tokens fit: all that the model was trained on{each}")
    return Step("context", f"{n_tokens(n_ctx)} fit, the most that was asked for")


def _missing(space: Space, knobs: Knobs, steps: int) -> str:
    """Which device is full, by what the next tokens would lack."""
    try:
        estimate = space.estimate(knobs, steps + 1)
    except PresetError as refusal:
        return f": for {PAD} more, {refusal}"
    short = {
        d.device.name: space.margin_bytes - d.left_bytes
        for d in estimate.devices
        if d.total_bytes and d.left_bytes < space.margin_bytes
    }
    where = " and ".join(f"{name} lacks {format_bytes(n)}" for name, n in short.items())
    return f": for {PAD} more, {where}"


def _gain(
    space: Space, before: Knobs, after: Knobs, verbs: tuple[str, str] = ("buys", "makes")
) -> tuple[int | None, str]:
    """The tokens that a change buys, as a number and in words."""
    had, has = space.largest(before), space.largest(after)
    if has is None:
        return None, f"{verbs[1]} some of the room that {space.tokens(space.least):,} tokens need"
    if had is None:
        return None, f"{verbs[1]} room for {space.tokens(has):,} tokens: without, nothing would fit"
    gained = (has - had) * PAD
    return gained, f"{verbs[0]} {gained:,} tokens ({space.tokens(had):,} to {space.tokens(has):,})"


def _has_gpu(space: Space, knobs: Knobs) -> bool:
    devices = space.estimate(knobs, space.least).devices
    return any(device.device.kind == "gpu" for device in devices)


def _gpu_bytes(space: Space, knobs: Knobs) -> int:
    devices = space.estimate(knobs, space.least).devices
    return sum(device.total_bytes for device in devices if device.device.kind == "gpu")


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another configuration that fits."""

    label: str
    """What is other about it, with its context."""
    configuration: Configuration
    estimate: Estimate


def alternatives(space: Space, model: Model, best: Choice) -> tuple[Alternative, ...]:
    """The choices with one other knob: cache type, draft, placement of the layers."""
    knobs, steps = best
    found = [*_other_pairs(space, model, knobs, steps), *_other_draft(space, knobs)]
    farther = _farther(space, model, knobs, steps)
    if farther is not None:
        found.append(farther)
    return tuple(_alternative(space, *choice) for choice in found if choice[1] != best)


def _other_pairs(
    space: Space, model: Model, knobs: Knobs, steps: int
) -> Iterator[tuple[str, Choice]]:
    """Finer caches with less context or slower layers, and coarser ones with more context."""
    for pair in range(len(space.pairs)):
        other, label = replace(knobs, pair=pair), f"{space.pairs[pair]} cache"
        reached = space.largest(other)
        if reached is not None and (pair < knobs.pair or (pair > knobs.pair and reached > steps)):
            yield label, (other, reached)
        if pair < knobs.pair and (reached or 0) < steps:
            slower = _at_context(space, other, steps)
            if slower is not None:
                where = placement_text(space.placements[slower[0].placement], model)
                yield f"{label}, {where}", slower


def _at_context(space: Space, knobs: Knobs, steps: int) -> Choice | None:
    """A choice at the fastest placement from its own on where a context fits."""
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
    """The fastest placement where twice the context fits, or all of it."""
    wanted = min(2 * steps, space.most)
    found = _at_context(space, replace(knobs, placement=0), wanted) if wanted > steps else None
    if found is None:
        return None
    return placement_text(space.placements[found[0].placement], model), found


def _alternative(space: Space, label: str, choice: Choice) -> Alternative:
    knobs, steps = choice
    estimate = space.estimate(knobs, steps)
    return Alternative(f"{label}: {space.tokens(steps):,} tokens", estimate.configuration, estimate)
