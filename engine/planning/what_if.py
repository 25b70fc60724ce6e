"""What one change would do to a plan: memory freed, context gained, fit or not."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from engine.configuration import Configuration, FlashAttention, KVTypeName
from engine.errors import PresetError
from engine.memory.estimate import Estimate, Estimator, with_n_ctx
from engine.memory.kv_cache import is_quantized, kv_type
from engine.planning.knob import Knob
from engine.planning.knobs import with_matched_types
from engine.planning.offload import bisect, free_bytes
from engine.planning.planner import Facts, Plan, Planner, Setup, n_ctx_limit
from engine.planning.verdict import FitVerdict, verdict_of

MAX_EFFECTS = 6
LEAST_UBATCH = 128
PACKED: tuple[KVTypeName, ...] = ("q8_0", "q4_0")
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
    verdict: FitVerdict


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
    delta = _delta(found.estimate, plan.estimate)
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
    for label, configuration in _changes(plan, planner, facts):
        if configuration == plan.setup.configuration:
            continue
        types = configuration.kv_types
        if types != plan.types and plan.known.standing(types).is_kept is False:
            continue  # measured on this model, and it loses too much
        setup = plan.setup.with_configuration(configuration)
        effect = effect_of(label, setup, plan, planner)
        yield effect if effect is not None and _matters(effect, plan) else None


def rank_effects(found: list[Effect], plan: Plan) -> tuple[Effect, ...]:
    """The best effects: first what makes the plan fit, then what saves, then what has room besides.

    Among equals the order of trying stays: what costs the least quality or speed comes first.
    """
    now = plan.verdict
    order = list(FitVerdict).index

    def rank(effect: Effect) -> tuple[int, bool]:
        return (order(effect.verdict) - order(now), effect.delta_bytes > 0)

    return tuple(sorted(found, key=rank)[:MAX_EFFECTS])


def what_ifs(plan: Plan, planner: Planner, facts: Facts) -> tuple[Effect, ...]:
    """The changes worth a thought at once, the best first."""
    return rank_effects([effect for effect in effects(plan, planner, facts) if effect], plan)


def recommendation(plan: Plan, planner: Planner) -> str:
    """Whether a plan fits, and what would make it fit or its context larger, in a sentence."""
    if not plan.fits:
        effects = what_ifs(plan, planner, planner.facts_of(plan.setup))
        labels = [effect.label for effect in effects if effect.verdict is FitVerdict.FITS]
        *others, last = labels or [""]
        ways = f"{', '.join(others)} or {last}" if others else last
        remedy = f"It fits with {ways}" if labels else "Choose a smaller quantisation or model"
        return f"It does not fit: {' and '.join(plan.shortages)}. {remedy}."
    limit, n_ctx = n_ctx_limit(plan.model, plan.setup), plan.setup.configuration.n_ctx
    largest = plan.max_n_ctx or n_ctx
    if n_ctx > limit:
        return f"It fits, but the model was trained on {limit:,} tokens: scale RoPE, or lower n_ctx"
    if largest >= limit:
        return f"It fits, even with the full training context of {limit:,} tokens."
    if largest > n_ctx:
        return f"It fits; the context can grow to {largest:,} tokens."
    return "It fits, but a larger context does not."


def _changes(plan: Plan, planner: Planner, facts: Facts) -> Iterator[tuple[str, Configuration]]:
    """The changes to try, those that cost the least quality or speed first."""
    now = plan.setup.configuration
    if plan.max_n_ctx is not None:
        n_ctx = min(plan.max_n_ctx, n_ctx_limit(plan.model, plan.setup))
        yield f"context {n_ctx:,}", with_n_ctx(now, n_ctx)
    yield from _other_types(now)
    if now.n_ubatch > LEAST_UBATCH:
        yield f"ubatch {now.n_ubatch // 2}", replace(now, n_ubatch=now.n_ubatch // 2)
    yield "sliding window", replace(now, swa_full=False)
    if now.n_slots > 1:
        yield "slots share cells", replace(now, kv_unified=True)
        yield "one slot", replace(now, n_slots=1)
    yield "no draft model", replace(now, draft=None)
    if not facts.gpus:
        return
    cost = planner.estimator(plan.setup)
    if facts.model.architecture.is_moe:
        moved = _most_on_gpus(plan, cost, "n_cpu_moe")
        yield experts_label(moved), moved
    placed = _most_on_gpus(plan, cost, "n_gpu_layers")
    yield layers_label(placed), placed
    yield "KV cache in RAM", replace(now, offload_kqv=False)


def _other_types(now: Configuration) -> Iterator[tuple[str, Configuration]]:
    bits = [kv_type(name).bits for name in (now.type_k, now.type_v)]
    is_off = now.flash_attention == "off"
    for name in PACKED:
        if max(bits) > kv_type(name).bits:
            flash: FlashAttention = "auto" if is_off else now.flash_attention
            packed = replace(now, type_k=name, type_v=name, flash_attention=flash)
            yield f"{name} K and V", packed
    if not is_off and bits[1] > kv_type("q8_0").bits:
        yield "q8_0 V", replace(now, type_v="q8_0")
    if is_quantized(now.type_k) or is_quantized(now.type_v):
        yield "f16 K and V", replace(now, type_k="f16", type_v="f16")
    if is_off:
        yield "flash attention on", replace(now, flash_attention="on")


def experts_label(configuration: Configuration) -> str:
    """How many layers keep their experts in RAM."""
    number = configuration.n_cpu_moe
    return "all experts on the CPU" if number < 0 else f"experts of {_layers(number)} on the CPU"


def layers_label(configuration: Configuration) -> str:
    """How many layers lie on the GPUs."""
    number = configuration.n_gpu_layers
    return "all layers on the GPU" if number < 0 else f"{_layers(number)} on the GPU"


def _layers(number: int) -> str:
    return f"{number:,} {'layer' if number == 1 else 'layers'}"


def _most_on_gpus(plan: Plan, cost: Estimator, name: LayersName) -> Configuration:
    """The configuration with as many layers, or experts of layers, on the GPUs as fit there."""
    n_layers = plan.model.architecture.n_layers
    n_all = n_layers if name == "n_cpu_moe" else n_layers + 1

    def without(n_moved: int) -> Configuration:
        number = n_moved if name == "n_cpu_moe" else n_all - n_moved
        return plan.setup.with_values(**{name: -1 if number == n_all else number}).configuration

    def fits(n_moved: int) -> bool:
        try:
            return free_bytes(cost(without(n_moved)), plan.setup.margin_bytes).gpus >= 0
        except PresetError:
            return False

    return without(bisect(0, n_all, fits))


def _delta(new: Estimate, old: Estimate) -> int:
    """The difference on the GPUs, or in all where none is used."""
    devices = (*new.devices, *old.devices)
    has_gpu = any(each.device.kind == "gpu" and each.total_bytes for each in devices)
    after, before = (
        sum(each.total_bytes for each in found.devices if not has_gpu or each.device.kind == "gpu")
        for found in (new, old)
    )
    return after - before


def _matters(effect: Effect, plan: Plan) -> bool:
    """Whether a change helps: frees memory, gains context, or is an upgrade that still fits."""
    if effect.delta_bytes < 0 or effect.delta_n_ctx > 0:
        return True
    return effect.verdict is FitVerdict.FITS and effect.delta_bytes > 0 and plan.fits
