"""What one change would do to a plan: memory freed, context gained, fit or not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from engine.configuration import Configuration, KVTypeName
from engine.errors import PresetError
from engine.memory.estimate import Estimate, Estimator, with_n_ctx
from engine.memory.kv_cache import is_quantized, kv_type
from engine.planning.knob import Knob
from engine.planning.knobs import with_matched_types
from engine.planning.placements import bisect, room_of
from engine.planning.planner import Facts, Plan, Planner, Setup, n_ctx_limit
from engine.planning.verdict import Verdict, verdict_of

MAX_EFFECTS = 6
LayersName = Literal["n_gpu_layers", "n_cpu_moe"]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does; sizes are those of the GPUs, or of main memory where none is used."""

    label: str
    setup: Setup
    delta_bytes: int
    """Bytes more, negative where memory is freed."""
    delta_n_ctx: int
    """Tokens by which the largest context that fits grows."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Arrows:
    """What a step back and a step on would do; None at an end, and where llama.cpp refuses it."""

    less: Effect | None
    more: Effect | None


def effect_of(label: str, setup: Setup, plan: Plan, planner: Planner) -> Effect | None:
    """What another setup of the same machine changes; None where llama.cpp refuses it."""
    try:
        found = planner.plan(setup)
    except PresetError:
        return None
    delta = _pool(found.estimate, plan.estimate)
    gained = (found.max_n_ctx or 0) - (plan.max_n_ctx or 0)
    verdict = verdict_of(found.estimate, setup.margin_bytes)
    return Effect(label, setup, delta, gained, verdict)


def arrows(knob: Knob, plan: Plan, planner: Planner, facts: Facts) -> Arrows:
    """What a step of one knob would do."""
    if knob.chooser is not None or knob.disabled_reason(plan.setup, facts):
        return Arrows(None, None)

    def step(by: int) -> Effect | None:
        turned = with_matched_types(knob.step(plan.setup, facts, by), facts)
        if turned == plan.setup:
            return None
        return effect_of(knob.format(turned), turned, plan, planner)

    return Arrows(step(-1), step(1))


def effects(plan: Plan, planner: Planner, facts: Facts) -> Iterator[Effect | None]:
    """What each change worth a thought would do, one at a time, for idle moments.

    None is a change that was tried and does nothing.
    """
    for label, change in _changes(plan, planner, facts):
        configuration = change(plan.setup.configuration)
        if configuration is None or configuration == plan.setup.configuration:
            continue
        types = configuration.kv_types
        if types != plan.types and plan.known.standing(types).is_kept is False:
            continue  # measured on this model, and it loses too much
        setup = plan.setup.with_configuration(configuration)
        effect = effect_of(label(configuration), setup, plan, planner)
        yield effect if effect is not None and _matters(effect, plan) else None


def ranked(found: list[Effect], plan: Plan) -> tuple[Effect, ...]:
    """The best effects: first what makes the plan fit, then what saves, then what has room besides.

    Among equals the order of trying stays: what costs the least quality or speed comes first.
    """
    now = plan.verdict
    order = list(Verdict).index

    def rank(effect: Effect) -> tuple[int, bool]:
        return (order(effect.verdict) - order(now), effect.delta_bytes > 0)

    return tuple(sorted(found, key=rank)[:MAX_EFFECTS])


def what_ifs(plan: Plan, planner: Planner, facts: Facts) -> tuple[Effect, ...]:
    """The changes worth a thought at once, the best first."""
    return ranked([effect for effect in effects(plan, planner, facts) if effect], plan)


def recommendation(plan: Plan, planner: Planner) -> str:
    """Whether a plan fits, and what would make it fit or its context larger, in a sentence."""
    if not plan.fits:
        effects = what_ifs(plan, planner, planner.facts_of(plan.setup))
        labels = [effect.label for effect in effects if effect.verdict is Verdict.FITS]
        *others, last = labels or [""]
        ways = f"{', '.join(others)} or {last}" if others else last
        remedy = f"It fits with {ways}" if labels else "Choose a smaller quantisation or model"
        return f"It does not fit: {' and '.join(plan.shortages)}. {remedy}."
    limit, n_ctx = n_ctx_limit(plan.model, plan.setup), plan.setup.configuration.n_ctx
    largest = plan.max_n_ctx or n_ctx
    if n_ctx > limit:
        return f"It fits, but the model was trained on {limit:,} tokens: scale RoPE, or lower n_ctx"
    if largest >= limit:
        return f"It fits, and so would all {limit:,} tokens that the model was trained on."
    if largest > n_ctx:
        return f"It fits; up to {largest:,} tokens of context would."
    return "It fits, and no more context would."


Change = Callable[[Configuration], Configuration | None]
Label = Callable[[Configuration], str]


def _changes(plan: Plan, planner: Planner, facts: Facts) -> Iterator[tuple[Label, Change]]:
    """The changes to try, those that cost the least quality or speed first."""
    yield lambda c: f"context {c.n_ctx:,}", lambda c: _largest_context(c, plan)
    yield lambda _: "q8_0 K and V", lambda c: _kv(c, "q8_0")
    yield lambda _: "q4_0 K and V", lambda c: _kv(c, "q4_0")
    yield lambda _: "q8_0 V", _v_only
    yield lambda _: "f16 K and V", _back_to_f16
    yield lambda _: "flash attention on", _flash
    yield lambda c: f"ubatch {c.n_ubatch}", _smaller_ubatch
    yield lambda _: "sliding window", lambda c: replace(c, swa_full=False)
    yield lambda _: "slots share cells", _unified
    yield lambda _: "one slot", lambda c: replace(c, n_slots=1)
    yield lambda _: "no draft model", _no_draft
    if not facts.gpus:
        return
    cost = planner.estimator(plan.setup)
    if facts.model.architecture.is_moe:
        yield _experts_label, lambda c: _most_on_gpus(c, plan, cost, "n_cpu_moe")
    yield _layers_label, lambda c: _most_on_gpus(c, plan, cost, "n_gpu_layers")
    yield lambda _: "KV cache in main memory", lambda c: replace(c, offload_kqv=False)


def _experts_label(configuration: Configuration) -> str:
    number = configuration.n_cpu_moe
    return "all experts on the CPU" if number < 0 else f"experts of {_layers(number)} on the CPU"


def _layers(number: int) -> str:
    return f"{number:,} {'layer' if number == 1 else 'layers'}"


def _layers_label(configuration: Configuration) -> str:
    number = configuration.n_gpu_layers
    return "all layers on the GPU" if number < 0 else f"{_layers(number)} on the GPU"


def _largest_context(configuration: Configuration, plan: Plan) -> Configuration | None:
    if plan.max_n_ctx is None:
        return None
    limit = min(plan.max_n_ctx, n_ctx_limit(plan.model, plan.setup))
    return with_n_ctx(configuration, limit)


def _kv(configuration: Configuration, name: KVTypeName) -> Configuration | None:
    types = (configuration.type_k, configuration.type_v)
    if max(kv_type(each).bits for each in types) <= kv_type(name).bits:
        return None
    is_off = configuration.flash_attention == "off"
    flash = "auto" if is_off else configuration.flash_attention
    return replace(configuration, type_k=name, type_v=name, flash_attention=flash)


def _v_only(configuration: Configuration) -> Configuration | None:
    is_small = kv_type(configuration.type_v).bits <= kv_type("q8_0").bits
    if configuration.flash_attention == "off" or is_small:
        return None
    return replace(configuration, type_v="q8_0")


def _back_to_f16(configuration: Configuration) -> Configuration | None:
    if not (is_quantized(configuration.type_k) or is_quantized(configuration.type_v)):
        return None
    return replace(configuration, type_k="f16", type_v="f16")


def _flash(configuration: Configuration) -> Configuration | None:
    if configuration.flash_attention != "off":
        return None
    return replace(configuration, flash_attention="on")


def _smaller_ubatch(configuration: Configuration) -> Configuration | None:
    if configuration.n_ubatch <= 128:
        return None
    return replace(configuration, n_ubatch=configuration.n_ubatch // 2)


def _unified(configuration: Configuration) -> Configuration | None:
    return replace(configuration, kv_unified=True) if configuration.n_slots > 1 else None


def _no_draft(configuration: Configuration) -> Configuration | None:
    return None if configuration.draft is None else replace(configuration, draft=None)


def _most_on_gpus(
    configuration: Configuration, plan: Plan, cost: Estimator, name: LayersName
) -> Configuration | None:
    """The configuration with as many layers, or experts of layers, on the GPUs as fit there."""
    n_layers = plan.model.architecture.n_layers
    n_all = n_layers if name == "n_cpu_moe" else n_layers + 1

    def without(n_moved: int) -> Configuration:
        number = n_moved if name == "n_cpu_moe" else n_all - n_moved
        setup = plan.setup.with_configuration(configuration)
        return setup.changed(**{name: -1 if number == n_all else number}).configuration

    def fits(n_moved: int) -> bool:
        try:
            return room_of(cost(without(n_moved)), plan.setup.margin_bytes).gpus >= 0
        except PresetError:
            return False

    return without(bisect(0, n_all, fits))


def _pool(new: Estimate, old: Estimate) -> int:
    """The difference on the GPUs, or in all where none is used."""
    has_gpu = any(
        device.device.kind == "gpu" and device.total_bytes
        for device in (*new.devices, *old.devices)
    )

    def total(found: Estimate) -> int:
        return sum(
            device.total_bytes
            for device in found.devices
            if not has_gpu or device.device.kind == "gpu"
        )

    return total(new) - total(old)


def _matters(effect: Effect, plan: Plan) -> bool:
    """Whether a change helps: frees memory, gains context, or is an upgrade that still fits."""
    if effect.delta_bytes < 0 or effect.delta_n_ctx > 0:
        return True
    return effect.verdict is Verdict.FITS and effect.delta_bytes > 0 and plan.fits
