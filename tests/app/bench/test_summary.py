"""What runs amount to, and the arithmetic behind it."""

import math
from dataclasses import replace

import pytest

from app.bench.results import BatchCost, PromptRecord
from app.bench.summary import (
    batch_curve,
    bootstrap_interval,
    ends_in_loop,
    exclusion,
    pair_ratios,
    summarise,
)
from tests.app.bench.made_results import record, run

AUTO, FIXED = "combined:auto", "lookup:fixed:4"


def test_a_ratio_is_taken_to_the_plain_run_of_its_pair_and_group() -> None:
    runs = (
        run("plain", 100.0, pair=0, group=0), run(AUTO, 150.0, pair=0, group=0),
        run("plain", 50.0, pair=0, group=1), run(FIXED, 100.0, pair=0, group=1),
        run(AUTO, 30.0, pair=1, group=1), run("plain", 20.0, pair=1, group=1),
        run("plain", 10.0, pair=1, group=0), run(FIXED, 5.0, pair=1, group=0),
    )  # fmt: skip
    one = PromptRecord("grounded", "one", 0.0, runs=runs)
    assert pair_ratios(one, AUTO) == [1.5, 1.5]
    assert pair_ratios(one, FIXED) == [2.0, 0.5]


def test_a_prompt_counts_with_the_median_of_its_pairs_and_a_set_with_their_geometric_mean() -> None:
    records = [
        record({AUTO: [1.0, 9.0, 2.0]}, prompt="one"),
        record({AUTO: [0.5, 0.5, 0.4]}, prompt="two"),
    ]
    (summary,) = summarise(records, [AUTO])
    (policy,) = summary.policies
    assert [each.ratio for each in policy.ratios] == pytest.approx([2.0, 0.5])
    assert policy.mean == pytest.approx(1.0)
    assert policy.worst is not None
    assert policy.worst.prompt == "two"


def test_a_loop_counts_in_the_mean_with_loops_only() -> None:
    records = [
        record({AUTO: [1.2]}, prompt="one"),
        record({AUTO: [4.8]}, prompt="two", is_loop=True),
    ]
    (summary,) = summarise(records, [AUTO])
    (policy,) = summary.policies
    assert policy.mean == pytest.approx(1.2)
    assert policy.mean_of_all == pytest.approx(2.4)
    assert (summary.n_prompts, summary.n_loops) == (2, 1)


def test_a_reply_that_the_model_ended_soon_is_too_short_to_time() -> None:
    assert exclusion(record({AUTO: [1.0]}, n_tokens=15, reason="end")) == "short"
    assert exclusion(record({AUTO: [1.0]}, n_tokens=16, reason="end")) is None
    assert exclusion(record({AUTO: [1.0]}, n_tokens=8, reason="length")) is None


def test_texts_that_part_are_counted_with_the_first_place() -> None:
    one = record({AUTO: [1.0, 1.0, 1.0]})
    places = iter([None, 40, 12])
    runs = tuple(
        each if each.is_plain else replace(each, parts_at=next(places)) for each in one.runs
    )
    (summary,) = summarise([replace(one, runs=runs)], [AUTO])
    policy = summary.policies[0]
    assert (policy.n_same, policy.n_runs, policy.parts_at) == (1, 3, 12)


def test_acceptance_and_tokens_per_round_are_of_all_runs_together() -> None:
    runs = (
        run("plain", 100.0), run(AUTO, 100.0, verified=10, accepted=9),
        run("plain", 100.0, pair=1), run(AUTO, 100.0, pair=1, verified=30, accepted=1),
    )  # fmt: skip
    (summary,) = summarise([PromptRecord("grounded", "one", 0.0, runs=runs)], [AUTO])
    policy = summary.policies[0]
    assert policy.acceptance == pytest.approx(0.25)
    assert policy.tokens_per_round == pytest.approx(2.0)
    assert policy.by_source == {"lookup": (40, 10)}


def test_the_noise_is_what_a_plain_run_differs_from_the_next() -> None:
    runs = (
        run("plain", 100.0, group=0), run(AUTO, 100.0, group=0),
        run("plain", 110.0, group=1), run(FIXED, 100.0, group=1),
        run("plain", 88.0, group=0, pair=1), run("plain", 110.0, group=1, pair=1),
    )  # fmt: skip
    (summary,) = summarise([PromptRecord("grounded", "one", 0.0, runs=runs)], [AUTO, FIXED])
    assert summary.plain_spread == pytest.approx(0.25)  # of 0.1, 0.25 and 0.25


def test_the_curve_is_the_median_over_prompts_in_plain_steps() -> None:
    def costs(*batches: BatchCost) -> PromptRecord:
        return PromptRecord("grounded", "one", 0.0, batches=batches)

    points = batch_curve(
        [
            costs(BatchCost(1, 10, 0.010), BatchCost(2, 5, 0.014)),
            costs(BatchCost(1, 10, 0.010), BatchCost(2, 20, 0.015), BatchCost(9, 7, 0.05)),
        ]
    )
    assert [(point.n_rows, point.n_rounds) for point in points] == [(1, 20), (2, 25)]
    assert [point.steps for point in points] == pytest.approx([1.0, 1.5])


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


def test_a_reply_that_repeats_its_last_tokens_loops() -> None:
    assert ends_in_loop([1, 2, 3, *[7, 8] * 12])
    assert ends_in_loop([5] * 24)
    assert ends_in_loop([1, *range(10, 20), *range(10, 20), *range(10, 20)])


def test_a_short_repetition_or_one_in_the_middle_is_no_loop() -> None:
    assert not ends_in_loop([1, 2, 3, *[7, 8] * 11])
    assert not ends_in_loop([*[7, 8] * 40, 9])
    assert not ends_in_loop([*range(20), *range(20), 1])
    assert not ends_in_loop(list(range(100)))
    assert not ends_in_loop([])
