from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import KVTypes
from engine.quality.laboratory import (
    Laboratory,
    LaboratoryFinished,
    LaboratoryPlan,
    LaboratoryProgress,
    Note,
    ReportChanged,
)
from engine.quality.records import QualityError
from engine.quality.row_store import RowKey, read_rows
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
    rows_path: Path | None = None,
    takes_times: bool = False,
    memory_bytes: int | None = None,
) -> Laboratory:
    texts = (*TEXTS, QUESTION)
    plan = LaboratoryPlan(kinds, n_chunk=8, takes_times=takes_times, memory_bytes=memory_bytes)
    one = Laboratory(opener or FakeOpener(), plan, texts, empty_report(texts))
    if rows_path is not None:
        one.rows, one.rows_path = read_rows(rows_path, one.report.subject.digest), rows_path
    return one


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


def test_contexts_share_the_threads_or_take_all_in_turns() -> None:
    for is_concurrent, n_each in ((True, 2), (False, 9)):
        opener = FakeOpener(is_concurrent=is_concurrent)
        one = laboratory(Q8, Q4, opener=opener)
        one.report = replace(one.report, subject=replace(one.report.subject, n_threads=9))
        assert finished(one).is_complete
        assert {shape.n_threads for _, shape, _ in opener.opened} == {n_each}


def test_progress_reaches_its_end() -> None:
    events = [event for event in laboratory(Q8).run() if isinstance(event, LaboratoryProgress)]
    assert all(one.n_done <= one.n_total for one in events)
    assert events[-1].n_done >= 0.97 * events[-1].n_total
    assert [one.n_done for one in events] == sorted(one.n_done for one in events)


def test_the_report_grows_with_each_text() -> None:
    changed = [event.report for event in laboratory(Q8).run() if isinstance(event, ReportChanged)]
    counts = [report.measurements[2].scores.n_tokens for report in changed]
    assert counts == [59, 118, 177, 236, 236]
    assert [report.measurements[2].is_complete for report in changed] == [False] * 4 + [True]


def test_a_kind_that_cannot_be_used_is_left_out_with_the_reason() -> None:
    one = laboratory(Q8, Q4)
    one.refusal = lambda kind: "no flash attention" if kind == Q4 else None
    events = list(one.run())
    assert [event.text for event in events if isinstance(event, Note)] == [
        "q4_0 is left out: no flash attention"
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


def test_a_reference_that_cannot_be_used_ends_it() -> None:
    one = laboratory(Q8)
    one.refusal = lambda kind: "no" if kind == F16 else None
    with pytest.raises(QualityError, match="reference f16 cannot be used: no"):
        list(one.run())


@pytest.mark.parametrize(("n_most", "memory_bytes"), [(3, None), (None, 1)])
def test_kinds_that_do_not_fit_side_by_side_follow_in_groups(
    n_most: int | None, memory_bytes: int | None
) -> None:
    opener = FakeOpener(n_most)
    at_once = finished(laboratory(Q8, Q4)).report
    grouped = finished(laboratory(Q8, Q4, opener=opener, memory_bytes=memory_bytes)).report
    assert [row.scores for row in grouped.measurements] == [
        row.scores for row in at_once.measurements
    ]
    assert [kind for kind, _, _ in opener.opened].count(F16) > 2, "the reference once a group"


def test_a_stopped_measurement_reports_what_it_has_and_goes_on_later(tmp_path: Path) -> None:
    whole = finished(laboratory(Q8)).report
    one = laboratory(Q8, rows_path=tmp_path / "rows")
    for event in one.run():
        if isinstance(event, ReportChanged) and event.report.candidates[0].scores.n_tokens == 118:
            one.stop()
    assert isinstance(event, LaboratoryFinished)
    assert not event.is_complete
    assert not event.report.candidates[0].is_complete
    assert event.report.candidates[0].scores.n_tokens == 118
    assert event.report.candidates[0].scores.kl_mean.low is not None

    opener = FakeOpener()
    one = laboratory(Q8, rows_path=tmp_path / "rows", opener=opener)
    again = replace(one, report=event.report)
    last = finished(again)
    assert last.is_complete
    assert last.report.measurements == whole.measurements
    assert sum(backend.n_decoded for _, _, backend in opener.opened) < 3 * 5 * 60


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_that_ends_within_a_text_goes_on_with_it(tmp_path: Path, is_killed: bool) -> None:
    whole = finished(laboratory(Q8)).report
    one = laboratory(Q8, rows_path=tmp_path / "rows")
    for event in one.run():
        if isinstance(event, LaboratoryProgress) and event.n_done > 3 * 100:
            if is_killed:
                break
            one.stop()
    kept = read_rows(tmp_path / "rows", one.report.subject.digest)
    assert {key.document for key in kept} == {0}
    assert {len(rows) for rows in kept.values()} == {59}
    if not is_killed:
        assert isinstance(event, LaboratoryFinished)
        assert 59 < event.report.candidates[0].scores.n_tokens < 118, "what was read counts here"
    events = list(laboratory(Q8, rows_path=tmp_path / "rows").run())
    assert isinstance(events[-1], LaboratoryFinished)
    assert events[-1].report.measurements == whole.measurements
    reached = [event for event in events if isinstance(event, LaboratoryProgress)]
    assert reached[0].n_before == 3 * 60
    assert RowKey("candidate", Q8, 0) in kept


def test_the_time_left_is_told_by_the_pace_of_this_run() -> None:
    assert LaboratoryProgress("t", n_done=60, n_total=100, n_before=50).left_s(5.0) == 20.0
    assert LaboratoryProgress("t", 0, 100).left_s(5.0) is None


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


def test_complete_kinds_are_not_measured_again() -> None:
    first = finished(laboratory(Q8)).report
    opener = FakeOpener()
    second = finished(replace(laboratory(Q8, Q4, opener=opener), report=first)).report
    assert [kind for kind, _, _ in opener.opened] == [F16, Q4]
    assert second.find(Q8) == first.find(Q8)
    assert second.find(Q4) is not None


def test_rows_that_cannot_be_kept_are_told_once_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    events = list(laboratory(Q8, rows_path=tmp_path / "file" / "rows").run())
    assert sum(isinstance(event, Note) for event in events) == 1
    last = events[-1]
    assert isinstance(last, LaboratoryFinished)
    assert last.is_complete


@pytest.mark.parametrize("memory_bytes", [None, 1])
def test_speeds_and_bytes_are_those_of_each_kind(memory_bytes: int | None) -> None:
    opener = FakeOpener()
    one = laboratory(Q8, Q4, opener=opener, takes_times=True, memory_bytes=memory_bytes)
    report = finished(one).report
    assert opener.n_open == 0
    costs = [row.cost for row in report.measurements]
    assert all(cost is not None and cost.kv_bytes == 64 * 600 for cost in costs)
    assert all(cost is not None and cost.compute_bytes == 1000 for cost in costs)
    assert all(cost is not None and cost.deep_tps > 0 and cost.prefill_tps > 0 for cost in costs)
    assert all(
        cost is not None and 0 < cost.shallow_depth < cost.deep_depth < 600 for cost in costs
    )


def test_only_the_control_is_opened_with_other_kernels_and_decodes_in_its_steps() -> None:
    opener = FakeOpener()
    assert finished(laboratory(Q8, opener=opener)).is_complete
    kinds = [(kind, shape.is_control) for kind, shape, _ in opener.opened[:3]]
    assert kinds == [(F16, False), (F16, True), (Q8, False)]
