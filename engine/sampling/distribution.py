"""A probability law over the few tokens that can still be drawn, and the noise that draws from it.

Drawing `argmax(log p + g)` with Gumbel noise g samples from p. When the noise comes from a counter
instead of a stream, draft and target can share it, and the drawn token depends on nothing but the
seed, the position and the target's distribution: the text is the same with speculation on or off
(Daliri, Musco and Suresh 2024, arXiv 2408.07978).
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


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
        """Say yes with the given probability."""
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
