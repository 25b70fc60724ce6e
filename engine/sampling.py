"""From logits to a token: the one place where a distribution is made, and what draws from it.

Drawing `argmax(log p + g)` with Gumbel noise g samples from p. When the noise comes from a counter
instead of a stream, draft and target can share it, and the drawn token depends on nothing but the
seed, the position and the target's distribution: the text is the same with speculation on or off
(Daliri, Musco and Suresh 2024, arXiv 2408.07978).
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.configuration import SamplingSettings, check_settings
from engine.errors import DecodeError, LogitsError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1

ROWS_OF_PEAKS = 64
"""Of so many logits one is compared first in a search for the largest; 16 to 128 take the same."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that can still be drawn and their probabilities, which sum to 1.

    `tokens` is `[k]` int64, `probs` `[k]` float64, in no particular order.
    """

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]

    def probability(self, token: int) -> float:
        """The probability of one token, 0 where it was cut."""
        found = self.probs[self.tokens == token]
        return float(found[0]) if found.size else 0.0

    def probabilities(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of tokens, `[len(tokens)]` float64, 0 for those that were cut."""
        dense = np.zeros(1 + max(self.tokens.max(), tokens.max()))
        dense[self.tokens] = self.probs
        chosen: NDArray[np.float64] = dense[tokens]
        return chosen

    def draw(self, seed: int, position: int) -> int:
        """One token, drawn with the noise of seed and position."""
        if self.tokens.size == 1:
            return int(self.tokens[0])
        return int(self.tokens[int(self.scores(seed, position).argmax())])

    def scores(self, seed: int, position: int) -> NDArray[np.float64]:
        """Log p and the noise of each token together, `[k]`; the largest is drawn."""
        noise = gumbel(seed, position, self.tokens)
        with np.errstate(divide="ignore"):
            scores: NDArray[np.float64] = np.log(self.probs) + noise
        return scores


def certain(token: int) -> Distribution:
    """The law of a token that was not drawn but chosen."""
    return Distribution(np.array([token], dtype=np.int64), np.ones(1))


class _Stream(IntEnum):
    """Which of a round's chances: none may tell anything about another."""

    DRAFT = 1
    ACCEPT = 2
    TARGET = 3


class Dice:
    """What rejection and block verification draw in one round.

    They are exact only if the draft's draws, the acceptance tests and the target's draws are
    independent, and if no round uses chances that an earlier one has seen: block verification may
    refuse a token because of a later one, so that what was drawn for a refused position is no
    longer free. Therefore the seed is forked by stream and by the position where the round starts,
    which never comes twice. The draft model and the verifier each make the dice of a round from
    the same two numbers.
    """

    def __init__(self, seed: int, round_start: int) -> None:
        self._seeds = {stream: fork(seed, stream, round_start) for stream in _Stream}

    def draw_draft(self, distribution: Distribution, position: int) -> int:
        """Draw a token of the draft."""
        return distribution.draw(self._seeds[_Stream.DRAFT], position)

    def accepts(self, probability: float, position: int) -> bool:
        """True with the given probability."""
        return uniform(self._seeds[_Stream.ACCEPT], position) <= probability

    def draw(self, distribution: Distribution, position: int) -> int:
        """Draw the token of the target behind the accepted ones."""
        return distribution.draw(self._seeds[_Stream.TARGET], position)


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """The noise of tokens at a position, `[len(tokens)]` float64.

    The counter is mixed by splitmix64 (Steele, Lea and Flood 2014), first over seed and position,
    then over the token; 53 bits of it become a uniform number inside (0, 1).
    """
    stream = _mix(np.array([(seed * 0x9E3779B97F4A7C15 + position) & _WORD], dtype=np.uint64))
    words = _mix(stream ^ _mix(tokens.astype(np.uint64)))
    return -np.log(-np.log(_unit(words)))


def uniform(seed: int, position: int) -> float:
    """One uniform number inside (0, 1) for a position."""
    word = np.array([(seed * 0x9E3779B97F4A7C15 + position) & _WORD], dtype=np.uint64)
    return float(_unit(_mix(_mix(word)))[0])


def fork(seed: int, *words: int) -> int:
    """A seed of its own for a stream that must share no noise with another."""
    for word in words:
        mixed = _mix(np.array([seed & _WORD], dtype=np.uint64))
        seed = int(_mix(mixed ^ np.uint64(word & _WORD))[0])
    return seed


def _unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Make numbers inside (0, 1) of the upper 53 bits."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


class TokenMask(Protocol):
    """Which tokens may follow, as a grammar says."""

    def __call__(self, history: Tokens[int], /) -> NDArray[np.bool_]:
        """`[n_vocab]` bool, true for each token that may stand behind `history`.

        `history` is the whole line, the prompt included; one token at least must be allowed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The token that a row gives, and how firmly."""

    token: int
    margin: float
    """By how much it leads the next best, in logits; infinite where no other is left.

    The row may be off by less and still give the same token, as long as the same ones pass the
    filters. Above temperature 0 the noise of the position is part of the lead.
    """


class Sampler:
    """Turns logits into a distribution and draws from it by shared noise.

    Order: mask, repetition penalty, then temperature, top-k, top-p, min-p, each on what the one
    before left. At temperature 0 the distribution is a one-hot at the largest penalised logit.
    Drawing is deterministic: it depends on seed, position and distribution (see `distribution`).

    Raises:
        PresetError: a setting outside its range; the message names value and range.
    """

    def __init__(
        self, settings: SamplingSettings, seed: int, *, mask: TokenMask | None = None
    ) -> None:
        check_settings(settings)
        self.settings = settings
        self.seed = seed
        self.mask = mask

    @property
    def is_greedy(self) -> bool:
        return self.settings.temperature == 0.0

    @property
    def history_window(self) -> int | None:
        """How many tokens of the history change the distribution; None is all of them."""
        if self.mask is not None:
            return None
        return self._penalty_window

    def sample(self, logits: NDArray[np.float32], history: Tokens[int], position: int) -> int:
        """The token for `position` from its `[n_vocab]` logits and all tokens before it."""
        if self.is_greedy:
            return self.likeliest(logits, history)
        return self.draw(self.distribution(logits, history), position)

    def likeliest(self, logits: NDArray[np.float32], history: Tokens[int]) -> int:
        """The token of the largest logit that mask and penalty leave.

        Raises:
            LogitsError: the logits are no numbers.
        """
        adjusted = self._adjusted(logits, history)
        token = int(adjusted.argmax())
        _check_number(adjusted[token])
        return token

    def choose(self, logits: NDArray[np.float32], history: Tokens[int], position: int) -> Choice:
        """The token of `sample` and its margin."""
        if self.is_greedy:
            return _best(self._adjusted(logits, history))
        return self.pick(self.distribution(logits, history), position)

    def pick(self, distribution: Distribution, position: int) -> Choice:
        """Draw one token with the noise of the position, and give its margin."""
        best = _best(distribution.scores(self.seed, position))
        token = int(distribution.tokens[best.token])
        return Choice(token, self.settings.temperature * best.margin)

    def draw(self, distribution: Distribution, position: int) -> int:
        """Draw one token with the noise of the position."""
        return self.pick(distribution, position).token

    def dice(self, round_start: int) -> Dice:
        """The chances of the round whose first new token has position `round_start`."""
        return Dice(self.seed, round_start)

    def distribution(self, logits: NDArray[np.float32], history: Tokens[int]) -> Distribution:
        """The distribution behind `history` from `[n_vocab]` logits."""
        adjusted = self._adjusted(logits, history)
        _check_number(adjusted.max())
        if self.is_greedy:
            return certain(int(adjusted.argmax()))
        tokens = _top_k(adjusted, self.settings.top_k)
        if self.mask is not None:
            tokens = tokens[adjusted[tokens] > -np.inf]
        scaled = adjusted[tokens].astype(np.float64) / self.settings.temperature
        probs = np.exp(scaled - scaled.max())
        probs /= probs.sum()
        tokens, probs = _top_p(tokens, probs, self.settings.top_p)
        return _min_p(tokens, probs, self.settings.min_p)

    @property
    def _penalty_window(self) -> int:
        is_off = self.settings.repetition_penalty == 1.0
        return 0 if is_off else self.settings.repetition_window

    def _adjusted(self, logits: NDArray[np.float32], history: Tokens[int]) -> NDArray[np.float32]:
        return self._penalised(self._allowed(logits, history), history)

    def _allowed(self, logits: NDArray[np.float32], history: Tokens[int]) -> NDArray[np.float32]:
        """The logits with minus infinity for each token that the mask forbids."""
        if self.mask is None:
            return logits
        allowed = self.mask(history)[: logits.shape[0]]
        if not allowed.any():
            raise DecodeError("the mask forbids every token, including the end of the reply")
        return np.where(allowed, logits, np.float32(-np.inf))

    def _penalised(self, logits: NDArray[np.float32], history: Tokens[int]) -> NDArray[np.float32]:
        """Weaken the tokens of the window (Keskar et al. 2019, arXiv 1909.05858, section 4.1).

        As usual in this field a negative logit is multiplied, so that both signs get less likely.
        """
        penalty, window = self.settings.repetition_penalty, self._penalty_window
        if window == 0 or not history:
            return logits
        recent = np.unique(np.asarray(history[-window:], dtype=np.int64))
        # Those of images, and those that a draft's smaller vocabulary lacks, have no logit.
        recent = recent[(recent >= 0) & (recent < logits.shape[0])]
        penalised = logits.copy()
        values = penalised[recent]
        penalised[recent] = np.where(values > 0, values / penalty, values * penalty)
        return penalised


def _check_number(largest: np.floating) -> None:
    """Refuse logits by their largest: one that is not a number counts as larger than all others.

    Raises:
        LogitsError: some logit is none, or none is finite.
    """
    if not np.isfinite(largest):
        raise LogitsError(
            f"the model returned a logit of {largest}: the weights of the model or an adapter "
            "are damaged. Reload the model; if that does not help, download the model file "
            "again"
        )


def _best(scores: NDArray[np.floating]) -> Choice:
    """The index of the largest score and its lead; the scores are as before afterwards.

    The best is taken out while the second is looked for: two fast passes and no slices.
    """
    best = int(scores.argmax())
    largest = scores[best]
    _check_number(largest)
    scores[best] = -np.inf
    second = scores.max()
    scores[best] = largest
    return Choice(best, float(largest - second))


def _top_k(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    n = logits.shape[0]
    if k == 0 or k >= n:
        return np.arange(n, dtype=np.int64)
    if n < ROWS_OF_PEAKS * (k + 1):
        return _largest(logits, k)
    candidates = np.flatnonzero(logits >= _under_the_top_k(logits, k))
    return candidates[_largest(logits[candidates], k)]


def _largest(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    n = logits.shape[0]
    return np.argpartition(logits, n - k)[n - k :].astype(np.int64)


def _under_the_top_k(logits: NDArray[np.float32], k: int) -> np.float32:
    """A bound that the k largest logits reach and few others do, in one fast pass.

    The columns of the logits as a matrix have k peaks of at least the k-th largest peak, so the
    k-th largest logit is no smaller.
    """
    n_columns = logits.shape[0] // ROWS_OF_PEAKS
    matrix = logits[: ROWS_OF_PEAKS * n_columns].reshape(ROWS_OF_PEAKS, n_columns)
    bound: np.float32 = np.partition(matrix.max(axis=0), n_columns - k)[n_columns - k]
    return bound


def _top_p(
    tokens: NDArray[np.int64], probs: NDArray[np.float64], p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Keep the fewest likeliest tokens that reach p (Holtzman et al. 2019, arXiv 1904.09751)."""
    if p >= 1.0:
        return tokens, probs
    order = np.argsort(-probs, kind="stable")
    n_kept = int(np.searchsorted(np.cumsum(probs[order]), p)) + 1
    kept = order[:n_kept]
    return tokens[kept], probs[kept] / probs[kept].sum()


def _min_p(tokens: NDArray[np.int64], probs: NDArray[np.float64], p: float) -> Distribution:
    """Keep tokens of at least p times the largest probability (Nguyen et al., 2407.01082)."""
    if p > 0.0:
        kept = probs >= p * probs.max()
        tokens, probs = tokens[kept], probs[kept]
    return Distribution(tokens, probs / probs.sum())
