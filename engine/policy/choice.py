"""The choice of K/V types: candidates, then the budget, then the quality gates, then the speed.

Two rules keep the choice stable. A pair with fewer bits than a pair that fails has failed too,
whatever its figures are. And the order of two pairs does not depend on a third. So a stricter gate
keeps the choice or moves it to a pair that has no fewer bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import log
from typing import Final

from engine.configuration import KVTypeName, KVTypes
from engine.errors import PresetError
from engine.memory.kv_cache import bits_of
from engine.memory.units import format_bytes
from engine.policy.gates import Gates, readings, usage_of
from engine.policy.pairs import FAST_PAIRS, WHOLE, guessed_cost
from engine.quality.records import Cost, Measurement, Report

WIDEST: Final = "f32"
"""Type that is measured as a reference only: it has twice the bytes of f16 without visible gain."""
SAME_RATE = 1.05
"""Rates up to this ratio from the reference's are equal: paired runs differ by about as much.
Beyond, rates are compared in steps of its square."""


class Basis(StrEnum):
    """Whether the quality of K/V types is measured, guessed or unknown."""

    MEASURED = "measured"
    """Their figures on this model, with this build of llama.cpp."""
    GUESSED = "guessed"
    """Nothing was measured on this model: one order for all models."""
    UNKNOWN = "unknown"
    """These types were not measured on this model."""


class BudgetError(PresetError):
    """No allowed K/V types are within the budget."""

    title = "The cache exceeds its budget"


Size = Callable[[KVTypes], int]
"""Exact bytes of the cache with a pair; raises `PresetError` if llama.cpp refuses it."""


@dataclass(frozen=True, slots=True)
class TypeRequest:
    """Context, budget and fixed types of a choice of K/V types."""

    n_ctx: int
    """Tokens of a slot."""
    budget_bytes: int | None = None
    """Maximum bytes of the cache; None is no limit."""
    type_k: KVTypeName | None = None
    """K type, if it is fixed."""
    type_v: KVTypeName | None = None
    counts_rates: bool = True
    """Whether the measured speeds are those of the planned machine."""

    def allows(self, pair: KVTypes) -> bool:
        """Whether a pair has the fixed types; f32 is a reference only, unless it is fixed."""
        is_given = self.type_k in (None, pair.k) and self.type_v in (None, pair.v)
        return is_given and (WIDEST not in (pair.k, pair.v) or WIDEST in (self.type_k, self.type_v))


@dataclass(frozen=True, slots=True)
class Candidate:
    """K/V types, their size, and the objections to them."""

    pair: KVTypes
    nbytes: int | None = None
    """Size of the cache in bytes; None if llama.cpp refuses the types."""
    measured: Measurement | None = None
    token_s: float | None = None
    """Measured seconds per token in the middle of the context; None if not measured."""
    usage: float = 0.0
    """Largest loss relative to its limit; for a guess, its cost in halvings of the context."""
    objections: tuple[str, ...] = ()
    """Why it may not be chosen; empty if it may."""

    def refused(self, why: str) -> "Candidate":
        """The candidate with one more objection."""
        return replace(self, objections=(*self.objections, why))

    def timed(self, n_ctx: int) -> "Candidate":
        """The candidate with its seconds per token in the middle of a context."""
        cost = None if self.measured is None else self.measured.cost
        return replace(self, token_s=token_seconds(cost, n_ctx // 2))


def choose(
    report: Report | None, request: TypeRequest, gates: Gates, size: Size
) -> tuple[Candidate, ...]:
    """The allowed K/V types for a request, the best first; at least one.

    They are the measured ones; without a usable measurement, the usual ones in one order for all
    models.

    Raises:
        BudgetError: no allowed types are within the budget; the message has the smallest size.
    """
    if report is not None and has_verdict(report):
        base_s = reference_seconds(report, request.n_ctx // 2)
        found = _by_figures(report, request, gates, size)
        found.sort(key=lambda each: speed_order(each, base_s))
    else:
        pairs = (KVTypes(request.type_k or e.k, request.type_v or e.v) for e in FAST_PAIRS)
        guessed = (Candidate(pair, usage=guessed_cost(pair)) for pair in dict.fromkeys(pairs))
        found = sorted((_sized(e, request, size) for e in guessed), key=lambda e: e.usage)
    accepted = tuple(each for each in found if not each.objections)
    if not accepted:
        raise BudgetError(_nothing(request, found))
    return accepted


def has_verdict(report: Report) -> bool:
    """Whether a report is usable: enough text, and the reference was measured."""
    return report.allows_verdict and report.reference is not None


def checked(report: Report, gates: Gates) -> tuple[Candidate, ...]:
    """The reference and all measured types with the objections of the gates, the best first.

    The best uses the smallest part of its limits; speed and budget do not count.
    """
    found: dict[KVTypes, Candidate] = {}
    for each in (report.reference, *report.candidates):
        if each is not None and each.kind.are_of_llama_cpp and each.kind not in found:
            found[each.kind] = _checked(each, report, gates)
    failed = [
        each.pair
        for each in found.values()
        if each.objections and each.measured is not None and each.measured.is_complete
    ]
    for pair, candidate in found.items():
        finer = [other for other in failed if is_coarser(pair, other)]
        if finer and not candidate.objections:
            found[pair] = candidate.refused(
                f"even {finer[0]}, which has more bits, fails the limits"
            )
    return tuple(sorted(found.values(), key=lambda each: each.usage))


def token_seconds(cost: Cost | None, depth: int) -> float | None:
    """Seconds per token at a depth, interpolated between the two measured depths."""
    if cost is None or min(cost.shallow_tps, cost.deep_tps) <= 0:
        return None
    shallow, deep = 1 / cost.shallow_tps, 1 / cost.deep_tps
    span = cost.deep_depth - cost.shallow_depth
    if span <= 0:
        return deep
    slope = max(0.0, deep - shallow) / span
    return max(shallow, shallow + slope * (depth - cost.shallow_depth))


def speed_order(
    candidate: Candidate, reference_s: float | None
) -> tuple[bool, int, int, float, KVTypes]:
    """Sort key: the fastest step first; within a step the smallest, then the most precise.

    The reference's speed is in the middle of step 0.

    Args:
        candidate: With its seconds per token.
        reference_s: Seconds of the reference; None if not measured.
    """
    token_s, step = candidate.token_s, 0
    if token_s is not None:
        step = round(log(token_s / (reference_s or 1.0)) / (2 * log(SAME_RATE)))
    return token_s is None, step, candidate.nbytes or 0, candidate.usage, candidate.pair


def reference_seconds(report: Report, depth: int) -> float | None:
    """Seconds per token of the reference at a depth; None if not measured."""
    return token_seconds(report.reference.cost, depth) if report.reference else None


def is_coarser(pair: KVTypes, other: KVTypes) -> bool:
    """Whether a pair has fewer bits than another in K or V, and more in neither."""
    (k, v), (other_k, other_v) = bits_of(pair), bits_of(other)
    return k <= other_k and v <= other_v and (k, v) != (other_k, other_v)


def _by_figures(report: Report, request: TypeRequest, gates: Gates, size: Size) -> list[Candidate]:
    found = [
        _sized(each.timed(request.n_ctx) if request.counts_rates else each, request, size)
        for each in checked(report, gates)
        if request.allows(each.pair)
    ]
    has_none = str(report.subject.reference) == WIDEST and all(each.objections for each in found)
    if has_none and request.allows(WHOLE):  # compared with f32: fall back to f16
        others = [each for each in found if each.pair != WHOLE]
        return [*others, _sized(Candidate(WHOLE), request, size)]
    return found


def _checked(found: Measurement, report: Report, gates: Gates) -> Candidate:
    if found.role == "reference":
        return Candidate(found.kind, measured=found)
    read = readings(found, gates, reference=report.reference, control=report.control)
    objections = tuple(each.text for each in read if not each.passes)
    if not found.is_complete:
        objections = ("the measurement is incomplete", *objections)
    return Candidate(found.kind, measured=found, usage=usage_of(read), objections=objections)


def _sized(candidate: Candidate, request: TypeRequest, size: Size) -> Candidate:
    try:
        nbytes = size(candidate.pair)
    except PresetError as refusal:
        return candidate.refused(str(refusal))
    candidate, budget = replace(candidate, nbytes=nbytes), request.budget_bytes
    if budget is None or nbytes <= budget:
        return candidate
    return candidate.refused(f"{format_bytes(nbytes)} exceeds the budget of {format_bytes(budget)}")


def _nothing(request: TypeRequest, rejected: Sequence[Candidate]) -> str:
    """Why no types are allowed: the smallest that pass the gates, or the failed gates."""
    budget = request.budget_bytes
    sizes = [
        (each.nbytes, each.pair)
        for each in rejected
        if each.nbytes and budget is not None and each.nbytes > budget and len(each.objections) == 1
    ]
    if not sizes or budget is None:
        listed = "; ".join(f"{each.pair}: {each.objections[0]}" for each in rejected[:4])
        return (
            f"none of the allowed cache types passes the quality limits ({listed}): set type_k or "
            "type_v to auto, so that kvchat can choose from more types"
        )
    nbytes, pair = min(sizes)
    tokens = int(request.n_ctx * budget / nbytes) // 256 * 256
    shorter = f"a context of about {tokens:,} tokens" if tokens else "a much smaller context"
    return (
        "no cache type that passes the quality limits fits the budget of "
        f"{format_bytes(budget)} at {request.n_ctx:,} tokens; the smallest, {pair}, "
        f"needs {format_bytes(nbytes)}. Choose {shorter}, or a budget of {format_bytes(nbytes)}"
    )
