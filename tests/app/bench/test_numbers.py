"""The arithmetic of the results against cases worked out by hand."""

import math

import pytest

from app.bench.numbers import bootstrap_interval, geometric_mean, loops, median, parts_at


def test_a_gain_and_its_inverse_cancel_in_the_mean() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 2.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert median([]) is None


def test_the_interval_of_equal_ratios_is_that_ratio() -> None:
    interval = bootstrap_interval([1.25] * 5)
    assert interval == pytest.approx((1.25, 1.25))


def test_one_prompt_has_no_interval() -> None:
    assert bootstrap_interval([1.5]) is None


def test_the_interval_of_two_prompts_spans_from_one_to_the_other() -> None:
    # Both draws are the smaller one with probability 1/4, so the 2.5 % point is the smaller one.
    assert bootstrap_interval([1.0, 4.0]) == pytest.approx((1.0, 4.0))


def test_the_interval_is_near_the_normal_one_of_many_prompts() -> None:
    ratios = [math.exp(0.1 * (index % 21 - 10) / 10) for index in range(210)]
    interval = bootstrap_interval(ratios)
    assert interval is not None
    deviation = 0.1 * math.sqrt(sum((k / 10) ** 2 for k in range(-10, 11)) / 21)
    half = 1.96 * deviation / math.sqrt(210)
    assert math.log(interval[0]) == pytest.approx(-half, rel=0.15)
    assert math.log(interval[1]) == pytest.approx(half, rel=0.15)


def test_the_interval_is_the_same_each_time() -> None:
    assert bootstrap_interval([0.9, 1.3, 1.1]) == bootstrap_interval([0.9, 1.3, 1.1])


@pytest.mark.parametrize(
    ("plain", "other", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2, 3], [1, 2], 2),
        ([], [5], 0),
        ([], [], None),
    ],
)
def test_replies_part_at_the_first_token_that_differs(
    plain: list[int], other: list[int], expected: int | None
) -> None:
    assert parts_at(plain, other) == expected


def test_a_reply_that_repeats_its_last_tokens_loops() -> None:
    assert loops([1, 2, 3, *[7, 8] * 12])
    assert loops([5] * 24)
    assert loops([1, *range(10, 20), *range(10, 20), *range(10, 20)])


def test_a_short_repetition_or_one_in_the_middle_is_no_loop() -> None:
    assert not loops([1, 2, 3, *[7, 8] * 11])
    assert not loops([*[7, 8] * 40, 9])
    assert not loops([*range(20), *range(20), 1])
    assert not loops(list(range(100)))
    assert not loops([])
