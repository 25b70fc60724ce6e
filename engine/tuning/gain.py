"""How much quicker one of two is, from times that were taken side by side.

Times are taken in blocks of four, A B B A, so that a machine that grows slower or faster at a
steady rate favours neither. A block gives one ratio; the ratios of several give a median and how
far it can be trusted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Annotated, TypeVar

from engine.configuration import Bounds

Name = TypeVar("Name", bound=str)
CONFIDENCE = 0.95
N_DECIDING = 6
"""Fewest blocks that decide: the range of six ratios holds their median 97 times of 100."""

MOST_SECONDS = 1e6
Seconds = Annotated[float, Bounds(gt=0, lt=MOST_SECONDS)]
Block = tuple[Seconds, Seconds, Seconds, Seconds]
"""Seconds a token, taken in this order: A, B, B, A."""


@dataclass(frozen=True, slots=True)
class PairedGain:
    """How many times as fast B is as A."""

    median: float
    low: float
    """Lower end of the interval that holds the median in 95 of 100 cases, with `N_DECIDING` blocks
    or more; of fewer, their smallest ratio."""
    high: float
    n_blocks: int

    @property
    def noise(self) -> float:
        """How far the interval reaches from 1 as a factor less 1; of two equals it is all noise."""
        return max(self.high, 1 / self.low) - 1

    def is_clear(self, least: float) -> bool:
        """Whether B is at least `least` times as fast, and every doubt leaves it quicker."""
        return self.n_blocks >= N_DECIDING and self.low > 1 and self.median >= least


def gain_of(ratios: Sequence[float]) -> PairedGain | None:
    """The median of ratios with its interval; None of none.

    The interval needs no law of the noise: ranks counted from both ends (W. R. Thompson 1936, The
    Annals of Mathematical Statistics 7(3)).
    """
    if not ratios:
        return None
    ranked = sorted(ratios)
    rank = _rank(len(ranked))
    return PairedGain(median(ranked), ranked[rank - 1], ranked[-rank], len(ranked))


def block_ratio(block: Block) -> float:
    """How many times as fast B was in a block."""
    return (block[0] + block[3]) / (block[1] + block[2])


def joint_ratios(
    blocks: Mapping[Name, Sequence[Block]], n_tokens: Mapping[Name, float]
) -> list[float]:
    """The ratios of whole turns: so many tokens of each workload.

    Args:
        blocks: Of each workload; the first ones of all make the first ratio, and so on.
        n_tokens: Tokens of each workload in a turn.
    """
    ratios = []
    for parts in zip(*(blocks[name] for name in blocks), strict=False):
        weights = [n_tokens[name] for name in blocks]
        a = sum(w * (each[0] + each[3]) for w, each in zip(weights, parts, strict=True))
        b = sum(w * (each[1] + each[2]) for w, each in zip(weights, parts, strict=True))
        ratios.append(a / b)
    return ratios


def agree(one: PairedGain, other: PairedGain) -> bool:
    """Whether two measurements of the same can both be right: their intervals meet."""
    return one.low <= other.high and other.low <= one.high


def _rank(n: int) -> int:
    """From which ratio of either end on the interval begins, 1 is the outermost."""
    rank, tail = 1, 0.0
    while rank < n / 2:
        tail += comb(n, rank) / 2**n
        if 2 * (tail + 1 / 2**n) > 1 - CONFIDENCE:
            break
        rank += 1
    return rank
