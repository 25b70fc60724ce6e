"""What is recommended, and how `auto` stands to what was chosen afterwards."""

import pytest

from app.bench.records import PromptRecord
from app.bench.summary import SetSummary, summarise
from app.bench.verdict import (
    auto_against_best,
    best_fixed,
    overall_of,
    recommend,
    slow_prompts,
)
from tests.app.bench.made_results import record

AUTO, SHORT, LONG = "combined:auto", "lookup:fixed:2", "lookup:fixed:8"
ALL = [AUTO, SHORT, LONG]


def summaries(*sets: dict[str, float], policies: list[str] = ALL) -> tuple[SetSummary, ...]:
    records = [
        record({name: [value] for name, value in means.items()}, set_name=f"set{index}")
        for index, means in enumerate(sets)
    ]
    return summarise(records, policies)


def test_the_best_fixed_length_is_chosen_set_by_set() -> None:
    one, two = summaries({AUTO: 2.0, SHORT: 1.1, LONG: 1.5}, {AUTO: 1.0, SHORT: 0.9, LONG: 0.6})
    assert [best.policy for best in (best_fixed(one), best_fixed(two)) if best] == [LONG, SHORT]


def test_auto_is_set_beside_the_best_fixed_length_prompt_by_prompt() -> None:
    records = [
        record({AUTO: [1.8], SHORT: [1.0], LONG: [2.0]}, prompt="one"),
        record({AUTO: [1.1], SHORT: [1.0], LONG: [1.0]}, prompt="two"),
        record({AUTO: [9.0], SHORT: [1.0], LONG: [1.0]}, prompt="loop", is_loop=True),
    ]
    (summary,) = summarise(records, ALL)
    (comparison,) = auto_against_best(summary)
    assert comparison.best_fixed == LONG
    assert comparison.ratio == pytest.approx((0.9 * 1.1) ** 0.5)
    assert comparison.interval == pytest.approx((0.9, 1.1))


def test_without_a_fixed_policy_there_is_nothing_to_set_auto_beside() -> None:
    (summary,) = summaries({AUTO: 2.0}, policies=[AUTO])
    (comparison,) = auto_against_best(summary)
    assert (comparison.best_fixed, comparison.ratio) == (None, None)


def test_prompts_on_which_auto_loses_are_told_loops_too() -> None:
    records = [
        record({AUTO: [0.94], SHORT: [0.5]}, prompt="slow"),
        record({AUTO: [0.95]}, prompt="just enough"),
        record({AUTO: [0.9]}, prompt="loop", is_loop=True),
    ]
    slow = slow_prompts(summarise(records, ALL))
    assert [(each.policy, each.prompt.prompt) for each in slow] == [(AUTO, "slow"), (AUTO, "loop")]


def test_the_mean_over_sets_weighs_every_set_alike() -> None:
    records = [
        *(record({AUTO: [4.0]}, prompt=str(index), set_name="large") for index in range(9)),
        record({AUTO: [1.0]}, set_name="small"),
    ]
    assert overall_of(summarise(records, [AUTO]), AUTO) == pytest.approx(2.0)


def test_a_set_without_a_number_leaves_no_mean_over_sets() -> None:
    failed = PromptRecord("chat", "one", 0.0, failure="no")
    assert overall_of(summarise([record({AUTO: [2.0]}), failed], [AUTO]), AUTO) is None


def recommended(*sets: dict[str, float]) -> str | None:
    policy = recommend(summaries(*sets), ALL).policy
    return None if policy is None else policy.name


def test_auto_is_recommended_within_three_per_cent_of_the_best() -> None:
    assert recommended({AUTO: 1.46, SHORT: 1.5, LONG: 1.2}) == AUTO
    assert recommended({AUTO: 1.44, SHORT: 1.5, LONG: 1.2}) == SHORT


def test_auto_is_recommended_where_it_costs_nearly_nothing_and_nothing_gains() -> None:
    assert recommended({AUTO: 0.99, SHORT: 0.8, LONG: 0.5}) == AUTO
    assert recommended({AUTO: 0.97, SHORT: 0.8, LONG: 0.5}) is None


def test_a_length_that_costs_on_one_set_is_not_recommended() -> None:
    first = {AUTO: 0.9, SHORT: 1.1, LONG: 3.0}
    assert recommended(first, {AUTO: 1.0, SHORT: 1.0, LONG: 0.97}) == SHORT
    assert recommended({**first, SHORT: 1.0}, {AUTO: 1.0, SHORT: 1.0, LONG: 0.97}) is None


def test_auto_need_not_reach_a_length_that_costs_on_one_set() -> None:
    sets = ({AUTO: 1.2, SHORT: 1.1, LONG: 3.0}, {AUTO: 1.0, SHORT: 1.0, LONG: 0.97})
    assert recommended(*sets) == AUTO


def test_a_gain_within_the_noise_is_none() -> None:
    assert recommended({AUTO: 0.9, SHORT: 1.01, LONG: 0.5}) is None
    assert recommended({AUTO: 0.9, SHORT: 1.03, LONG: 0.5}) == SHORT


def test_without_results_nothing_is_recommended() -> None:
    advice = recommend((), ALL)
    assert advice.policy is None
    assert "no prompt" in advice.reason
