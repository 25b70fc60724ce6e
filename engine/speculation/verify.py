"""Whether a draft says what the target would have said, and how a draft model draws.

Rejection takes the target's law p and the draft's law q at each drafted position, after every
filter. A token that was chosen and not drawn has a one-hot q (`certain`).

Kernels for several rows round otherwise than those for one, so that a near tie in a batch may fall
the other way than in a run without a draft: such rows are counted, with their margins.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import numpy as np

from engine.backends.base import Logits
from engine.configuration import Verification
from engine.sampling import Distribution, Sampler, certain

NEAR_TIE = 0.1
"""Lead, in logits, under which a row of a batch may say what it would not say alone."""


@dataclass(frozen=True, slots=True)
class DrawnDraft:
    """A token and the law it was drawn from; None where no chance of its own was used."""

    token: int
    law: Distribution | None


def draw_draft(
    logits: Logits,
    sampler: Sampler,
    history: Tokens[int],
    *,
    round_start: int,
    position: int,
    verification: Verification,
) -> DrawnDraft:
    """Draw the token for `position` from a draft model's `[n_vocab]` logits.

    `coupled` uses the noise that the target will use for the position (Daliri et al. 2024, arXiv
    2408.07978), `rejection` draws with the dice of the round that starts at position `round_start`.
    The sampler is the target's, so draft and target are filtered alike.
    """
    if sampler.is_greedy:
        return DrawnDraft(sampler.likeliest(logits, history), None)
    if verification == "coupled":
        return DrawnDraft(sampler.sample(logits, history, position), None)
    law = sampler.distribution(logits, history)
    return DrawnDraft(sampler.dice(round_start).draw_draft(law, position), law)


def acceptance(token: int, target: Distribution, draft: Distribution) -> float:
    """min(1, p(x)/q(x)) (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1)."""
    return min(1.0, target.probability(token) / draft.probability(token))


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """The law ∝ max(p - q, 0), from which the token behind a refusal is drawn.

    Where nothing is left, which only rounding can bring about, it is p itself.
    """
    left = np.maximum(target.probs - draft.probabilities(target.tokens), 0.0)
    mass = left.sum()
    if mass <= 0.0:
        return target
    kept = left > 0.0
    return Distribution(target.tokens[kept], left[kept] / mass)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification.

    `next_token` follows the accepted ones: the correction of the first refuted token, or
    the bonus behind a draft that was accepted whole; None where no row was there for a bonus.
    """

    n_accepted: int
    n_examined: int
    next_token: int | None
    n_near_ties: int = 0
    """Rows of this batch that were looked at and are near ties; `coupled` counts them."""
    margins: tuple[float, ...] = field(default=(), compare=False)
    """How firmly each given token was decided (`Choice.margin`), by `coupled`."""


def verify_draft(
    draft: Tokens[int],
    logits: Logits,
    sampler: Sampler,
    line: Tokens[int],
    *,
    verification: Verification = "coupled",
    laws: Tokens[Distribution | None] = (),
) -> Verdict:
    """Accept the part of a draft that leaves the target's law as it is, and say what follows.

    `logits` is `[len(draft) + 1, n_vocab]`, or one row less where no bonus is wanted; `line` is
    every committed token. Each row goes through the target's sampler with the drafted tokens
    before it in the history, so penalties and mask count them.

    `coupled` compares the draft with the target's own choice up to the first miss. The noise of
    that choice depends on the position alone, so the text is that of a run without a draft.
    `rejection` accepts more and keeps the law, not the text of a seed; it needs `laws`, the
    distribution that each token was drawn from, None where it was chosen. At temperature 0 both are
    argmax match.
    """
    recent = _recent(line, sampler)
    history = [*recent, *draft]
    rows = [
        _Row(logits[index], history[: len(recent) + index], len(line) + index)
        for index in range(len(logits))
    ]
    if sampler.is_greedy or verification == "coupled":
        return _match(draft, rows, sampler)
    return _rejection(draft, rows, sampler, _drawn_from(draft, laws))


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
    for index, (drafted, law) in enumerate(zip(draft, drawn_from, strict=True)):
        row = rows[index]
        target = sampler.distribution(row.logits, row.history)
        if not dice.accepts(acceptance(drafted, target, law), row.position):
            correction = dice.draw(residual(target, law), row.position)
            return Verdict(n_accepted=index, n_examined=index + 1, next_token=correction)
    if len(rows) == n_drafted:
        return Verdict(n_drafted, n_drafted, None)
    last = rows[-1]
    bonus = dice.draw(sampler.distribution(last.logits, last.history), last.position)
    return Verdict(n_drafted, n_drafted, bonus)


def _drawn_from(draft: Tokens[int], laws: Tokens[Distribution | None]) -> list[Distribution]:
    """Each token's law; one that its own law does not know counts as chosen."""
    given = laws or (None,) * len(draft)
    return [
        law if law is not None and law.probability(token) > 0.0 else certain(token)
        for token, law in zip(draft, given, strict=True)
    ]


def _recent(line: Tokens[int], sampler: Sampler) -> Tokens[int]:
    """As much of the line as the sampler looks at."""
    window = sampler.history_window
    if window is None:
        return line
    return line[-window:] if window else ()
