"""A probability law over the few tokens that can still be drawn."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.sampling.noise import gumbel


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that can still be drawn and their probabilities, which sum to 1.

    `tokens` is `[k]` int64, `probs` `[k]` float64, in no particular order.
    """

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]

    def probability(self, token: int) -> float:
        """Give the probability of one token, 0 where it was cut."""
        found = self.probs[self.tokens == token]
        return float(found[0]) if found.size else 0.0

    def probabilities(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give the probabilities of tokens, `[len(tokens)]` float64, 0 for those that were cut."""
        dense = np.zeros(1 + max(self.tokens.max(), tokens.max()))
        dense[self.tokens] = self.probs
        chosen: NDArray[np.float64] = dense[tokens]
        return chosen

    def draw(self, seed: int, position: int) -> int:
        """Draw one token with the noise of seed and position (see `noise`)."""
        if self.tokens.size == 1:
            return int(self.tokens[0])
        return int(self.tokens[int(self.scores(seed, position).argmax())])

    def scores(self, seed: int, position: int) -> NDArray[np.float64]:
        """Give log p and the noise of each token together, `[k]`; the largest is drawn."""
        noise = gumbel(seed, position, self.tokens)
        with np.errstate(divide="ignore"):
            scores: NDArray[np.float64] = np.log(self.probs) + noise
        return scores


def certain(token: int) -> Distribution:
    """Give the law of a token that was not drawn but chosen."""
    return Distribution(np.array([token], dtype=np.int64), np.ones(1))
