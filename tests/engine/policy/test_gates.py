"""The gates, each broken alone, and what a figure is held against them with."""

from dataclasses import replace

import pytest

from engine.policy.gates import Gates, readings
from engine.quality.records import Answers, Breakdown, Figure, Measurement
from tests.engine.policy.reports import Q8, WHOLE, measured, scores

GATES = Gates()
WHOLE_ROW = measured(WHOLE, role="reference")
GOOD = measured(Q8, 0.001)


def failing(found: Measurement, gates: Gates = GATES) -> set[str]:
    return {each.gate for each in readings(found, gates, reference=WHOLE_ROW) if not each.passes}


def with_scores(**figures: object) -> Measurement:
    return replace(GOOD, scores=replace(GOOD.scores, **figures))  # type: ignore[arg-type]  # by name


def lossy_part() -> Measurement:
    """A kind that makes one sort of text less likely, and all of them together hardly."""
    bad = replace(scores(0.0, 4000), nll_delta=Figure(0.021))
    return replace(GOOD, by_text=(Breakdown("chat", scores(0.0)), Breakdown("tools", bad)))


@pytest.mark.parametrize(
    ("found", "gate"),
    [
        (with_scores(nll_delta=Figure(0.021)), "max_nll_delta"),
        (lossy_part(), "max_nll_delta"),
        (with_scores(kl_mean=Figure(0.031)), "max_mean_kl"),
        (with_scores(kl_p999=Figure(1.6)), "max_p999_kl"),
        (with_scores(same_top=Figure(0.94)), "min_same_top"),
        (replace(GOOD, needle=(Answers("50 %", 8, 10),)), "max_needle_loss"),
        (replace(GOOD, by_position=(Breakdown("16k on", scores(0.06)),)), "max_long_kl"),
    ],
)
def test_each_gate_fails_alone_for_its_own_figure(found: Measurement, gate: str) -> None:
    assert failing(found) == {gate}
    assert gate not in failing(found, replace(GATES, **{gate: 100 if "max_" in gate else 0}))  # type: ignore[arg-type]  # by name


def test_a_ratio_of_perplexities_is_the_same_gate_and_the_stricter_one_counts() -> None:
    found = with_scores(nll_delta=Figure(0.01))
    assert failing(found, replace(GATES, max_perplexity_ratio=1.011)) == set()
    assert failing(found, replace(GATES, max_perplexity_ratio=1.01)) == {"max_nll_delta"}
    assert failing(found, replace(GATES, max_perplexity_ratio=2.0, max_nll_delta=0.009)) == {
        "max_nll_delta"
    }


def test_the_unfavourable_end_of_an_interval_counts() -> None:
    assert failing(with_scores(kl_mean=Figure(0.001, 0.0, 0.031))) == {"max_mean_kl"}
    assert failing(with_scores(same_top=Figure(0.99, 0.94, 1.0))) == {"min_same_top"}


def test_the_worst_sort_of_text_counts_where_it_has_rows_enough() -> None:
    bad = replace(scores(0.001, 4000), kl_mean=Figure(0.05))
    parts = (Breakdown("chat", scores(0.0)), Breakdown("tools", bad))
    assert failing(replace(GOOD, by_text=parts)) == {"max_mean_kl"}
    few = (Breakdown("chat", scores(0.0)), Breakdown("tools", replace(bad, n_tokens=999)))
    assert failing(replace(GOOD, by_text=few)) == set()


def test_a_short_text_is_held_against_the_gate_of_long_ones_with_its_farthest_range() -> None:
    near = (Breakdown("0-2k", scores(0.0)), Breakdown("2-8k", scores(0.06)))
    assert failing(replace(GOOD, by_position=near)) == {"max_long_kl"}
    far = (*near, Breakdown("8-16k", scores(0.0)))
    assert failing(replace(GOOD, by_position=far)) == set()


def test_questions_that_the_reference_cannot_answer_do_not_count() -> None:
    blind = replace(WHOLE_ROW, needle=(Answers("50 %", 4, 10),))
    lost = replace(GOOD, needle=(Answers("50 %", 0, 10),))
    assert not [e for e in readings(lost, GATES, reference=blind) if e.gate == "max_needle_loss"]


def test_what_the_control_loses_of_the_same_text_is_taken_off() -> None:
    noisy = replace(GOOD, scores=scores(0.04), by_text=(), by_position=())
    control = replace(WHOLE_ROW, role="control", scores=scores(0.035), by_text=(), by_position=())

    def gates_failed(control: Measurement | None) -> set[str]:
        held = readings(noisy, GATES, reference=WHOLE_ROW, control=control)
        return {each.gate for each in held if not each.passes}

    assert gates_failed(None) >= {"max_mean_kl", "min_same_top", "max_nll_delta"}
    assert gates_failed(control) == set()
    lucky = replace(control, scores=replace(control.scores, nll_delta=Figure(-1.0)))
    held = readings(GOOD, GATES, control=lucky)
    assert next(e for e in held if e.gate == "max_nll_delta").passes


def test_the_control_of_each_part_is_taken_off_that_part() -> None:
    parts = (Breakdown("chat", scores(0.0)), Breakdown("tools", scores(0.03)))
    noise = (Breakdown("tools", scores(0.025)), Breakdown("chat", scores(0.0)))
    control = replace(WHOLE_ROW, role="control", by_text=noise)
    found = replace(GOOD, by_text=parts)
    four = {"max_mean_kl", "min_same_top", "max_nll_delta", "max_p999_kl"}
    assert failing(found) == four
    held = readings(found, GATES, reference=WHOLE_ROW, control=control)
    assert all(each.passes for each in held)
