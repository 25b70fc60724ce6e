"""Medians of paired ratios, and how far they can be trusted."""

import random

import pytest

from engine.tuning.gain import PairedGain, agree, block_ratio, gain_of, joint_ratios


def test_a_block_cancels_a_steady_drift() -> None:
    assert block_ratio((1.0, 1.1, 1.2, 1.3)) == pytest.approx(1.0)
    assert block_ratio((2.0, 1.0, 1.0, 2.0)) == 2.0


def test_six_ratios_reach_from_the_smallest_to_the_largest_and_nine_leave_both_out() -> None:
    six = gain_of([1.2, 1.0, 1.1, 1.3, 1.05, 1.15])
    assert six == PairedGain(1.125, 1.0, 1.3, 6)
    nine = gain_of([1 + n / 10 for n in range(9)])
    assert nine is not None
    assert (nine.low, nine.high) == (1.1, 1.7)
    assert gain_of([]) is None


@pytest.mark.parametrize("n", [6, 9, 12])
def test_the_interval_holds_the_median_nineteen_times_of_twenty(n: int) -> None:
    rng = random.Random(n)
    drawn = (gain_of([rng.lognormvariate(0, 0.3) for _ in range(n)]) for _ in range(4000))
    n_held = sum(gain is not None and gain.low <= 1 <= gain.high for gain in drawn)
    assert n_held / 4000 > 0.94


def test_a_turn_weighs_each_workload_by_its_tokens() -> None:
    blocks = {"near": [(1.0, 0.5, 0.5, 1.0)], "prompt": [(1.0, 1.0, 1.0, 1.0)] * 2}
    assert joint_ratios(blocks, {"near": 1, "prompt": 1}) == [pytest.approx(4 / 3)]
    assert joint_ratios(blocks, {"near": 1, "prompt": 0}) == [2.0]
    assert joint_ratios({"near": [], "prompt": blocks["prompt"]}, {"near": 1, "prompt": 1}) == []


def test_a_gain_is_clear_with_six_blocks_that_all_agree() -> None:
    assert PairedGain(1.1, 1.02, 1.2, 6).is_clear(1.05)
    assert not PairedGain(1.1, 1.02, 1.2, 5).is_clear(1.05)
    assert not PairedGain(1.1, 0.99, 1.2, 6).is_clear(1.05)
    assert not PairedGain(1.04, 1.02, 1.2, 6).is_clear(1.05)


def test_noise_is_how_far_two_equals_are_from_one() -> None:
    assert PairedGain(1.0, 0.8, 1.1, 6).noise == pytest.approx(0.25)
    assert agree(PairedGain(1.1, 1.0, 1.2, 6), PairedGain(1.3, 1.2, 1.4, 6))
    assert not agree(PairedGain(1.1, 1.0, 1.15, 6), PairedGain(1.3, 1.2, 1.4, 6))
