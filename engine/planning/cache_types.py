"""Choose K/V types that a preset leaves open, from measured quality and within a budget."""

from dataclasses import replace
from typing import Final

from engine.configuration import Configuration, KVTypes
from engine.errors import PresetError
from engine.memory.estimate import Estimate, Estimator, cache_bytes
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD, is_quantized, with_types
from engine.memory.terms import Target, TermKind
from engine.memory.units import GIB, format_bytes
from engine.model.architecture import Model
from engine.policy.choice import BudgetError, Candidate, TypeRequest, choose
from engine.policy.explain import explain
from engine.policy.known import Known
from engine.policy.pairs import FAST_PAIRS
from engine.presets.preset import Preset

AUTO: Final = "auto"


def with_kv_types(configuration: Configuration, types: KVTypes) -> Configuration:
    """The configuration with K/V types; a quantised V turns flash attention on."""
    typed = with_types(configuration, types)
    needs_flash = typed.flash_attention == "auto" and is_quantized(types.v)
    return replace(typed, flash_attention="on") if needs_flash else typed


def open_types(rules: Preset) -> TypeRequest | None:
    """The K/V types that a preset leaves to the search; None if it sets both.

    With `auto` for one type, or with a budget, a type that the preset does not set is chosen too.
    """
    is_auto = AUTO in (rules.type_k, rules.type_v)
    if not is_auto and rules.kv_budget_gib is None:
        return None
    set_keys = rules.model_fields_set
    type_k = rules.type_k if "type_k" in set_keys and rules.type_k != AUTO else None
    type_v = rules.type_v if "type_v" in set_keys and rules.type_v != AUTO else None
    if type_k is not None and type_v is not None:
        raise PresetError(
            f"both a cache budget and the fixed types {type_k} and {type_v} are set: remove "
            "the budget, or set one type to auto"
        )
    budget = rules.kv_budget_gib
    return TypeRequest(PAD, None if budget is None else round(budget * GIB), type_k, type_v)


def pairs_for(wanted: TypeRequest, known: Known) -> tuple[KVTypes, ...] | None:
    """The K/V types that a search may choose; None allows all of its own."""
    if wanted.type_k is None and wanted.type_v is None:
        return None
    if known.has_verdict:
        allowed = tuple(filter(wanted.allows, known.allowed_types()))
        if not allowed:
            given = f"{wanted.type_k} keys" if wanted.type_k else f"{wanted.type_v} values"
            raise PresetError(
                f"no measured K/V type with {given} passes the quality limits: set both types "
                "to auto"
            )
        return allowed
    fast = tuple(filter(wanted.allows, FAST_PAIRS))
    open_pairs = (KVTypes(wanted.type_k or each.k, wanted.type_v or each.v) for each in FAST_PAIRS)
    return fast or tuple(dict.fromkeys(open_pairs))


def kinds_for(
    wanted: TypeRequest,
    start: Configuration,
    model: Model,
    devices: tuple[Device, ...],
    target: Target,
    known: Known,
) -> tuple[Candidate, ...]:
    """Rank the K/V types that fit a configuration's context; `BudgetError` if none does."""

    def size(pair: KVTypes) -> int:
        return cache_bytes(model, with_kv_types(start, pair), devices, target)

    n_ctx = start.n_ctx if start.kv_unified else start.n_ctx // start.n_slots
    request = replace(wanted, n_ctx=n_ctx, counts_rates=known.has_rates)
    return choose(known.report, request, known.gates, size)


def with_budget(cost: Estimator, budget_bytes: int | None) -> Estimator:
    """An estimator that raises `BudgetError` for a cache beyond a budget."""
    if budget_bytes is None:
        return cost
    budget = budget_bytes

    def estimate(configuration: Configuration) -> Estimate:
        found = cost(configuration)
        kinds = (TermKind.KV, TermKind.STATE)
        nbytes = sum(device.term(kind).nbytes for device in found.devices for kind in kinds)
        if nbytes > budget:
            raise BudgetError(
                f"the cache takes {format_bytes(nbytes)} with {found.n_ctx:,} tokens, but its "
                f"budget is {format_bytes(budget)}: raise the budget, or lower the context"
            )
        return found

    return estimate


def types_text(configuration: Configuration, known: Known) -> str:
    """Why a configuration has its K/V types: measured or guessed, and the reason."""
    pair = configuration.kv_types
    return f"K/V types {known.standing(pair).basis}: {explain(known, pair)}"


def type_rules(kv: str | None, budget_bytes: int | None) -> dict[str, object]:
    """The values of `--kv` and `--kv-budget`, by the keys of a preset."""
    if kv is None and budget_bytes is None:
        return {}
    is_auto = kv is None or kv.strip().lower() == AUTO
    types = KVTypes(AUTO, AUTO) if is_auto else KVTypes.parse(kv or "")
    rules: dict[str, object] = {"type_k": types.k, "type_v": types.v}
    return rules if budget_bytes is None else {**rules, "kv_budget_gib": budget_bytes / GIB}
