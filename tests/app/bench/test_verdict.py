"""What is recommended, and how `auto` stands to what was chosen afterwards."""

from dataclasses import replace

import pytest

from app.bench.results import PromptRecord
from app.bench.summary import SetSummary, summarise
from app.bench.verdict import auto_against_best, best_fixed, overall_of, recommend, slow_prompts
from tests.app.bench.made_results import record

AUTO, SHORT, LONG = "combined:auto", "lookup:fixed:2", "lookup:fixed:8"
ALL = [AUTO, SHORT, LONG]


def summaries(*sets: dict[str, float], policies: list[str] = ALL) -> tuple[SetSummary, ...]:
    records = [
        record({name: [value] * 2 for name, value in means.items()}, set_name=f"set{index}")
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


def test_a_recommendation_from_one_prompt_a_set_says_so() -> None:
    few = "one prompt per set is little evidence"
    assert few in recommend(summaries({AUTO: 2.0}, {AUTO: 1.5}), ALL).reason
    more = summarise([record({AUTO: [1.8] * 2}, prompt=name) for name in ("one", "two")], ALL)
    assert few not in recommend(more, ALL).reason


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


def test_a_set_in_which_every_reply_loops_does_not_count() -> None:
    looped = record({AUTO: [0.5] * 2}, set_name="loops", is_loop=True)
    made = summarise([record({AUTO: [1.7] * 2}), looped], [AUTO])
    assert overall_of(made, AUTO) == pytest.approx(1.7)
    assert recommend(made, [AUTO]).name == AUTO


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([(1.46, 1.5, 1.2)], AUTO),
        ([(1.44, 1.5, 1.2)], SHORT),
        ([(0.99, 0.8, 0.5)], AUTO),
        ([(0.97, 0.8, 0.5)], None),
        ([(0.9, 1.1, 3.0), (1.0, 1.0, 0.97)], SHORT),
        ([(0.9, 1.0, 3.0), (1.0, 1.0, 0.97)], None),
        ([(1.2, 1.1, 3.0), (1.0, 1.0, 0.97)], AUTO),
        ([(0.9, 1.01, 0.5)], None),
        ([(0.9, 1.03, 0.5)], SHORT),
    ],
    ids=[
        "auto within 3 % of the best", "auto further away", "auto costs nearly nothing",
        "auto costs", "a length that costs nowhere", "no length without a cost",
        "auto beside a length that costs", "a gain within the noise", "a gain beyond the noise",
    ],
)  # fmt: skip
def test_what_is_recommended_gains_and_costs_on_no_set(
    sets: list[tuple[float, float, float]], expected: str | None
) -> None:
    found = recommend(summaries(*(dict(zip(ALL, means, strict=True)) for means in sets)), ALL)
    assert (None if found.policy is None else found.policy.name) == expected


def test_without_results_nothing_is_recommended() -> None:
    advice = recommend((), ALL)
    assert advice.policy is None
    assert advice.is_open
    assert "no prompt" in advice.reason


def undrafted(ratios: dict[str, float], **what: str) -> PromptRecord:
    """Give a record in which no policy drafted a token: all of them decoded plainly."""
    made = record({name: [value] * 2 for name, value in ratios.items()}, **what)  # type: ignore[arg-type]
    runs = (replace(run, n_verified=0, n_accepted=0, n_rounds=64) for run in made.runs)
    return replace(made, runs=tuple(runs))


@pytest.mark.parametrize("ratio", [0.619, 1.0, 1.48])
def test_where_nothing_was_drafted_nothing_is_recommended_or_blamed(ratio: float) -> None:
    made = summarise([undrafted({AUTO: ratio, SHORT: 1 / ratio})], ALL)
    advice = recommend(made, ALL)
    assert (advice.policy, advice.is_open, advice.name) == (None, True, "nothing yet")
    assert "no policy drafted anything" in advice.reason
    assert slow_prompts(made) == ()
    assert auto_against_best(made[0]) == ()
    assert best_fixed(made[0]) is None


def test_a_set_on_which_a_policy_drafted_nothing_is_no_cost_and_no_gain_of_it() -> None:
    drafted = record({AUTO: [1.3] * 2}, set_name="one")
    made = summarise([drafted, undrafted({AUTO: 0.6}, set_name="two")], [AUTO])
    advice = recommend(made, [AUTO])
    assert advice.name == AUTO
    assert "1.14 times as fast" in advice.reason


def test_no_policy_is_credited_with_more_than_its_tokens_a_round() -> None:
    made = record({AUTO: [1.48], SHORT: [1.2]})
    runs = (
        replace(run, n_rounds=59) if run.policy == AUTO else replace(run, n_rounds=45)
        for run in made.runs
    )
    (summary,) = summarise([replace(made, runs=tuple(runs))], [AUTO, SHORT])
    assert summary.policies[0].possible == pytest.approx(64 / 59)
    assert recommend((summary,), [AUTO, SHORT]).name == SHORT
