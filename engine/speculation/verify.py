"""Verification of drafts against the target, and sampling from a draft model.

Rejection compares the filtered distributions of target (p) and draft (q) at each drafted position.
A token that was chosen, not drawn, has a one-hot q (`certain`).

Kernels for several rows round differently from those for one, so a near tie may be decided
differently in a batch than without a draft: such rows are counted, with their margins.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import numpy as np

from engine.backends.base import Logits
from engine.configuration import Verification
from engine.sampling import Distribution, Sampler, certain

NEAR_TIE = 0.1
"""Lead in logits below which a row of a batch may choose another token than a single row."""


def draw_draft(
    logits: Logits,
    sampler: Sampler,
    history: Tokens[int],
    *,
    round_start: int,
    position: int,
    verification: Verification,
) -> tuple[int, Distribution | None]:
    """Draw the token for `position` from a draft model's `[n_vocab]` logits.

    Returns it with the distribution that it was drawn from, None if it was chosen.

    `coupled` uses the target's noise for the position (Daliri et al. 2024, arXiv 2408.07978);
    `rejection` uses the dice of the round that starts at position `round_start`. The sampler is
    the target's, so draft and target have the same filters.
    """
    if sampler.is_greedy:
        return sampler.likeliest(logits, history), None
    if verification == "coupled":
        return sampler.sample(logits, history, position), None
    distribution = sampler.distribution(logits, history)
    return sampler.dice(round_start).draw_draft(distribution, position), distribution


def acceptance(token: int, target: Distribution, draft: Distribution) -> float:
    """min(1, p(x)/q(x)) (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1)."""
    return min(1.0, target.probability(token) / draft.probability(token))


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """The distribution ∝ max(p - q, 0) of the token after a rejection; p if rounding leaves 0."""
    left = np.maximum(target.probs - draft.probabilities(target.tokens), 0.0)
    mass = left.sum()
    if mass <= 0.0:
        return target
    positive = left > 0.0
    return Distribution(target.tokens[positive], left[positive] / mass)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification.

    `next_token` follows the accepted tokens: the correction of the first refuted one, or the bonus
    after a wholly accepted draft; None without a row for the bonus.
    """

    n_accepted: int
    n_examined: int
    next_token: int | None
    n_near_ties: int = 0
    """Examined rows of a batch that are near ties; only by `coupled`."""
    margins: tuple[float, ...] = field(default=(), compare=False)
    """`Choice.margin` of each examined row; only by `coupled`."""


def verify_draft(
    draft: Tokens[int],
    logits: Logits,
    sampler: Sampler,
    line: Tokens[int],
    *,
    verification: Verification = "coupled",
    distributions: Tokens[Distribution | None] = (),
) -> Verdict:
    """Accept the prefix of a draft that preserves the target's distribution, and the next token.

    `logits` is `[len(draft) + 1, n_vocab]`, or one row less if no bonus is wanted; `line` is every
    committed token. The target's sampler sees the drafted tokens before a row as history, so
    penalties and mask apply to them.

    `coupled` compares the draft with the target's own choices up to the first difference. Their
    noise depends on the position only, so the text equals that of a run without drafts.
    `rejection` accepts more and preserves the distribution, but not the text of a seed. It needs
    the distribution of each token, None if it was chosen. At temperature 0 both compare argmax.
    """
    window = sampler.history_window
    recent = line if window is None else line[-window:] if window else ()
    history = [*recent, *draft]
    rows = [
        _Row(logits[index], history[: len(recent) + index], len(line) + index)
        for index in range(len(logits))
    ]
    if sampler.is_greedy or verification == "coupled":
        return _match(draft, rows, sampler)
    drawn_from = [  # one-hot if it is missing or gives the token probability 0
        each if each is not None and each.probability(token) > 0.0 else certain(token)
        for token, each in zip(draft, distributions or (None,) * len(draft), strict=True)
    ]
    return _rejection(draft, rows, sampler, drawn_from)


@dataclass(frozen=True, slots=True)
class _Row:
    logits: Logits
    history: Tokens[int]
    position: int


def _match(draft: Tokens[int], rows: Tokens[_Row], sampler: Sampler) -> Verdict:
    margins: list[float] = []
    next_token = None
    for index, row in enumerate(rows):
        own = sampler.choose(row.logits, row.history, row.position)
        margins.append(own.margin)
        if index == len(draft) or own.token != draft[index]:
            next_token = own.token
            break
    is_batch = len(draft) > 0
    return Verdict(
        n_accepted=len(margins) - (next_token is not None),
        n_examined=min(len(margins), len(draft)),
        next_token=next_token,
        n_near_ties=sum(margin < NEAR_TIE for margin in margins) if is_batch else 0,
        margins=tuple(margins),
    )


def _rejection(
    draft: Tokens[int], rows: Tokens[_Row], sampler: Sampler, drawn_from: Tokens[Distribution]
) -> Verdict:
    """Leviathan et al. 2023, arXiv 2211.17192, algorithm 1."""
    dice = sampler.dice(rows[0].position)
    n_drafted = len(draft)
    for index, (drafted, distribution) in enumerate(zip(draft, drawn_from, strict=True)):
        row = rows[index]
        target = sampler.distribution(row.logits, row.history)
        if not dice.accepts(acceptance(drafted, target, distribution), row.position):
            correction = dice.draw(residual(target, distribution), row.position)
            return Verdict(n_accepted=index, n_examined=index + 1, next_token=correction)
    if len(rows) == n_drafted:
        return Verdict(n_drafted, n_drafted, None)
    last = rows[-1]
    bonus = dice.draw(sampler.distribution(last.logits, last.history), last.position)
    return Verdict(n_drafted, n_drafted, bonus)
