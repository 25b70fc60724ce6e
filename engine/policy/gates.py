"""The gates: how much a cache kind may lose on the measured text to be chosen.

A gate is about a loss: 0 is what the reference has, more is worse. What is held against it is the
unfavourable end of the figure's interval, over all texts and over the worst sort of text, because
the loss of a kind lies in long documents and tool calls rather than in chat. What the control shows
of the same text is taken off: the reference through other kernels differs from itself by that, on
small models in 4 tokens of 100. Texts that nobody measured differ from those that were, so the
defaults are 0.7 of what a kind may lose at most.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite, log
from typing import Annotated

from engine.configuration import STRICT, Bounds
from engine.quality.records import (
    POSITIONS,
    Breakdown,
    Figure,
    Measurement,
    Scores,
    n_right,
    position_name,
)

LONG_FROM = 8192
"""Tokens from which a position is one of a long context."""
LEAST_PART = 1000
"""Rows of a sort of text, or a range of positions, that a gate is held against by itself."""
LEAST_TAIL = 8000
"""Rows from which a sort of text has a 99.9 % of its own: eight rows lie beyond it."""
LEAST_QUESTIONS = 5
"""Questions that the reference must have got right for the loss of some to say anything."""

Loss = Annotated[float, Bounds(ge=0, le=100)]
Share = Annotated[float, Bounds(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits of what a chosen cache kind may lose, each a setting of its own."""

    __pydantic_config__ = STRICT

    max_nll_delta: Loss = 0.014
    """Maximum increase of the mean loss (NLL) in nats, on the worst kind of text. A rotated 4-bit
    cache costs robust models 0.0022 to 0.004; on models that it breaks, the cost is above 1."""
    max_perplexity_ratio: Annotated[float, Bounds(ge=1, le=100)] = 100.0
    """Maximum perplexity divided by that of the reference, exp(increase of the loss); the stricter
    of this limit and `max_nll_delta` applies."""
    max_mean_kl: Loss = 0.021
    """Maximum mean KL divergence in nats. With q8_0, robust model families stay below 0.04;
    sensitive families reach 0.1 and more."""
    max_p999_kl: Loss = 1.05
    """Maximum KL divergence in nats at the 99.9th percentile of tokens. At 1.05, a token with
    probability 1 in the reference still gets a third."""
    min_same_top: Share = 0.965
    """Minimum share of positions with the same most likely token. At 0.965, 1 token in 28 may
    differ; if a cache type breaks a model, the share is only 0.68 to 0.75."""
    max_needle_loss: Share = 0.1
    """Maximum share of wrong answers among the retrieval questions that the reference answers
    correctly. Rounding alone can cause 1 in 10."""
    max_long_kl: Loss = 0.035
    """Maximum mean KL divergence in nats beyond 8,192 tokens, or at the farthest position that was
    measured."""


@dataclass(frozen=True, slots=True)
class PolicySettings(Gates):
    """The gates, and how long a measurement counts."""

    __pydantic_config__ = STRICT

    probe_days: Annotated[float, Bounds(ge=0, le=36500)] = 30.0
    """Days after which kvchat suggests a new measurement; 0: never. Driver and firmware
    updates can change speeds."""


@dataclass(frozen=True, slots=True)
class GateReading:
    """A loss beside its gate."""

    gate: str
    """Name of the setting."""
    loss: float
    limit: float
    """The most that the loss may be."""
    text: str
    """Figure and limit in words, such as `mean KL 0.381 nats on documents, allowed 0.021`."""

    @property
    def passes(self) -> bool:
        """Whether the loss is within its limit; a loss that is no number is not."""
        return isfinite(self.loss) and self.loss <= self.limit

    @property
    def usage(self) -> float:
        """The part of the limit that is used: 0 loses nothing, above 1 fails."""
        if self.loss <= 0:
            return 0.0
        return self.loss / self.limit if self.limit > 0 else float("inf")


Compared = tuple[str, Scores, Scores | None]
"""Where rows are from, in words; the kind's scores of them, and those of the control."""


def readings(
    found: Measurement,
    gates: Gates,
    *,
    reference: Measurement | None = None,
    control: Measurement | None = None,
) -> tuple[GateReading, ...]:
    """Every gate that the measurement of a kind can be held against, with its loss.

    Args:
        found: The kind.
        gates: The limits.
        reference: Answered the same questions; they count where it answered enough of them.
        control: Its losses are noise, and are taken off; None takes nothing off.
    """
    whole: Compared = ("", found.scores, None if control is None else control.scores)
    parts = [whole]
    if len(found.by_text) > 1:
        known = () if control is None else control.by_text
        parts += [_beside(part, known, " on ") for part in _enough(found.by_text)]
    tails = [whole, *(each for each in parts[1:] if each[1].n_tokens >= LEAST_TAIL)]
    known = () if control is None else control.by_position
    far = [_beside(part, known, " at ") for part in farthest(found)]
    read = [
        _worst(
            "max_nll_delta", min(gates.max_nll_delta, log(gates.max_perplexity_ratio)), parts,
            lambda s: s.nll_delta,
            "mean loss {loss:.4f} nats per token above the reference{where}, limit {limit:.4f}",
        ),
        _worst(
            "max_mean_kl", gates.max_mean_kl, parts, lambda s: s.kl_mean,
            "mean KL {loss:.4f} nats{where}, limit {limit:.4f}",
        ),
        _worst(
            "max_p999_kl", gates.max_p999_kl, tails, lambda s: s.kl_p999,
            "99.9th-percentile KL {loss:.3f} nats{where}, limit {limit:.3f}",
        ),
        _worst(
            "min_same_top", 1 - gates.min_same_top, parts, lambda s: _other(s.same_top),
            "a different top token at {loss:.1%} of positions{where}, limit {limit:.1%}",
        ),
        _worst(
            "max_long_kl", gates.max_long_kl, far, lambda s: s.kl_mean,
            "mean KL {loss:.4f} nats{where} tokens, limit {limit:.4f}",
        ),
        _needles(found, reference, gates.max_needle_loss),
    ]  # fmt: skip
    return tuple(each for each in read if each is not None)


def usage_of(read: Iterable[GateReading]) -> float:
    """The largest part that is used of any limit."""
    return max((each.usage for each in read), default=0.0)


def farthest(found: Measurement) -> tuple[Breakdown, ...]:
    """The ranges of positions of a long context; where there is none, the last that was read."""
    enough = {part.name: part for part in _enough(found.by_position)}
    names = [(start, position_name(start)) for start in POSITIONS]
    ordered = [(start, enough[name]) for start, name in names if name in enough]
    return tuple(part for start, part in ordered if start >= LONG_FROM) or tuple(
        part for _, part in ordered[-1:]
    )


def _enough(parts: tuple[Breakdown, ...]) -> list[Breakdown]:
    return [part for part in parts if part.scores.n_tokens >= LEAST_PART]


def _beside(part: Breakdown, known: tuple[Breakdown, ...], word: str) -> Compared:
    """A part with the same rows of the control."""
    other = next((each.scores for each in known if each.name == part.name), None)
    return f"{word}{part.name}", part.scores, other


def _needles(found: Measurement, reference: Measurement | None, limit: float) -> GateReading | None:
    """The share of the needles that the reference found and that is lost."""
    right, asked = n_right(found.needle)
    known, asked_before = n_right(() if reference is None else reference.needle)
    if known < LEAST_QUESTIONS or asked != asked_before:
        return None
    lost = max(0.0, (known - right) / known)
    text = f"{lost:.0%} of the needles not retrieved, limit {limit:.0%}"
    return GateReading("max_needle_loss", lost, limit, text)


def _worst(
    gate: str,
    limit: float,
    parts: list[Compared],
    figure: Callable[[Scores], Figure],
    text: str,
) -> GateReading | None:
    """The gate with the largest loss of the parts, what the control loses of each taken off."""
    losses = [
        (_high(figure(scores)) - _noise(figure, control), where) for where, scores, control in parts
    ]
    if not losses:
        return None
    loss, where = max(losses, key=lambda each: each[0])
    return GateReading(gate, loss, limit, text.format(loss=loss, limit=limit, where=where))


def _noise(figure: Callable[[Scores], Figure], control: Scores | None) -> float:
    """What the control loses: never below nothing, so that luck of its own makes no kind worse."""
    return 0.0 if control is None else max(0.0, figure(control).value)


def _other(same_top: Figure) -> Figure:
    """The share of tokens whose likeliest continuation is another one."""
    low, high = (None if end is None else 1 - end for end in (same_top.high, same_top.low))
    return Figure(1 - same_top.value, low, high)


def _high(figure: Figure) -> float:
    return figure.value if figure.high is None else max(figure.high, figure.value)
