"""Medians of paired ratios, how far they can be trusted, and when they decide."""

import random
from collections.abc import Sequence

import pytest

from engine.experiment.gain import (
    N_DECIDING,
    N_LOSS,
    N_MAX,
    Block,
    PairedGain,
    gain_of,
)


def blocks(ratios: Sequence[float]) -> list[Block]:
    """Give blocks without noise in which B is so many times as fast as A."""
    return [Block(ratio, 1.0, 1.0, ratio) for ratio in ratios]


def gain(ratios: Sequence[float]) -> PairedGain:
    found = gain_of(blocks(ratios))
    assert found is not None
    return found


def test_a_block_cancels_a_steady_drift() -> None:
    found = gain_of([Block(1.0, 1.1, 1.2, 1.3)])
    assert found.median == pytest.approx(1.0)
    assert found.noise == pytest.approx(0.18, abs=0.02)
    assert gain_of([]) is None


def test_eight_ratios_reach_from_the_smallest_to_the_largest_and_sixteen_leave_out_two() -> None:
    eight = gain([1 + n / 10 for n in range(8)])
    assert (eight.low, eight.high, eight.n_blocks) == (1.0, 1.7, 8)
    sixteen = gain([1 + n / 10 for n in range(16)])
    assert (sixteen.low, sixteen.high) == (1.2, 2.3)


@pytest.mark.parametrize("n", [8, 12, 16])
def test_the_interval_holds_the_median_ninety_nine_times_of_a_hundred(n: int) -> None:
    rng = random.Random(n)
    drawn = [gain([rng.lognormvariate(0, 0.3) for _ in range(n)]) for _ in range(4000)]
    assert sum(each.low <= 1 <= each.high for each in drawn) / 4000 > 0.985


def test_a_gain_counts_where_every_block_shows_it() -> None:
    assert gain([1.1] * N_DECIDING).is_faster
    assert not gain([1.1] * (N_DECIDING - 1)).is_faster
    assert not gain([1.1] * (N_DECIDING - 1) + [1.01]).is_faster
    assert not gain([1.02] * N_MAX).is_faster


def test_a_gain_below_the_noise_is_none() -> None:
    noisy = gain_of([Block(1.4, 1.1, 1.0, 1.0)] * N_DECIDING)
    assert noisy.low > 1.1
    assert noisy.noise == pytest.approx(0.25, abs=0.02)  # of 40 % and 10 % by turns
    assert not noisy.is_faster
    assert noisy.is_decided


def test_it_is_decided_where_more_blocks_would_change_nothing() -> None:
    assert not gain([0.9] * (N_LOSS - 1)).is_decided
    assert gain([0.9] * N_LOSS).is_decided
    assert not gain([0.9] * N_LOSS + [1.1]).is_decided
    assert gain([0.9] * N_LOSS + [1.0] * (N_DECIDING - N_LOSS)).is_decided
    assert not gain([1.1] * N_DECIDING + [0.9]).is_decided
    assert gain([1.1, 0.9, 1.1, 1.1] * (N_MAX // 4)).is_decided


def test_which_is_faster_is_settled_both_ways() -> None:
    for ratio in (1.1, 1 / 1.1):
        assert not gain([ratio] * (N_DECIDING - 1)).is_settled
        assert gain([ratio] * N_DECIDING).is_settled
    assert gain([0.9] * N_DECIDING).reversed.is_faster
    assert gain([1.0] * N_DECIDING).is_settled
    assert not gain([0.9, *[1.1] * (N_DECIDING - 1)]).is_settled


def test_a_ratio_beyond_what_the_arms_explain_is_cut_and_is_noise() -> None:
    cut = gain_of([Block(1.5, 1.0, 1.0, 1.5, 0.0, 1.1)] * N_DECIDING)
    assert (cut.median, cut.measured) == (1.1, 1.5)
    assert cut.noise == pytest.approx(1.5 / 1.1 - 1)
    assert not cut.is_faster
