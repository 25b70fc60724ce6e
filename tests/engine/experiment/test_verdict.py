"""What drafts explain of a ratio, and what is recommended."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.events import GenerationStats
from engine.experiment.records import PromptRecord, Sample
from engine.experiment.verdict import (
    Recommendation,
    blocks_of,
    explained,
    recommend,
    total_gain,
)
from tests.engine.experiment.made_results import record, stats

AUTO, SHORT, LONG = "suffix:auto", "lookup:fixed:2", "lookup:fixed:8"
ALL = [AUTO, SHORT, LONG]


NO_DRAFTS = stats(is_plain=True)


def drafted(tokens_per_round: float, **changes: Any) -> GenerationStats:
    return stats(n_rounds=100, n_emitted=round(100 * tokens_per_round), **changes)


def changed(record: PromptRecord, change: Callable[[Sample], GenerationStats]) -> PromptRecord:
    """Give the record with other counts of each reply."""
    rows = tuple(tuple(replace(each, stats=change(each)) for each in row) for row in record.rows)
    return replace(record, rows=rows)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        (NO_DRAFTS, NO_DRAFTS, 1.0, 1.0),
        (NO_DRAFTS, drafted(1.5), 0.0, 1.5),
        (drafted(1.25), NO_DRAFTS, 0.8, float("inf")),
        (NO_DRAFTS, drafted(1.5, decode_s=10.0, saved_s=-0.5, saved_error_s=0.5), 0.9, 1.5),
        (drafted(1.5, decode_s=10.0, saved_s=-0.5, saved_error_s=0.5), NO_DRAFTS, 1 / 1.5,
         1 / 0.9),
        (drafted(1.5), drafted(1.2), 0.0, float("inf")),
        (NO_DRAFTS, drafted(0.5), 0.0, 1.0),
    ],
    ids=["no drafts", "a gain", "a loss", "a bounded loss", "its reverse", "both draft", "stopped"],
)  # fmt: skip
def test_drafts_explain_no_more_than_their_tokens_a_round(
    first: GenerationStats, second: GenerationStats, low: float, high: float
) -> None:
    assert explained([first], [second]) == pytest.approx((low, high))


def test_a_block_is_an_arm_between_two_plain_replies() -> None:
    made = [record({AUTO: [1.5, 1.25], SHORT: [2.0, 0.5]})]
    assert [block.ratio for block in blocks_of(made, AUTO)] == pytest.approx([1.5, 1.25])
    assert [block.ratio for block in blocks_of(made, SHORT)] == pytest.approx([2.0, 0.5])
    assert blocks_of(made, LONG) == []


def test_what_drafts_do_not_explain_of_a_ratio_is_noise() -> None:
    lucky = record({AUTO: [1.48] * 6})
    lucky = changed(lucky, lambda each: replace(each.stats, n_rounds=59))
    gain = total_gain([lucky], AUTO)
    assert gain.median == pytest.approx(64 / 59)
    assert gain.measured == pytest.approx(1.48)
    assert gain.noise == pytest.approx(1.48 * 59 / 64 - 1)
    assert not gain.is_faster


def test_loops_and_short_replies_count_in_no_gain() -> None:
    records = [
        record({AUTO: 1.2}),
        record({AUTO: 3.9}, prompt="two", excluded="loop"),
        record({AUTO: 0.2}, prompt="three", excluded="short"),
        PromptRecord("grounded", "four", 0.0, failure="no"),
    ]
    gain = total_gain(records, AUTO)
    assert (gain.median, gain.n_blocks) == (pytest.approx(1.2), 1)


def advised(*sets: Mapping[str, float | Sequence[float]], n: int = 6) -> Recommendation:
    """Give the recommendation from `n` prompts of each set."""
    records = [
        record(ratios, prompt=str(number), set_name=f"set{index}")
        for index, ratios in enumerate(sets)
        for number in range(n)
    ]
    return recommend(records, ALL)


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
        ([(0.9, 1.02, 0.5)], None),
        ([(0.9, 1.04, 0.5)], SHORT),
    ],
    ids=[
        "auto within 3 % of the best", "auto further away", "auto costs nearly nothing",
        "auto costs", "a length that costs nowhere", "no length without a cost",
        "auto beside a length that costs", "too small a gain", "a gain that counts",
    ],
)  # fmt: skip
def test_what_is_recommended_gains_and_costs_on_no_set(
    sets: list[tuple[float, float, float]], expected: str | None
) -> None:
    advice = advised(*(dict(zip(ALL, ratios, strict=True)) for ratios in sets))
    assert (advice.arm, advice.is_open) == (expected, False)


@pytest.mark.parametrize("seed", range(60))
def test_arms_that_are_equal_to_plain_decoding_are_never_called_faster(seed: int) -> None:
    """A machine whose speed jumps by 10 %, and lengths that draft and gain nothing."""
    rng = random.Random(seed)

    def shaken(each: Sample) -> GenerationStats:
        slowness = 1 + rng.choice([0.0, 0.0, 0.1]) + rng.gauss(0, 0.02)
        return replace(each.stats, decode_s=each.stats.decode_s * slowness)

    records = [
        changed(made, shaken)
        for set_name in ("one", "two")
        for number in range(8)
        for made in [record({SHORT: [1.0, 1.0], LONG: [1.0, 1.0]}, prompt=str(number),
                            set_name=set_name)]
    ]  # fmt: skip
    assert recommend(records, [SHORT, LONG]).arm is None
    gains = [total_gain(records, arm) for arm in (SHORT, LONG)]
    assert not any(gain is None or gain.is_faster or gain.reversed.is_faster for gain in gains)


def test_few_blocks_decide_nothing() -> None:
    advice = advised({AUTO: 2.0, SHORT: 1.5, LONG: 1.5}, n=5)
    assert advice.is_open
    assert "5 of the 6 blocks" in advice.reason


def test_without_a_prompt_that_counts_nothing_is_recommended() -> None:
    for records in ([], [record({AUTO: 2.0}, excluded="loop")]):
        advice = recommend(records, ALL)
        assert (advice.name, advice.arm) == ("nothing yet", None)
        assert "no prompt can be used" in advice.reason


def test_a_set_in_which_every_reply_loops_does_not_count() -> None:
    looped = record({AUTO: 0.5}, set_name="loops", excluded="loop")
    assert recommend([record({AUTO: [1.7] * 6}), looped], [AUTO]).arm == AUTO


def undrafted(made: PromptRecord) -> PromptRecord:
    return changed(made, lambda each: replace(each.stats, n_verified=0, n_rounds=64))


@pytest.mark.parametrize("ratio", [0.619, 1.0, 1.48])
def test_where_nothing_was_drafted_nothing_is_recommended(ratio: float) -> None:
    made = undrafted(record({AUTO: [ratio] * 6, SHORT: [1 / ratio] * 6}))
    advice = recommend([made], [AUTO, SHORT])
    assert advice.is_open
    assert "no predictor drafted anything" in advice.reason
    gain = total_gain([made], AUTO)
    assert gain.median == 1.0


def test_a_set_without_drafts_is_no_cost() -> None:
    one, two = record({AUTO: [1.3] * 6}), undrafted(record({AUTO: [0.98] * 6}, set_name="two"))
    assert recommend([one, two], [AUTO]).name == AUTO


def test_a_noisy_machine_is_recommended_nothing() -> None:
    made = record({AUTO: [1.5] * 6})
    firsts = {id(row[0]) for row in made.rows}
    noisy = changed(
        made,
        lambda each: replace(
            each.stats, decode_s=each.stats.decode_s * (0.8 if id(each) in firsts else 1.0)
        ),
    )
    assert recommend([made], [AUTO]).arm == AUTO
    advice = recommend([noisy], [AUTO])
    assert advice.is_open
    assert "differ by 12%" in advice.reason
