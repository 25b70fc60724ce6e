"""How many times as fast one of two is, from runs that were timed side by side.

Runs are taken in blocks of four, A B B A, so that a machine that grows slower or faster at a steady
rate favours neither. A block gives one ratio; the ratios of several give a median, how far it can
be trusted, and how unlike two runs of one thing are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, exp, log
from statistics import median

CONFIDENCE = 0.99
N_FIRST, N_DECIDING, N_MOST = 3, 6, 16
"""Blocks that show a loss, blocks that show a gain or none, and blocks after which nothing is
measured again."""
WORTH = 1.03
"""Least gain that counts: nobody notices a smaller one."""

Block = tuple[float, float, float, float]
"""Seconds a token, taken in this order: A, B, B, A."""


@dataclass(frozen=True, slots=True)
class PairedGain:
    """How many times as fast B is as A."""

    median: float
    low: float
    """Lower end of the interval that holds the median in 99 of 100 cases; of less than eight blocks
    their smallest ratio."""
    high: float
    n_blocks: int
    noise: float
    """How unlike two runs of one side are, the median of all blocks: 0.1 is a tenth."""

    @property
    def least(self) -> float:
        """The gain from which B counts as faster: worth it, and more than the noise."""
        return max(WORTH, 1 + self.noise)

    @property
    def is_faster(self) -> bool:
        """Whether B is faster beyond the noise; with fewer blocks than `N_DECIDING`, unknown.

        Either the whole interval says so, or after the last block its median.
        """
        if self.n_blocks < N_MOST:
            return self.n_blocks >= N_DECIDING and self.low >= self.least
        return self.low > 1 and self.median >= self.least

    @property
    def is_slower(self) -> bool:
        """Whether A was faster in all that counts."""
        return self.n_blocks >= N_FIRST and self.high < 1

    @property
    def is_decided(self) -> bool:
        """Whether more blocks would change nothing."""
        is_none = self.n_blocks >= N_DECIDING and self.median < self.least
        return self.is_slower or self.is_faster or is_none or self.n_blocks >= N_MOST


def take_block(run_a: Callable[[], float], run_b: Callable[[], float]) -> Block:
    """Time four runs, each of which returns its seconds a token."""
    first, second = run_a(), run_b()
    third, fourth = run_b(), run_a()
    return first, second, third, fourth


def gain_of(blocks: Sequence[Block]) -> PairedGain | None:
    """The median of the blocks' ratios with its interval; None of no block.

    The interval assumes nothing of the noise: ranks counted from both ends (W. R. Thompson 1936,
    The Annals of Mathematical Statistics 7(3)).
    """
    if not blocks:
        return None
    ranked = sorted((a + d) / (b + c) for a, b, c, d in blocks)
    rank = _rank(len(ranked))
    spreads = [abs(log(x / y)) for a, b, c, d in blocks for x, y in ((a, d), (b, c))]
    noise = exp(median(spreads)) - 1
    return PairedGain(median(ranked), ranked[rank - 1], ranked[-rank], len(ranked), noise)


def _rank(n: int) -> int:
    """From which ratio of either end on the interval begins, 1 is the outermost."""
    rank, tail = 1, 0.0
    while rank < n / 2:
        tail += comb(n, rank) / 2**n
        if 2 * (tail + 1 / 2**n) > 1 - CONFIDENCE:
            break
        rank += 1
    return rank
