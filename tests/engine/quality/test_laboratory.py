from dataclasses import replace

import pytest

from engine.configuration import KVTypes
from engine.quality.laboratory import (
    Laboratory,
    LaboratoryFinished,
    LaboratoryPlan,
    LaboratoryProgress,
    Note,
)
from engine.quality.texts import AnswerSpan, Document
from tests.engine.quality.fake_opener import (
    BROKEN,
    F16,
    Q4,
    Q8,
    TOO_LARGE,
    FakeOpener,
    documents,
    empty_report,
)

TEXTS = documents()
QUESTION = Document("q", "needle", TEXTS[0].tokens, first=50, answers=(AnswerSpan("10%", 52, 54),))


def laboratory(
    *kinds: KVTypes,
    opener: FakeOpener | None = None,
    takes_times: bool = False,
) -> Laboratory:
    texts = (*TEXTS, QUESTION)
    plan = LaboratoryPlan(kinds, n_chunk=8, takes_times=takes_times)
    return Laboratory(opener or FakeOpener(), plan, texts, empty_report(texts))


def finished(one: Laboratory) -> LaboratoryFinished:
    *_, last = one.run()
    assert isinstance(last, LaboratoryFinished)
    return last


def test_the_report_has_reference_control_and_kinds_with_intervals() -> None:
    opener = FakeOpener()
    last = finished(laboratory(Q8, Q4, opener=opener))
    rows = last.report.measurements
    assert last.is_complete
    assert [(row.role, row.kind) for row in rows] == [
        ("reference", F16), ("control", F16), ("candidate", Q8), ("candidate", Q4),
    ]  # fmt: skip
    assert all(row.is_complete and row.scores.n_tokens == 4 * 59 for row in rows)
    assert rows[2].scores.kl_mean.low is not None
    assert rows[1].scores.kl_mean.value == 0
    assert rows[2].scores.kl_mean.value < rows[3].scores.kl_mean.value
    assert [part.name for part in rows[2].by_text] == ["chat", "code", "document", "tools"]
    assert rows[2].needle[0].n_asked == 1
    assert opener.n_open == 0


def test_a_kind_that_cannot_be_used_is_left_out_with_the_reason() -> None:
    one = laboratory(Q8, Q4)
    one.refusal = lambda kind: "no flash attention" if kind == Q4 else None
    events = list(one.run())
    assert [event.text for event in events if isinstance(event, Note)] == [
        "q4_0 is not measured: no flash attention"
    ]
    assert isinstance(events[-1], LaboratoryFinished)
    assert [row.kind for row in events[-1].report.candidates] == [Q8]


@pytest.mark.parametrize("bad", [BROKEN, TOO_LARGE])
def test_a_kind_that_fails_takes_no_other_with_it(bad: KVTypes) -> None:
    events = list(laboratory(bad, Q8).run())
    last = events[-1]
    assert isinstance(last, LaboratoryFinished)
    assert last.is_complete
    assert any(isinstance(event, Note) and str(bad) in event.text for event in events)
    assert [row.kind for row in last.report.candidates] == [Q8]
    assert last.report.candidates[0].is_complete


def test_kinds_that_do_not_fit_side_by_side_follow_in_groups() -> None:
    opener = FakeOpener(3)
    at_once = finished(laboratory(Q8, Q4)).report
    grouped = finished(laboratory(Q8, Q4, opener=opener)).report
    assert [row.scores for row in grouped.measurements] == [
        row.scores for row in at_once.measurements
    ]
    assert [kind for kind, _, _ in opener.opened].count(F16) > 2, "the reference once a group"


@pytest.mark.parametrize("n_done", [3 * 60, 3 * 100])
def test_a_stopped_measurement_reports_what_it_has_and_measures_its_group_again(
    n_done: int,
) -> None:
    whole = finished(laboratory(Q8)).report
    one = laboratory(Q8)
    for event in one.run():
        if isinstance(event, LaboratoryProgress) and event.n_done >= n_done:
            one.stop()
    assert isinstance(event, LaboratoryFinished)
    assert not event.is_complete
    [half] = event.report.candidates
    assert not half.is_complete
    assert 59 <= half.scores.n_tokens < 236

    last = finished(replace(laboratory(Q8), report=event.report))
    assert last.is_complete
    assert last.report.measurements == whole.measurements


def test_speeds_are_added_to_a_finished_report_without_scoring_again() -> None:
    first = finished(laboratory(Q8)).report
    opener = FakeOpener()
    one = replace(laboratory(Q8, opener=opener, takes_times=True), report=first)
    events = list(one.run())
    last = events[-1]
    assert isinstance(last, LaboratoryFinished)
    assert last.is_complete
    assert {shape.n_rows for _, shape, _ in opener.opened} == {1}, "no context to score with"
    assert all(row.cost is not None for row in last.report.measurements)
    assert [replace(row, cost=None) for row in last.report.measurements] == list(first.measurements)
    assert {event.what for event in events if isinstance(event, LaboratoryProgress)} == {"speeds"}


@pytest.mark.parametrize("n_most", [None, 3])
def test_speeds_and_bytes_are_those_of_each_kind(n_most: int | None) -> None:
    opener = FakeOpener(n_most)
    one = laboratory(Q8, Q4, opener=opener, takes_times=True)
    report = finished(one).report
    assert opener.n_open == 0
    costs = [row.cost for row in report.measurements]
    assert all(cost is not None and cost.kv_bytes == 64 * 600 for cost in costs)
    assert all(cost is not None and cost.compute_bytes == 1000 for cost in costs)
    assert all(cost is not None and cost.deep_tps > 0 and cost.prefill_tps > 0 for cost in costs)
    assert all(
        cost is not None and 0 < cost.shallow_depth < cost.deep_depth < 600 for cost in costs
    )


def test_complete_kinds_are_not_measured_again() -> None:
    first = finished(laboratory(Q8)).report
    opener = FakeOpener()
    second = finished(replace(laboratory(Q8, Q4, opener=opener), report=first)).report
    assert [kind for kind, _, _ in opener.opened] == [F16, Q4]
    assert second.find(Q8) == first.find(Q8)
    assert second.find(Q4) is not None
