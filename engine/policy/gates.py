"""The quality gates: the maximum loss of K/V types on the measured text.

A loss of 0 is the reference; more is worse. A gate compares the upper end of the figure's interval,
over all texts and on the worst kind of text, because long documents and tool calls lose more than
chat. The loss of the control is subtracted: the reference computed with other kernels, which
differs from itself in 4 of 100 top tokens on small models. Other texts differ from the measured
ones, so the defaults are 0.7 of the largest acceptable loss.
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
"""First position of a long context."""
MIN_PART = 1000
"""Minimum tokens of a kind of text or a range of positions for a gate of its own."""
MIN_TAIL = 8000
"""Minimum tokens for a 99.9th percentile: eight tokens are beyond it."""
MIN_QUESTIONS = 5
"""Minimum questions that the reference answers correctly."""

Loss = Annotated[float, Bounds(ge=0, le=100)]
Share = Annotated[float, Bounds(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Gates:
    """The maximum losses; each is a setting."""

    __pydantic_config__ = STRICT

    max_nll_delta: Loss = 0.014
    """Maximum increase of the mean loss (NLL) in nats, on the worst kind of text. A 4-bit cache
    increases the loss by 0.0022 to 0.004 on robust models, by more than 1 on sensitive models."""
    max_perplexity_ratio: Annotated[float, Bounds(ge=1, le=100)] = 100.0
    """Maximum ratio of the perplexity to that of the reference, exp(increase of the loss); the
    stricter of this limit and `max_nll_delta` applies."""
    max_mean_kl: Loss = 0.021
    """Maximum mean KL divergence in nats. With q8_0, two small models were measured at
    0.004 and 0.007; sensitive model families reach 0.1 and more."""
    max_p999_kl: Loss = 1.05
    """Maximum KL divergence in nats at the 99.9th percentile of tokens. At 1.05, a token that
    has probability 1 in the reference still has a probability of about 1/3."""
    min_same_top: Share = 0.965
    """Minimum share of positions with the same most likely token as the reference. At 0.965, 1
    token in 28 may differ; if a cache type breaks a model, the share is only 0.68 to 0.75."""
    max_needle_loss: Share = 0.1
    """Maximum share of wrong answers among the retrieval questions that the reference answers
    correctly. Rounding alone can make 1 answer in 10 wrong."""
    max_long_kl: Loss = 0.035
    """Maximum mean KL divergence in nats beyond 8,192 tokens; if the measurement does not reach
    that far, at its last positions."""


@dataclass(frozen=True, slots=True)
class PolicySettings(Gates):
    """The gates, and how long a measurement is valid."""

    __pydantic_config__ = STRICT

    probe_days: Annotated[float, Bounds(ge=0, le=36500)] = 30.0
    """Days after which kvchat suggests a new measurement; 0: never. Driver and firmware
    updates can change speeds."""


@dataclass(frozen=True, slots=True)
class GateReading:
    """A loss and its gate."""

    gate: str
    """Name of the setting."""
    loss: float
    limit: float
    """Maximum loss."""
    text: str
    """Figure and limit, such as `mean KL 0.3810 nats on document, limit 0.0210`."""

    @property
    def passes(self) -> bool:
        """Whether the loss is within its limit; NaN is not."""
        return isfinite(self.loss) and self.loss <= self.limit

    @property
    def usage(self) -> float:
        """Loss divided by limit: above 1 fails."""
        if self.loss <= 0:
            return 0.0
        return self.loss / self.limit if self.limit > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class _Part:
    """The scores of a part of the text, and the control's."""

    where: str
    scores: Scores
    control: Scores | None

    def loss(self, figure: Callable[[Scores], Figure]) -> float:
        """The worse end of a figure's interval, less the noise of the control."""
        found = figure(self.scores)
        high = found.value if found.high is None else max(found.high, found.value)
        noise = 0.0 if self.control is None else max(0.0, figure(self.control).value)
        return high - noise


def readings(
    found: Measurement,
    gates: Gates,
    *,
    reference: Measurement | None = None,
    control: Measurement | None = None,
) -> tuple[GateReading, ...]:
    """Every gate that a measurement has figures for, with the loss.

    Args:
        found: The measurement.
        gates: The limits.
        reference: Measurement with the same questions, which count if enough answers are correct.
        control: Its losses are noise and subtracted; None subtracts nothing.
    """
    parts = [_Part("", found.scores, None if control is None else control.scores)]
    if len(found.by_text) > 1:
        parts += _parts(_enough(found.by_text), control.by_text if control else (), " on ")
    tails = [parts[0], *(each for each in parts[1:] if each.scores.n_tokens >= MIN_TAIL)]
    far = _parts(_farthest(found), control.by_position if control else (), " at ")
    max_nll = min(gates.max_nll_delta, log(gates.max_perplexity_ratio))
    read = [
        _worst("max_nll_delta", max_nll, parts, lambda s: s.nll_delta,
               "mean loss {loss:.4f} nats per token above the reference{where}, limit {limit:.4f}"),
        _worst("max_mean_kl", gates.max_mean_kl, parts, lambda s: s.kl_mean,
               "mean KL {loss:.4f} nats{where}, limit {limit:.4f}"),
        _worst("max_p999_kl", gates.max_p999_kl, tails, lambda s: s.kl_p999,
               "99.9th-percentile KL {loss:.3f} nats{where}, limit {limit:.3f}"),
        _worst("min_same_top", 1 - gates.min_same_top, parts, lambda s: _complement(s.same_top),
               "a different top token at {loss:.1%} of positions{where}, limit {limit:.1%}"),
        _worst("max_long_kl", gates.max_long_kl, far, lambda s: s.kl_mean,
               "mean KL {loss:.4f} nats{where} tokens, limit {limit:.4f}"),
        _needles(found, reference, gates.max_needle_loss),
    ]  # fmt: skip
    return tuple(each for each in read if each is not None)


def usage_of(read: Iterable[GateReading]) -> float:
    """The largest usage of a limit."""
    return max((each.usage for each in read), default=0.0)


def _farthest(found: Measurement) -> list[Breakdown]:
    """The ranges of positions in a long context; without one, the last measured range."""
    enough = {part.name: part for part in _enough(found.by_position)}
    ordered = [(n, enough[name]) for n in POSITIONS if (name := position_name(n)) in enough]
    long = [part for start, part in ordered if start >= LONG_FROM]
    return long or [part for _, part in ordered[-1:]]


def _enough(parts: Iterable[Breakdown]) -> list[Breakdown]:
    return [part for part in parts if part.scores.n_tokens >= MIN_PART]


def _parts(found: Iterable[Breakdown], control: Iterable[Breakdown], word: str) -> list[_Part]:
    known = {each.name: each.scores for each in control}
    return [_Part(f"{word}{each.name}", each.scores, known.get(each.name)) for each in found]


def _needles(found: Measurement, reference: Measurement | None, limit: float) -> GateReading | None:
    """The share of wrong answers among the questions that the reference answers correctly."""
    right, asked = n_right(found.needle)
    known, asked_before = n_right(() if reference is None else reference.needle)
    if known < MIN_QUESTIONS or asked != asked_before:
        return None
    lost = max(0.0, (known - right) / known)
    text = f"{lost:.0%} of the needles were not retrieved, limit {limit:.0%}"
    return GateReading("max_needle_loss", lost, limit, text)


def _worst(
    gate: str, limit: float, parts: list[_Part], figure: Callable[[Scores], Figure], text: str
) -> GateReading | None:
    if not parts:
        return None
    worst = max(parts, key=lambda each: each.loss(figure))
    loss = worst.loss(figure)
    return GateReading(gate, loss, limit, text.format(loss=loss, limit=limit, where=worst.where))


def _complement(share: Figure) -> Figure:
    low, high = (None if end is None else 1 - end for end in (share.high, share.low))
    return Figure(1 - share.value, low, high)
