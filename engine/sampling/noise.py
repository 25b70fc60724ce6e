"""Gumbel noise that depends on seed, position and token only.

Drawing `argmax(log p + g)` with Gumbel noise g samples from p. When the noise comes from a counter
instead of a stream, draft and target can share it, and the drawn token depends on nothing but the
seed, the position and the target's distribution: the text is the same with speculation on or off
(Daliri, Musco and Suresh 2024, arXiv 2408.07978).
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give the noise of tokens at a position, `[len(tokens)]` float64.

    The counter is mixed by splitmix64 (Steele, Lea and Flood 2014), first over seed and position,
    then over the token; 53 bits of it become a uniform number inside (0, 1).
    """
    stream = _mix(np.array([(seed * 0x9E3779B97F4A7C15 + position) & _WORD], dtype=np.uint64))
    words = _mix(stream ^ _mix(tokens.astype(np.uint64)))
    return -np.log(-np.log(_unit(words)))


def uniform(seed: int, position: int) -> float:
    """Give one uniform number inside (0, 1) for a position."""
    word = np.array([(seed * 0x9E3779B97F4A7C15 + position) & _WORD], dtype=np.uint64)
    return float(_unit(_mix(_mix(word)))[0])


def fork(seed: int, *words: int) -> int:
    """Give a seed of its own to a stream that must share no noise with another."""
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
