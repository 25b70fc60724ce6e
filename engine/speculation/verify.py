"""Whether a draft says what the target would have said, and how a draft model draws.

Rejection and block verification take the target's law p and the draft's law q at each drafted
position, after every filter. A token that was chosen and not drawn has a one-hot q (`certain`).

How many rows of a batch come out as each would alone is measured too (`Exactness`). Kernels for
several rows may round otherwise than the kernel for one, and what they write into the cache carries
it on: on llama.cpp's repacked kernels for four rows and more a row decoded alone on such a cache is
as far from plain decoding's as the batch's own (measured on Zen 3 with Q4_K at commit 0c1e57098).
Up to some number of rows, kernels often agree to the bit; drafts of that size leave the text as it
is. How many depends on how much is held: the same commit splits the attention of one row, and of
one row only, from 512 cells on, counted in blocks of 256 (`ggml-cpu/ops.cpp`): behind 256 tokens no
batch is exact there.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

import numpy as np

from engine.backends.base import Logits, Sequence
from engine.configuration import Verification
from engine.sampling import Choice, Distribution, Sampler, certain

NEAR_TIE = 0.1
"""Lead, in logits, under which a row of a batch may say what it would not say alone."""
LADDER = (2, 3, 4, 5, 8, 9, 16, 17)
"""Rows that are tried: kernels change their way at powers of two."""
CELLS = 256
"""llama.cpp counts the cells of a cache in such blocks when it chooses its kernels."""


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
    2408.07978), `match` takes the likeliest token, `rejection` and `block` draw with the dice of
    the round that starts at position `round_start`. The sampler is the target's, so draft and
    target are filtered alike.
    """
    if sampler.is_greedy or verification == "match":
        return DrawnDraft(sampler.likeliest(logits, history), None)
    if verification == "coupled":
        return DrawnDraft(sampler.sample(logits, history, position), None)
    law = sampler.distribution(logits, history)
    return DrawnDraft(sampler.dice(round_start).draw_draft(law, position), law)


def acceptance(token: int, target: Distribution, draft: Distribution) -> float:
    """min(1, p(x)/q(x)) (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1)."""
    return min(1.0, target.probability(token) / draft.probability(token))


def residual(target: Distribution, draft: Distribution, share: float = 1.0) -> Distribution:
    """The law ∝ max(share·p - q, 0), from which the token behind a refusal is drawn.

    `share` is 1 in rejection and the accepted prefix's P in block verification. Where nothing is
    left, which only rounding can bring about, it is p itself.
    """
    left = np.maximum(share * target.probs - draft.probabilities(target.tokens), 0.0)
    mass = left.sum()
    if mass <= 0.0:
        return target
    kept = left > 0.0
    return Distribution(target.tokens[kept], left[kept] / mass)


def block_share(share: float, token: int, target: Distribution, draft: Distribution) -> float:
    """P_i = min(1, P_{i-1}·p_i(x_i)/q_i(x_i)) from P_{i-1}; P_0 is 1.

    Sun et al. 2024, arXiv 2403.10444, algorithm 2.
    """
    return min(1.0, share * target.probability(token) / draft.probability(token))


def block_acceptances(
    shares: Tokens[float], targets: Tokens[Distribution], drafts: Tokens[Distribution]
) -> list[float]:
    """h_i, the probability with which the prefix of length i passes its test, i from 1 on.

    h_i = S_i/(S_i + 1 - P_i) with S_i = Σ max(P_i·p_{i+1} - q_{i+1}, 0), and h_K = P_K; the longest
    prefix that passes is accepted (Sun et al. 2024, equation 4). `shares` are P_0 to P_K; a draft
    may be cut behind its first P of 0, since nothing longer can pass.
    """
    inner = zip(shares[1:-1], targets[1:], drafts[1:], strict=True)
    return [*(_inner_acceptance(*given) for given in inner), shares[-1]]


def _inner_acceptance(share: float, target: Distribution, draft: Distribution) -> float:
    left = np.maximum(share * target.probs - draft.probabilities(target.tokens), 0.0).sum()
    whole = float(left) + 1.0 - share
    # 0/0: draft and target agree wholly here, so the next prefix passes for certain.
    return float(left) / whole if whole > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification.

    `next_token` follows the accepted ones: the correction of the first refuted token, or
    the bonus behind a draft that was accepted whole; None where no row was there for a bonus.
    """

    n_accepted: int
    n_examined: int
    next_token: int | None
    is_open: bool = False
    """Whether the row behind the accepted tokens is a near tie that `settle` must decide."""
    is_redecoded: bool = False
    """Whether `settle` decided it."""
    n_near_ties: int = 0
    """Rows of this batch that were looked at and are near ties; `match` and `coupled` count."""
    margins: tuple[float, ...] = field(default=(), compare=False)
    """How firmly each given token was decided (`Choice.margin`), by `match` and `coupled`."""


def verify_draft(
    draft: Tokens[int],
    logits: Logits,
    sampler: Sampler,
    line: Tokens[int],
    *,
    verification: Verification = "coupled",
    laws: Tokens[Distribution | None] = (),
    strict: bool = False,
) -> Verdict:
    """Accept the part of a draft that leaves the target's law as it is, and say what follows.

    `logits` is `[len(draft) + 1, n_vocab]`, or one row less where no bonus is wanted; `line` is
    every committed token. Each row goes through the target's sampler with the drafted tokens
    before it in the history, so penalties and mask count them.

    `match` and `coupled` compare the draft with the target's own choice up to the first miss. The
    noise of that choice depends on the position alone, so the text is that of a run without a
    draft; the two differ in how the draft model draws. `rejection` and `block` accept more and
    keep the law, not the text of a seed; they need `laws`, the distribution that each token was
    drawn from, None where it was chosen. At temperature 0 all four are argmax match.

    Kernels for several rows round otherwise than those for one, so a near tie may fall the other
    way than in a run without a draft. `strict` leaves such rows open for `settle`; it has no
    meaning for `rejection` and `block`.
    """
    does_compare = compares(verification, sampler)
    if does_compare and not draft:
        own = sampler.choose(logits[0], _recent(line, sampler), len(line))
        return Verdict(0, 0, own.token, margins=(own.margin,))
    rows = _Rows(tuple(draft), logits, sampler, line)
    if does_compare:
        return _match(rows, strict=strict)
    drawn_from = _drawn_from(draft, laws)
    return _rejection(rows, drawn_from) if verification == "rejection" else _block(rows, drawn_from)


def compares(verification: Verification, sampler: Sampler) -> bool:
    """Whether a draft is compared with the target's own choices, so that the text is the seed's."""
    return sampler.is_greedy or verification in ("match", "coupled")


def settle(
    verdict: Verdict, draft: Tokens[int], row: Logits, sampler: Sampler, line: Tokens[int]
) -> Verdict:
    """Decide an open row by the `[n_vocab]` logits that the target gives when it decodes alone.

    `line` is every committed token and the accepted ones of the draft.
    """
    own = sampler.choose(row, _recent(line, sampler), len(line))
    n_accepted = verdict.n_accepted
    decided = replace(
        verdict, is_open=False, is_redecoded=True, margins=(*verdict.margins, own.margin)
    )
    if n_accepted == len(draft):
        return replace(decided, next_token=own.token)
    n_examined = n_accepted + 1
    if own.token != draft[n_accepted]:
        return replace(decided, n_examined=n_examined, next_token=own.token)
    return replace(decided, n_accepted=n_examined, n_examined=n_examined)


class _Rows:
    """The target's logits of one round, each with its history and its position."""

    def __init__(
        self, draft: tuple[int, ...], logits: Logits, sampler: Sampler, line: Tokens[int]
    ) -> None:
        self.draft = draft
        self.start = len(line)
        self.sampler = sampler
        self._logits = logits
        recent = _recent(line, sampler)
        self._history = [*recent, *draft]
        self._n_before = len(recent)

    @property
    def has_bonus(self) -> bool:
        return len(self._logits) > len(self.draft)

    def choice(self, index: int) -> Choice:
        """The token that the target says by itself at this row, and its margin."""
        history = self._history[: self._n_before + index]
        return self.sampler.choose(self._logits[index], history, self.start + index)

    def law(self, index: int) -> Distribution:
        return self.sampler.distribution(self._logits[index], self._seen(index))

    def _seen(self, index: int) -> Tokens[int]:
        return self._history[: self._n_before + index]


def _match(rows: _Rows, *, strict: bool) -> Verdict:
    margins: list[float] = []
    n_drafted = len(rows.draft)
    next_token = None
    for index in range(n_drafted + rows.has_bonus):
        own = rows.choice(index)
        if strict and own.margin < NEAR_TIE:
            return Verdict(index, index, None, True, n_near_ties=1, margins=tuple(margins))
        margins.append(own.margin)
        if index == n_drafted or own.token != rows.draft[index]:
            next_token = own.token
            break
    n_looked_at = len(margins)
    return Verdict(
        n_accepted=n_looked_at - (next_token is not None),
        n_examined=min(n_looked_at, n_drafted),
        next_token=next_token,
        n_near_ties=sum(margin < NEAR_TIE for margin in margins),
        margins=tuple(margins),
    )


def _rejection(rows: _Rows, drawn_from: Tokens[Distribution]) -> Verdict:
    """Leviathan et al. 2023, arXiv 2211.17192, algorithm 1."""
    dice = rows.sampler.dice(rows.start)
    for index, drafted in enumerate(rows.draft):
        target, position = rows.law(index), rows.start + index
        if not dice.accepts(acceptance(drafted, target, drawn_from[index]), position):
            correction = dice.draw(residual(target, drawn_from[index]), position)
            return Verdict(n_accepted=index, n_examined=index + 1, next_token=correction)
    return _all_accepted(rows)


def _block(rows: _Rows, drawn_from: Tokens[Distribution]) -> Verdict:
    """Sun et al. 2024, arXiv 2403.10444, algorithm 2."""
    targets: list[Distribution] = []
    shares = [1.0]
    for drafted, law in zip(rows.draft, drawn_from, strict=True):
        targets.append(rows.law(len(targets)))
        shares.append(block_share(shares[-1], drafted, targets[-1], law))
        if shares[-1] == 0.0:
            break
    passes = block_acceptances(shares, targets, drawn_from[: len(targets)])
    dice = rows.sampler.dice(rows.start)
    n_accepted = 0
    for length in range(len(targets), 0, -1):
        if dice.accepts(passes[length - 1], rows.start + length - 1):
            n_accepted = length
            break
    if n_accepted == len(rows.draft):
        return _all_accepted(rows)
    rest = residual(targets[n_accepted], drawn_from[n_accepted], shares[n_accepted])
    correction = dice.draw(rest, rows.start + n_accepted)
    return Verdict(n_accepted=n_accepted, n_examined=n_accepted + 1, next_token=correction)


def _all_accepted(rows: _Rows) -> Verdict:
    n_drafted = len(rows.draft)
    if not rows.has_bonus:
        return Verdict(n_drafted, n_drafted, None)
    dice = rows.sampler.dice(rows.start)
    bonus = dice.draw(rows.law(n_drafted), rows.start + n_drafted)
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


class Exactness:
    """Exact rows by how much is held, measured behind the line that is drafted for.

    Measured anew where what is held has doubled. No draft reaches into the next block of cells,
    whose kernels may be others.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def measure(self, sequence: Sequence, tokens: Tokens[int], n_rows: int) -> None:
        """Measure where nothing is known of this depth and a batch of `n_rows` fits its block.

        Args:
            sequence: What it holds is as before afterwards, as `exact_rows` says.
            tokens: Any, taken again and again where those of text are fewer than `n_rows`.
            n_rows: Most rows of a batch.

        Raises:
            DecodeAborted: stopped in between; what is held is as before.
            DecodeError: the backend failed.
        """
        held = len(sequence.tokens)
        if _depth(held) not in self._rows and n_rows <= _room(held):
            texts = [token for token in tokens if token >= 0]  # the others are images
            rows = tuple(islice(cycle(texts), n_rows))
            self._rows[_depth(held)] = exact_rows(sequence, rows, n_rows)

    def most_drafted(self, held: int) -> int | None:
        """The longest draft whose batch rounds as plain steps; None where no batch does."""
        known = self._rows.get(_depth(held))
        if known is None:
            return 0
        return None if known == 1 else min(known, _room(held)) - 1


def _depth(held: int) -> int:
    return (held // CELLS).bit_length()


def _room(held: int) -> int:
    return CELLS - held % CELLS


def exact_rows(sequence: Sequence, tokens: Tokens[int], n_max: int) -> int:
    """The most rows, up to `n_max`, of batches that are to the bit what each row is alone.

    Any tokens will do. What was held is held afterwards, so that whatever follows is computed as if
    nothing had been tried; nothing is held where a sliding window has moved on meanwhile, as it may
    where sequences share cells.

    Raises:
        DecodeAborted: stopped in between.
        DecodeError: the backend failed.
    """
    start = len(sequence.tokens)
    try:
        return _exact_rows(sequence, tokens, n_max)
    finally:
        if len(sequence.tokens) > start:
            sequence.crop(start if sequence.can_crop(start) else 0)


def _exact_rows(sequence: Sequence, tokens: Tokens[int], n_max: int) -> int:
    start = len(sequence.tokens)
    alone: list[Logits] = []
    n_exact = 1
    for n_rows in (n for n in LADDER if n <= min(n_max, len(tokens))):
        # What is held is a batch that agreed with plain steps, so plain steps go on behind it.
        alone += [sequence.decode(token).logits[0].copy() for token in tokens[len(alone) : n_rows]]
        if not sequence.can_crop(start):
            break
        sequence.crop(start)
        if not all(map(np.array_equal, sequence.verify(tokens[:n_rows]).logits, alone)):
            break
        n_exact = n_rows
    return n_exact
