from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import KVTypes
from engine.quality.records import (
    Figure,
    QualityError,
    position_name,
    read_report,
    report_json,
    report_of,
    write_report,
)
from tests.engine.quality.made_reports import F16, Q8, Q8_Q4, made_measurement, made_report


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = made_report(made_measurement(Q8, 0.001), made_measurement(Q8_Q4, 0.02))
    write_report(tmp_path / "report.json", report)
    assert read_report(tmp_path / "report.json") == report


def test_a_report_is_for_its_owner_only(tmp_path: Path) -> None:
    write_report(tmp_path / "report.json", made_report())
    assert (tmp_path / "report.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"schema": 2', '"schema": 3', "schema 3"),
        ('"k": "q8_0"', '"k": "q8 0"', "kind.k"),
        ('"role": "control"', '"role": "king"', "role"),
        ('"elapsed_s": 12.5', '"elapsed_s": -1', "elapsed_s"),
        ('"n_threads": 2', '"n_threads": 2, "more": 1', "more"),
        ('"name": "a chat"', '"name": "a\\u001bchat"', "name"),
    ],
)
def test_what_is_no_report_is_refused_with_the_place(before: str, after: str, told: str) -> None:
    text = report_json(made_report())
    assert before in text
    with pytest.raises(ValueError, match=told):
        report_of(text.replace(before, after, 1))


def test_a_file_that_is_no_report_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(QualityError, match=r"x\.json cannot be read"):
        read_report(tmp_path / "x.json")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QualityError, match="cannot be written"):
        write_report(tmp_path / "file" / "report.json", made_report())


def test_rows_are_found_by_role_and_kind() -> None:
    report = made_report(made_measurement(Q8, 0.001), made_measurement(Q8_Q4, 0.02))
    assert report.reference is report.measurements[0]
    assert report.control is report.measurements[1]
    assert [each.kind for each in report.candidates] == [Q8, Q8_Q4]
    assert report.find(Q8_Q4) is report.measurements[3]
    assert report.find(F16) is None


def test_too_little_text_allows_no_verdict() -> None:
    report = made_report()
    short = tuple(replace(text, n_tokens=3_999) for text in report.texts)
    assert report.allows_verdict
    assert not replace(report, texts=short).allows_verdict


def test_tokens_that_were_not_reached_allow_none_either() -> None:
    report = made_report()
    reference = report.measurements[0]
    stopped = replace(reference, is_complete=False, scores=replace(reference.scores, n_tokens=900))
    half = replace(report, measurements=(stopped, *report.measurements[1:]))
    assert (half.n_tokens, half.allows_verdict) == (900, False)


def test_bytes_are_told_for_one_token_of_a_full_context() -> None:
    cost = made_measurement(Q8, 0.0, held=1000).cost
    assert cost is not None
    assert cost.held_per_token == 1000
    assert cost.peak_per_token == 1000 + (1 << 20) / 4096


def test_names_are_short() -> None:
    assert [str(KVTypes("q8_0", "q8_0")), str(Q8_Q4)] == ["q8_0", "q8_0/q4_0"]
    assert [position_name(start) for start in (0, 2048, 8192, 16384)] == [
        "0-2k", "2-8k", "8-16k", "16k on",
    ]  # fmt: skip


def test_a_figure_of_one_document_has_no_interval() -> None:
    assert Figure(1.0) == Figure(1.0, None, None)
