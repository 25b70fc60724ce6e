"""Sampling: logits to a distribution, and draws from it.

Drawing `argmax(log p + g)` with Gumbel noise g samples from p. With counter-based noise, draft and
target share it, and the token depends only on the seed, the position and the target's
distribution: the text is the same with speculation on or off (Daliri, Musco and Suresh 2024,
arXiv 2408.07978).
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
"""Rows of the matrix whose column maxima bound the top k; 16 to 128 take the same time."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that can still be drawn and their probabilities, which sum to 1.

    `tokens` is `[k]` int64, `probs` `[k]` float64, in no particular order.
    """

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]

    def probability(self, token: int) -> float:
        """The probability of one token; 0 if it was filtered out."""
        found = self.probs[self.tokens == token]
        return float(found[0]) if found.size else 0.0

    def probabilities(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of tokens, `[len(tokens)]` float64; 0 for those filtered out."""
        dense = np.zeros(1 + max(self.tokens.max(), tokens.max()))
        dense[self.tokens] = self.probs
        chosen: NDArray[np.float64] = dense[tokens]
        return chosen

    def draw(self, seed: int, position: int) -> int:
        """Draw one token with the noise of seed and position."""
        if self.tokens.size == 1:
            return int(self.tokens[0])
        return int(self.tokens[int(self.scores(seed, position).argmax())])

    def scores(self, seed: int, position: int) -> NDArray[np.float64]:
        """Log probability plus noise of each token, `[k]` float64; the largest is drawn."""
        noise = gumbel(seed, position, self.tokens)
        with np.errstate(divide="ignore"):
            scores: NDArray[np.float64] = np.log(self.probs) + noise
        return scores


def certain(token: int) -> Distribution:
    """The distribution with probability 1 for one token."""
    return Distribution(np.array([token], dtype=np.int64), np.ones(1))


class _Stream(IntEnum):
    """Independent random streams of a round."""

    DRAFT = 1
    ACCEPT = 2
    TARGET = 3


class Dice:
    """Random numbers of rejection in one round.

    It is exact only if the draft's draws, the acceptance tests and the target's draws are
    independent and no round reuses an earlier round's numbers. Therefore the seed is forked by
    stream and by the start position of the round, which is unique. The draft model and the
    verifier create the same dice from these two numbers.
    """

    def __init__(self, seed: int, round_start: int) -> None:
        self._seeds = {stream: fork(seed, stream, round_start) for stream in _Stream}

    def draw_draft(self, distribution: Distribution, position: int) -> int:
        """Draw a token of the draft."""
        return distribution.draw(self._seeds[_Stream.DRAFT], position)

    def accepts(self, probability: float, position: int) -> bool:
        """Whether to accept, true with the given probability."""
        return uniform(self._seeds[_Stream.ACCEPT], position) <= probability

    def draw(self, distribution: Distribution, position: int) -> int:
        """Draw the target's token after the accepted ones."""
        return distribution.draw(self._seeds[_Stream.TARGET], position)


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise of tokens at a position, `[len(tokens)]` float64.

    splitmix64 (Steele, Lea and Flood 2014) hashes seed and position, then the token; 53 bits of the
    result become a uniform number inside (0, 1).
    """
    stream = _mix(np.array([(seed * 0x9E3779B97F4A7C15 + position) & _WORD], dtype=np.uint64))
    words = _mix(stream ^ _mix(tokens.astype(np.uint64)))
    return -np.log(-np.log(_unit(words)))


def uniform(seed: int, position: int) -> float:
    """One uniform number inside (0, 1) for a position."""
    word = np.array([(seed * 0x9E3779B97F4A7C15 + position) & _WORD], dtype=np.uint64)
    return float(_unit(_mix(_mix(word)))[0])


def fork(seed: int, *words: int) -> int:
    """Derive an independent seed for a stream."""
    for word in words:
        mixed = _mix(np.array([seed & _WORD], dtype=np.uint64))
        seed = int(_mix(mixed ^ np.uint64(word & _WORD))[0])
    return seed


def _unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert the upper 53 bits to numbers inside (0, 1)."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


class TokenMask(Protocol):
    """The tokens that a grammar allows next."""

    def __call__(self, history: Tokens[int], /) -> NDArray[np.bool_]:
        """`[n_vocab]` bool, true for each token allowed after `history`; at least one is.

        `history` is the whole sequence, including the prompt.
        """


@dataclass(frozen=True, slots=True)
class Choice:
    """The token chosen from a row and its margin."""

    token: int
    margin: float
    """Lead over the second best token in logits; infinite if there is no other.

    An error of the logits below the margin does not change the token if the same tokens pass the
    filters. Above temperature 0 the lead includes the noise of the position.
    """


class Sampler:
    """Converts logits to a distribution and draws from it with shared noise.

    Order: mask, repetition penalty, temperature, top-k, top-p, min-p, each applied to the previous
    result. At temperature 0 the distribution is a one-hot at the largest penalised logit. Draws
    are deterministic: they depend on seed, position and distribution.

    Raises:
        PresetError: a setting is outside its range; the message has value and range.
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
        """Number of last history tokens that affect the distribution; None is all."""
        if self.mask is not None:
            return None
        return self._penalty_window

    def sample(self, logits: NDArray[np.float32], history: Tokens[int], position: int) -> int:
        """Sample the token at `position` from `[n_vocab]` logits and all tokens before it."""
        if self.is_greedy:
            return self.likeliest(logits, history)
        return self.pick(self.distribution(logits, history), position).token

    def likeliest(self, logits: NDArray[np.float32], history: Tokens[int]) -> int:
        """The token with the largest logit after mask and penalty.

        Raises:
            LogitsError: the logits are NaN or infinite.
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
        """Draw one token with the noise of the position; return it with its margin."""
        best = _best(distribution.scores(self.seed, position))
        token = int(distribution.tokens[best.token])
        return Choice(token, self.settings.temperature * best.margin)

    def dice(self, round_start: int) -> Dice:
        """Random numbers of the round whose first new token has position `round_start`."""
        return Dice(self.seed, round_start)

    def distribution(self, logits: NDArray[np.float32], history: Tokens[int]) -> Distribution:
        """The distribution after `history` from `[n_vocab]` logits."""
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
        """The logits with forbidden tokens at minus infinity and recent ones penalised."""
        if self.mask is not None:
            allowed = self.mask(history)[: logits.shape[0]]
            if not allowed.any():
                raise DecodeError("the token mask forbids every token, including the end token")
            logits = np.where(allowed, logits, np.float32(-np.inf))
        return self._penalised(logits, history)

    def _penalised(self, logits: NDArray[np.float32], history: Tokens[int]) -> NDArray[np.float32]:
        """Penalise the tokens of the window (Keskar et al. 2019, arXiv 1909.05858, section 4.1).

        As usual, a negative logit is multiplied, so that tokens of either sign get less likely.
        """
        penalty, window = self.settings.repetition_penalty, self._penalty_window
        if window == 0 or not history:
            return logits
        recent = np.unique(np.asarray(history[-window:], dtype=np.int64))
        # Image tokens and tokens missing in a draft model's smaller vocabulary have no logit.
        recent = recent[(recent >= 0) & (recent < logits.shape[0])]
        penalised = logits.copy()
        values = penalised[recent]
        penalised[recent] = np.where(values > 0, values / penalty, values * penalty)
        return penalised


def _check_number(largest: np.floating) -> None:
    """Check logits by their largest value, which is NaN if any logit is NaN.

    Raises:
        LogitsError: a logit is NaN, or the largest is infinite.
    """
    if not np.isfinite(largest):
        raise LogitsError(
            f"the model returned a logit of {largest}: the weights of the model or an adapter "
            "are damaged. Reload the model; if that does not help, download the model file again"
        )


def _best(scores: NDArray[np.floating]) -> Choice:
    """Index of the largest score and its lead.

    Masks the best score during the search for the second, then restores it: two passes, no copy.
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
    """A lower bound of the k largest logits that few others reach, in one pass.

    Reshape the logits to a matrix: k columns have a maximum of at least the k-th largest column
    maximum, so the k-th largest logit is not smaller than that.
    """
    n_columns = logits.shape[0] // ROWS_OF_PEAKS
    matrix = logits[: ROWS_OF_PEAKS * n_columns].reshape(ROWS_OF_PEAKS, n_columns)
    bound: np.float32 = np.partition(matrix.max(axis=0), n_columns - k)[n_columns - k]
    return bound


def _top_p(
    tokens: NDArray[np.int64], probs: NDArray[np.float64], p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Keep the fewest top tokens that reach p (Holtzman et al. 2019, arXiv 1904.09751)."""
    if p >= 1.0:
        return tokens, probs
    order = np.argsort(-probs, kind="stable")
    n_top = int(np.searchsorted(np.cumsum(probs[order]), p)) + 1
    top = order[:n_top]
    return tokens[top], probs[top] / probs[top].sum()


def _min_p(tokens: NDArray[np.int64], probs: NDArray[np.float64], p: float) -> Distribution:
    """Keep tokens of at least p times the largest probability (Nguyen et al., 2407.01082)."""
    if p > 0.0:
        is_likely = probs >= p * probs.max()
        tokens, probs = tokens[is_likely], probs[is_likely]
    return Distribution(tokens, probs / probs.sum())
