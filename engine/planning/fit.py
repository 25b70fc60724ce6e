"""The best configuration of a setup for a goal, what each choice gains, and what else fits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from engine.configuration import Configuration, PredictorName
from engine.memory.estimate import Estimate
from engine.memory.kv_cache import PAD
from engine.model.architecture import Model
from engine.planning.offload import level_text
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.search import Goal, Optimum, Point, SearchLimits, Space, Variant, search
from engine.planning.verdict import n_tokens
from engine.planning.workers import with_workers
from engine.policy.known import Known, Standing

GOAL_TEXTS = {
    Goal.CONTEXT: "the largest context, then the most precise cache",
    Goal.QUALITY: "the most precise cache, then large ubatches, then a large context",
    Goal.SPEED: (
        "the draft model if one is given, then the most precise cache, then the fastest offload"
    ),
    Goal.BALANCED: "a balance of context (32k tokens), cache precision and speed",
}
SettingName = Literal["split", "layers", "kv types", "ubatch", "draft", "context"]


@dataclass(frozen=True, slots=True)
class ChosenSetting:
    """One setting of a found configuration."""

    setting: SettingName
    chosen: str
    best: str
    """The best value with unlimited memory."""
    gained_tokens: int | None = None
    """Context gained over `best`; None if nothing fits with `best`."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another configuration that fits."""

    label: str
    """The difference and its context."""
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best configuration for a goal, and why it is the best."""

    goal: Goal
    configuration: Configuration
    estimate: Estimate
    settings: tuple[ChosenSetting, ...]
    alternatives: tuple[Alternative, ...]
    quality: Standing
    """Quality of the K/V types on this model, with its source."""


class FitResult(NamedTuple):
    """The best configuration for a goal and its plan."""

    found: SearchResult
    plan: Plan


def fit(
    setup: Setup, goal: Goal, planner: Planner, limits: SearchLimits | None = None
) -> FitResult:
    """The best configuration for a goal on the machine and RPC workers of a setup, with its plan.

    Raises `DoesNotFitError` if nothing within the limits fits.
    """
    if setup.machine.workers:
        setup = replace(setup, target="llama-server")
    found = search_setup(setup, goal, planner, limits)
    return FitResult(found, planner.plan(setup.with_configuration(found.configuration)))


def search_setup(
    setup: Setup, goal: Goal, planner: Planner, limits: SearchLimits | None = None
) -> SearchResult:
    """The best configuration for a goal on the machine of a setup; its other settings stay.

    Raises `DoesNotFitError`, or `PresetError` if llama.cpp refuses the other settings.
    """
    now, devices = setup.configuration, planner.devices_of(setup)
    model, known = planner.model(now.model_path), planner.known(now.model_path, setup.machine)
    result = search(
        model,
        devices,
        goal,
        target=setup.target,
        margin_bytes=setup.margin_bytes,
        cost=planner.estimator(setup),
        draft=None if now.draft is None else planner.model(now.draft.model_path),
        base=now,
        limits=limits,
        known=known,
    )
    found = explained(result, goal, model, known, now.tensor_split)
    if not any(device.kind == "gpu" for device in devices):
        return replace(found, configuration=found.configuration.on_cpu)
    if setup.machine.workers:
        return replace(found, configuration=with_workers(found.configuration, model, devices))
    return found


def explained(
    result: Optimum, goal: Goal, model: Model, known: Known, split: tuple[float, ...] = ()
) -> SearchResult:
    """Add the gain of each setting over the `split` of the start, and the alternatives."""
    now, settings = result.configuration, _chosen_settings(result, split, model)
    space, quality = result.space, known.standing(now.kv_types)
    others = tuple(
        Alternative(f"{label}: {space.tokens(other.steps):,} tokens", space.estimate(*other))
        for label, other in _others(space, model, result.best)
        if other != result.best
    )
    return SearchResult(goal, now, result.estimate, settings, others, quality)


def _chosen_settings(
    result: Optimum, split: tuple[float, ...], model: Model
) -> tuple[ChosenSetting, ...]:
    space, (choice, steps) = result
    rows: list[ChosenSetting] = []

    def add(name: SettingName, best: Variant, text: Callable[[Variant], str]) -> None:
        rows.append(ChosenSetting(name, text(choice), text(best), _gained(space, steps, best)))

    if space.base.tensor_split != split:
        layers = " : ".join(f"{share:g}" for share in space.base.tensor_split)
        unsplit = replace(space, base=replace(space.base, tensor_split=split))
        gained = _gained(unsplit, steps, choice)
        rows.append(ChosenSetting("split", layers, "by free memory", gained))
    if any(each.device.kind == "gpu" for each in result.estimate.devices):
        add("layers", choice._replace(level=0), lambda each: _level_text(space, each, model))
    add("kv types", choice._replace(pair=0), lambda each: str(space.pairs[each.pair]))
    add("ubatch", choice._replace(n_ubatch=space.ubatches[0]), lambda each: str(each.n_ubatch))
    if space.base.draft is not None and space.drafts != (False,):
        draft = space.base.draft.model_path.name
        with_it = choice._replace(with_draft=True)
        add("draft", with_it, lambda each: draft if each.with_draft else "none")
    n_ctx, most = space.tokens(steps), space.tokens(space.most)
    return (
        *rows,
        ChosenSetting("context", f"{n_ctx:,}", f"{most:,}", 0 if n_ctx == most else None),
    )


def _level_text(space: Space, choice: Variant, model: Model) -> str:
    level = space.levels[choice.level]
    return level_text(level.n_gpu_layers, level.n_cpu_moe, model)


def _gained(space: Space, steps: int, other: Variant) -> int | None:
    had = space.largest(other)
    return None if had is None else (steps - had) * PAD


def _others(space: Space, model: Model, best: Point) -> Iterator[tuple[str, Point]]:
    """Candidates with other cache bits, twice the context, and with or without the draft."""
    choice, steps = best
    for pair in range(len(space.pairs)):
        other, label = choice._replace(pair=pair), f"{space.pairs[pair]} cache"
        reached = space.largest(other)
        if reached is not None and (pair < choice.pair or reached > steps):
            yield label, Point(other, reached)
        if pair < choice.pair and (reached or 0) < steps:
            for slower, text in _at_context(space, model, other, steps):
                yield f"{label}, {text}", slower
    if len(space.drafts) > 1:
        other = choice._replace(with_draft=not choice.with_draft)
        reached = space.largest(other)
        if reached is not None:
            word = "with" if other.with_draft else "without"
            yield f"{word} the draft model", Point(other, reached)
    if steps < space.most:
        start, twice = choice._replace(level=0), min(2 * steps, space.most)
        for farther, text in _at_context(space, model, start, twice):
            yield text, farther


def _at_context(
    space: Space, model: Model, choice: Variant, steps: int
) -> Iterator[tuple[Point, str]]:
    """The fastest offload level, not above a choice's own, that fits a context, with its label."""
    level = space.first_fitting(choice, steps, (choice.level, space.all_levels[1]))
    if level is not None:
        placed = choice._replace(level=level)
        candidate = Point(placed, space.largest(placed) or steps)
        yield candidate, _level_text(space, placed, model)


def configuration_rows(now: Configuration, model: Model) -> list[tuple[str, str]]:
    """Rows of a name and a value that describe the configuration."""
    slots = now.n_slots
    each = f", {now.n_ctx // slots:,} for each of {slots} slots" if slots > 1 else ""
    split = " : ".join(f"{share:g}" for share in now.tensor_split)
    k, v = now.type_k, now.type_v
    return [
        ("context", f"{n_tokens(now.n_ctx)}{each}"),
        ("cache", k if k == v else f"keys {k}, values {v}"),
        ("layers", level_text(now.n_gpu_layers, now.n_cpu_moe, model)),
        *([("split", f"{split} across the GPUs")] if split else []),
        ("batch", f"{now.n_batch}, ubatches of {now.n_ubatch}"),
        ("drafts", _drafts(now)),
    ]


def _drafts(now: Configuration) -> str:
    if now.draft is not None:
        return f"by {now.draft.model_path.name}"
    is_off = now.speculation.predictor is PredictorName.OFF
    return "none" if is_off else "lookup in the chat so far"
