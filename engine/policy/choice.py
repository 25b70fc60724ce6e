"""Which cache kind: candidates, then the budget, then the gates, then the quickest.

Two rules make the choice steady. What is coarser in keys and values than a kind that fails has
failed too, however lucky its figures are. And what passes is ordered by itself, not by what else
passes. So a tighter gate keeps the choice or moves it to a kind that is not coarser.
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
"""Twice the bytes of f16 for nothing that chats show: others are compared with it."""
SAME_RATE = 1.05
"""Rates up to this ratio from the reference's are one with it: paired runs differ by about as much.
Beyond, rates are compared in steps of its square."""


class Basis(StrEnum):
    """What is known of a cache kind; the three are never mixed up."""

    MEASURED = "measured"
    """Its figures on this model, with this build of llama.cpp."""
    GUESSED = "guessed"
    """Nothing was measured on this model: the one order for all models."""
    UNKNOWN = "unknown"
    """Other kinds were measured on this model, and this one was not."""


class BudgetError(PresetError):
    """No cache kind that may be chosen is as small as was asked."""

    title = "The cache is too large"


Size = Callable[[KVTypes], int]
"""Exact bytes of the cache with a pair; raises `PresetError` where llama.cpp refuses it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a cache is chosen for."""

    n_ctx: int
    """Tokens of a slot."""
    budget_bytes: int | None = None
    """Most bytes of the cache; None is no limit."""
    type_k: KVTypeName | None = None
    """Type of the keys where it is given; None leaves it open."""
    type_v: KVTypeName | None = None
    counts_rates: bool = True
    """Whether the measured rates are those of the machine that it is for."""

    def allows(self, pair: KVTypes) -> bool:
        """Whether a pair has the types that are given; f32 is for comparing unless it is one."""
        is_given = self.type_k in (None, pair.k) and self.type_v in (None, pair.v)
        return is_given and (WIDEST not in (pair.k, pair.v) or WIDEST in (self.type_k, self.type_v))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cache kind, what it takes, and why it may be chosen or may not."""

    pair: KVTypes
    nbytes: int | None = None
    """None where llama.cpp refuses the pair."""
    measured: Measurement | None = None
    token_s: float | None = None
    """Seconds for a token in the middle of the context, as measured; None where they were not."""
    usage: float = 0.0
    """Part of its gates that it uses; of a guess, its cost in halvings of the context."""
    objections: tuple[str, ...] = ()
    """Why it may not be chosen; empty where it may."""


def choose(report: Report | None, wish: Wish, gates: Gates, size: Size) -> tuple[Candidate, ...]:
    """The cache kinds that may be chosen for a wish, the best first; at least one.

    They are those that were measured; without a verdict, the usual ones in the order for all
    models.

    Raises:
        BudgetError: nothing that may be chosen is within the budget; says what would be.
    """
    if report is not None and has_verdict(report):
        base_s = reference_seconds(report, wish.n_ctx // 2)
        found = _by_figures(report, wish, gates, size)
        found.sort(key=lambda each: speed_order(each, base_s))
    else:
        found = sorted(_by_guess(wish, size), key=lambda each: each.usage)
    accepted = tuple(each for each in found if not each.objections)
    if not accepted:
        raise BudgetError(_nothing(wish, found))
    return accepted


def has_verdict(report: Report) -> bool:
    """Whether a report can be chosen by: there was text enough, and the reference read it."""
    return report.allows_verdict and report.reference is not None


def judge(report: Report, gates: Gates) -> tuple[Candidate, ...]:
    """The reference and every kind of a report with the objections of the gates, the best first.

    The best is the one that uses the least of its gates; no rate and no budget counts.
    """
    measured = _measured(report)
    found = [_judge(pair, each, report, gates) for pair, each in measured.items()]
    failed = [each for each in found if each.objections and measured[each.pair].is_complete]
    return tuple(sorted((_with_finer(each, failed) for each in found), key=lambda each: each.usage))


def token_seconds(cost: Cost | None, depth: int) -> float | None:
    """Seconds for a token behind so many others: attention grows evenly between two depths."""
    if cost is None or min(cost.shallow_tps, cost.deep_tps) <= 0:
        return None
    shallow, deep = 1 / cost.shallow_tps, 1 / cost.deep_tps
    span = cost.deep_depth - cost.shallow_depth
    if span <= 0:
        return deep
    slope = max(0.0, deep - shallow) / span
    return max(shallow, shallow + slope * (depth - cost.shallow_depth))


def with_seconds(candidate: Candidate, n_ctx: int) -> Candidate:
    """The candidate with its seconds for a token in the middle of a context."""
    cost = None if candidate.measured is None else candidate.measured.cost
    return replace(candidate, token_s=token_seconds(cost, n_ctx // 2))


def rate_step(token_s: float, reference_s: float | None) -> int:
    """The step of a rate, less is quicker; the reference is in the middle of step 0."""
    return round(log(token_s / (reference_s or 1.0)) / (2 * log(SAME_RATE)))


def speed_order(
    candidate: Candidate, reference_s: float | None
) -> tuple[bool, int, int, float, KVTypes]:
    """The quickest first; among rates of one step the smallest, then the finest.

    It looks at nothing but the candidate and the reference, which no gate removes, so that the
    order of two never hangs on a third.

    Args:
        candidate: With its seconds for a token.
        reference_s: Those of the reference; None where they were not measured.
    """
    token_s, nbytes = candidate.token_s, candidate.nbytes or 0
    step = 0 if token_s is None else rate_step(token_s, reference_s)
    return token_s is None, step, nbytes, candidate.usage, candidate.pair


def reference_seconds(report: Report, depth: int) -> float | None:
    """Seconds of the reference for a token at a depth; None where they were not measured."""
    return token_seconds(report.reference.cost, depth) if report.reference else None


def is_coarser(pair: KVTypes, other: KVTypes) -> bool:
    """Whether a pair has no more bits than another in keys and in values, and fewer in one."""
    (k, v), (other_k, other_v) = bits_of(pair), bits_of(other)
    return k <= other_k and v <= other_v and (k, v) != (other_k, other_v)


def _by_figures(report: Report, wish: Wish, gates: Gates, size: Size) -> list[Candidate]:
    found = [
        _sized(with_seconds(each, wish.n_ctx) if wish.counts_rates else each, wish, size)
        for each in judge(report, gates)
        if wish.allows(each.pair)
    ]
    if str(report.subject.reference) == WIDEST and all(each.objections for each in found):
        return _with_fall_back(found, wish, size)
    return found


def _by_guess(wish: Wish, size: Size) -> list[Candidate]:
    pairs = (KVTypes(wish.type_k or each.k, wish.type_v or each.v) for each in FAST_PAIRS)
    guessed = (Candidate(pair, usage=guessed_cost(pair)) for pair in dict.fromkeys(pairs))
    return [_sized(each, wish, size) for each in guessed]


def _with_fall_back(found: Sequence[Candidate], wish: Wish, size: Size) -> list[Candidate]:
    """The candidates with f16 among those that may be chosen, where the reference may not be."""
    others = [each for each in found if each.pair != WHOLE]
    return [*others, _sized(Candidate(WHOLE), wish, size)] if wish.allows(WHOLE) else [*found]


def _measured(report: Report) -> dict[KVTypes, Measurement]:
    """The reference and the candidates that are types of llama.cpp."""
    found: dict[KVTypes, Measurement] = {}
    reference = report.reference
    for each in (*(() if reference is None else (reference,)), *report.candidates):
        if each.kind.are_of_llama_cpp:
            found.setdefault(each.kind, each)
    return found


def _judge(pair: KVTypes, found: Measurement, report: Report, gates: Gates) -> Candidate:
    if found.role == "reference":
        return Candidate(pair, measured=found)
    read = readings(found, gates, reference=report.reference, control=report.control)
    objections = tuple(each.text for each in read if not each.is_kept)
    if not found.is_complete:
        objections = ("the measurement is incomplete", *objections)
    return Candidate(pair, measured=found, usage=usage_of(read), objections=objections)


def _with_finer(candidate: Candidate, failed: Sequence[Candidate]) -> Candidate:
    """A candidate that fails with the finer kinds that were measured to the end and do."""
    if candidate.objections:
        return candidate
    finer = [each.pair for each in failed if is_coarser(candidate.pair, each.pair)]
    if not finer:
        return candidate
    return _refused(candidate, f"{finer[0]} fails although it has more bits")


def _sized(candidate: Candidate, wish: Wish, size: Size) -> Candidate:
    try:
        nbytes = size(candidate.pair)
    except PresetError as refusal:
        return _refused(candidate, str(refusal))
    candidate = replace(candidate, nbytes=nbytes)
    if wish.budget_bytes is not None and nbytes > wish.budget_bytes:
        over = f"{format_bytes(nbytes)} exceeds the budget of {format_bytes(wish.budget_bytes)}"
        return _refused(candidate, over)
    return candidate


def _refused(candidate: Candidate, why: str) -> Candidate:
    return replace(candidate, objections=(*candidate.objections, why))


def _nothing(wish: Wish, rejected: Sequence[Candidate]) -> str:
    """Why nothing may be chosen: the smallest that keeps the gates, or what the others fail."""
    sizes = [
        (each.nbytes, each.pair)
        for each in rejected
        if each.nbytes is not None and len(each.objections) == 1
        and wish.budget_bytes is not None and each.nbytes > wish.budget_bytes
    ]  # fmt: skip
    smallest = min(sizes, default=None)
    if smallest is None or wish.budget_bytes is None:
        listed = "; ".join(f"{each.pair}: {each.objections[0]}" for each in rejected[:4])
        return f"no cache type passes the quality limits ({listed}): set keys or values to auto"
    nbytes, pair = smallest
    tokens = int(wish.n_ctx * wish.budget_bytes / max(nbytes, 1)) // 256 * 256
    shorter = f"a context of about {tokens:,} tokens" if tokens else "a much smaller context"
    return (
        "no cache type that passes the quality limits fits the budget of "
        f"{format_bytes(wish.budget_bytes)} at {wish.n_ctx:,} tokens; the smallest, {pair}, "
        f"needs {format_bytes(nbytes)}. Choose {shorter}, or a budget of {format_bytes(nbytes)}"
    )
