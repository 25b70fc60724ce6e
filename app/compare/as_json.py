"""A comparison as plain values."""

from dataclasses import asdict

from app.compare.answer import Answer
from app.compare.comparison import Comparison, Pair
from app.compare.verdict import has_drafts, identity_of, parting_of, speed_of

JsonValue = dict[str, object]


def as_values(comparison: Comparison) -> JsonValue:
    """Give conditions, every pair and the verdict; times are in seconds, speeds in tokens/s."""
    speed = speed_of(comparison.pairs)
    identity = identity_of(comparison.pairs)
    return {
        "sides": [side.label for side in comparison.sides],
        "seed": comparison.request.seed,
        "max_tokens": comparison.request.max_tokens,
        "sampling": asdict(comparison.request.sampling),
        "problem": comparison.problem,
        "speed": None
        if speed is None
        else {
            "median": speed.median,
            "possible": speed.possible,
            "ratios": speed.ratios,
            "is_clear": speed.is_clear and has_drafts(comparison.pairs),
        },
        "identity": None if identity is None else asdict(identity),
        "pairs": [_pair(pair) for pair in comparison.pairs],
    }


def _pair(pair: Pair) -> JsonValue:
    parting = parting_of(pair)
    return {
        "first": _answer(pair.first),
        "second": _answer(pair.second),
        "parting": None if parting is None else asdict(parting),
    }


def _answer(answer: Answer) -> JsonValue:
    finished = answer.finished
    return {
        "text": answer.text,
        "note": answer.note,
        "finish_reason": None if finished is None else finished.reason.value,
        "stats": None if finished is None else asdict(finished.stats),
    }
