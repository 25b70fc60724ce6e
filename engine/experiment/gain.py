"""Speed of arm B relative to arm A, from runs that were timed in turns.

Runs come in blocks of four, A B B A, so that a machine that slows down at a steady rate favours
neither. A block gives one ratio. Several ratios give a median, an interval around it, and the noise
between two runs of the same arm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb, exp, inf, log
from statistics import median
from typing import NamedTuple, TypeVar

T = TypeVar("T")
ORDER = (0, 1, 1, 0)
"""Order of a block's four runs: 0 is arm A, 1 is arm B."""
CONFIDENCE = 0.99
N_LOSS, N_DECIDING, N_MAX = 3, 6, 16
"""Blocks that show a loss, blocks that show a gain or none, and blocks after which no more are
measured."""
MIN_GAIN = 1.03
"""Smallest gain that counts; users do not notice smaller ones."""


class Block(NamedTuple):
    """Seconds per token of four runs in this order: A, B, B, A."""

    a_first: float
    b_first: float
    b_last: float
    a_last: float
    low: float = 0.0
    high: float = inf
    """Smallest and largest ratio that are possible, for example because of tokens per round."""

    @property
    def measured(self) -> float:
        """Speed of B over that of A."""
        return (self.a_first + self.a_last) / (self.b_first + self.b_last)

    @property
    def ratio(self) -> float:
        """Measured ratio of the speeds, limited to the range from `low` to `high`."""
        return min(max(self.measured, self.low), self.high)


@dataclass(frozen=True, slots=True)
class PairedGain:
    """Speed of arm B relative to arm A."""

    median: float
    low: float
    """Lower end of the 99 % interval of the median; with fewer than eight blocks, the smallest
    ratio."""
    high: float
    n_blocks: int
    noise: float
    """Relative difference of two runs of one arm, the median of all blocks: 0.1 is 10 %."""
    measured: float
    """Median of the measured ratios, without limits."""

    @property
    def least(self) -> float:
        """Gain from which B counts as faster: noticeable, and more than the noise."""
        return max(MIN_GAIN, 1 + self.noise)

    @property
    def reversed(self) -> "PairedGain":
        """Speed of arm A relative to arm B."""
        return PairedGain(
            1 / self.median, 1 / self.high, 1 / self.low, self.n_blocks, self.noise,
            1 / self.measured,
        )  # fmt: skip

    @property
    def is_faster(self) -> bool:
        """Whether B is faster beyond the noise; False too while blocks are too few to know.

        The whole interval has to be above that gain, or after `N_MAX` blocks the median.
        """
        if self.n_blocks < N_MAX:
            return self.n_blocks >= N_DECIDING and self.low >= self.least
        return self.low > 1 and self.median >= self.least

    @property
    def is_slower(self) -> bool:
        """Whether A was faster in every block, and in enough of them to give B up."""
        return self.n_blocks >= N_LOSS and self.high < 1

    @property
    def is_decided(self) -> bool:
        """Whether more blocks cannot change if B counts as faster."""
        is_none = self.n_blocks >= N_DECIDING and self.median < self.least
        return self.is_slower or self.is_faster or is_none or self.n_blocks >= N_MAX

    @property
    def is_settled(self) -> bool:
        """Whether no more blocks are needed: one arm is faster, or neither is."""
        other = self.reversed
        return (
            self.is_faster
            or other.is_faster
            or (self.n_blocks >= N_DECIDING and self.is_decided and other.is_decided)
        )


def row_of(plain: T, others: Iterable[T]) -> list[T]:
    """Order of runs that compares plain with each other arm; blocks share plain runs."""
    return [plain, *((plain, other)[index] for other in others for index in ORDER[1:])]


def gain_of(blocks: Sequence[Block]) -> PairedGain | None:
    """Median of the blocks' ratios with its interval; None without blocks.

    The part of a ratio beyond its limits counts as noise.
    """
    if not blocks:
        return None
    ratios = [block.ratio for block in blocks]
    spreads = [
        abs(log(one / other))
        for block in blocks
        for one, other in ((block.a_first, block.a_last), (block.b_first, block.b_last))
    ]
    unexplained = [abs(log(block.measured / block.ratio)) for block in blocks]
    noise = exp(max(median(spreads), median(unexplained))) - 1
    measured = median(block.measured for block in blocks)
    return PairedGain(median(ratios), *median_interval(ratios), len(ratios), noise, measured)


def median_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 99 % interval of the median; of fewer than eight ratios, the smallest and the largest.

    It assumes nothing about the distribution: ranks counted from both ends (W. R. Thompson 1936,
    The Annals of Mathematical Statistics 7(3)).
    """
    ranked = sorted(ratios)
    rank = _rank(len(ranked))
    return ranked[rank - 1], ranked[-rank]


def _rank(n: int) -> int:
    """Rank from either end at which the interval begins; 1 is the outermost ratio."""
    rank, tail = 1, 0.0
    while rank < n / 2:
        tail += comb(n, rank) / 2**n
        if 2 * (tail + 1 / 2**n) > 1 - CONFIDENCE:
            break
        rank += 1
    return rank
