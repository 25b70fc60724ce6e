"""Single changes of a plan: memory freed, context added, whether it then fits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.configuration import Configuration, KVTypeName
from engine.errors import PresetError
from engine.memory.estimate import Estimate, with_n_ctx
from engine.memory.kv_cache import is_quantized, kv_type
from engine.planning.offload import Offload, fastest_fitting, filling, level_text, offload_levels
from engine.planning.options import PlanOption, with_matched_types
from engine.planning.planner import Facts, Plan, Planner, Setup, n_ctx_limit
from engine.planning.verdict import FitVerdict, verdict_of

MAX_CHANGES = 6
MIN_UBATCH = 128
QUANTIZED: tuple[KVTypeName, ...] = ("q8_0", "q4_0")


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of one change on GPU memory, or on RAM if no GPU is used."""

    label: str
    setup: Setup
    delta_bytes: int
    """Negative if the change frees memory."""
    delta_n_ctx: int
    """Tokens by which the largest context that fits grows."""
    verdict: FitVerdict


class OptionSteps(NamedTuple):
    """Effects of a step down and a step up of an option; None at an end or if refused."""

    less: Change | None = None
    more: Change | None = None


def steps_of(option: PlanOption, plan: Plan, planner: Planner, facts: Facts) -> OptionSteps:
    """The effects of a step down and a step up."""
    if option.chooser is not None or option.disabled_reason(plan.setup, facts):
        return OptionSteps()

    def step(by: int) -> Change | None:
        setup = with_matched_types(option.step(plan.setup, facts, by), facts)
        return None if setup == plan.setup else _change(option.format(setup), setup, plan, planner)

    return OptionSteps(step(-1), step(1))


def changes(plan: Plan, planner: Planner, facts: Facts) -> Iterator[Change | None]:
    """Try one change at a time, so that a screen stays responsive; None if it does not help."""
    for label, configuration in _candidates(plan, planner, facts):
        types = configuration.kv_types
        has_failed = types != plan.types and plan.known.standing(types).passes is False
        if configuration == plan.setup.configuration or has_failed:
            continue
        found = _change(label, plan.setup.with_configuration(configuration), plan, planner)
        frees = found is not None and (found.delta_bytes < 0 or found.delta_n_ctx > 0)
        is_upgrade = plan.fits and found is not None and found.verdict is FitVerdict.FITS
        yield found if frees or (found and is_upgrade and found.delta_bytes > 0) else None


def best_changes(found: Iterable[Change | None]) -> tuple[Change, ...]:
    """The best changes: first those that fit, then those that free memory.

    Equal ones keep their order: what costs the least quality or speed comes first.
    """
    order = list(FitVerdict).index
    helpful = filter(None, found)
    ranked = sorted(helpful, key=lambda each: (order(each.verdict), each.delta_bytes > 0))
    return tuple(ranked[:MAX_CHANGES])


def recommendation(plan: Plan, planner: Planner) -> str:
    """Whether a plan fits, and what would make it fit or its context larger, in a sentence."""
    if not plan.fits:
        found = best_changes(changes(plan, planner, planner.facts_of(plan.setup)))
        labels = [each.label for each in found if each.verdict is FitVerdict.FITS]
        ways = " or ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))
        remedy = f"It would fit with {ways}" if labels else "Choose a smaller quantisation or model"
        return f"The plan does not fit: {' and '.join(plan.shortages)}. {remedy}."
    limit, n_ctx = n_ctx_limit(plan.model, plan.setup), plan.setup.configuration.n_ctx
    largest = plan.max_n_ctx or n_ctx
    if n_ctx > limit:
        return (
            f"The plan fits, but its context exceeds the training context of {limit:,} tokens: "
            "scale RoPE, or lower n_ctx"
        )
    if largest >= limit:
        return f"The plan fits, even with the full training context of {limit:,} tokens."
    if largest > n_ctx:
        return f"The plan fits; the context can grow to {largest:,} tokens."
    return "The plan fits, but a larger context does not."


def _change(label: str, setup: Setup, plan: Plan, planner: Planner) -> Change | None:
    """Compare another setup on the same machine; None if llama.cpp refuses it."""
    try:
        found = planner.plan(setup)
    except PresetError:
        return None
    delta = _delta(found.estimate, plan.estimate)
    gained = (found.max_n_ctx or 0) - (plan.max_n_ctx or 0)
    return Change(label, setup, delta, gained, verdict_of(found.estimate, setup.margin_bytes))


def _candidates(plan: Plan, planner: Planner, facts: Facts) -> Iterator[tuple[str, Configuration]]:
    """The changes to try, those that cost the least quality or speed first."""
    now = plan.setup.configuration
    if plan.max_n_ctx is not None:
        n_ctx = min(plan.max_n_ctx, n_ctx_limit(plan.model, plan.setup))
        yield f"context {n_ctx:,}", with_n_ctx(now, n_ctx)
    yield from _other_types(now)
    if now.n_ubatch > MIN_UBATCH:
        yield f"ubatch {now.n_ubatch // 2}", replace(now, n_ubatch=now.n_ubatch // 2)
    yield "sliding window", replace(now, swa_full=False)
    if now.n_slots > 1:
        yield "slots share one cache", replace(now, kv_unified=True)
        yield "one slot", replace(now, n_slots=1)
    yield "no draft model", replace(now, draft=None)
    if facts.gpus:
        placed = _offloaded(plan, planner)
        yield level_text(placed.n_gpu_layers, placed.n_cpu_moe, plan.model), placed
        yield "KV cache in RAM", replace(now, offload_kqv=False)


def _other_types(now: Configuration) -> Iterator[tuple[str, Configuration]]:
    bits = [kv_type(name).bits for name in (now.type_k, now.type_v)]
    is_off = now.flash_attention == "off"
    open_flash = replace(now, flash_attention="auto") if is_off else now
    for name in QUANTIZED:
        if max(bits) > kv_type(name).bits:
            yield f"{name} K and V", replace(open_flash, type_k=name, type_v=name)
    if not is_off and bits[1] > kv_type("q8_0").bits:
        yield "q8_0 V", replace(now, type_v="q8_0")
    if is_quantized(now.type_k) or is_quantized(now.type_v):
        yield "f16 K and V", replace(now, type_k="f16", type_v="f16")
    if is_off:
        yield "flash attention on", replace(now, flash_attention="on")


def _offloaded(plan: Plan, planner: Planner) -> Configuration:
    """The configuration at the fastest offload level that fits the machine, else the GPUs."""
    now, margin = plan.setup.configuration, plan.setup.margin_bytes
    cost = planner.estimator(plan.setup)
    levels = offload_levels(plan.model, planner.devices_of(plan.setup), Offload.PARTIAL)
    try:
        found = fastest_fitting(now, levels, cost, margin)
        return found or filling(now, levels, cost, margin)
    except PresetError:
        return now


def _delta(new: Estimate, old: Estimate) -> int:
    """The difference on the GPUs, or on all devices if no GPU is used."""
    after, before = (
        sum(each.total_bytes for each in found.devices if each.device.kind == "gpu")
        for found in (new, old)
    )
    return after - before if after or before else new.total_bytes - old.total_bytes
