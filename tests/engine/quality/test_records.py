from dataclasses import replace
from pathlib import Path

import pytest

from engine.quality.records import (
    QualityError,
    read_report,
    report_json,
    report_of,
    write_report,
)
from tests.engine.quality.made_reports import Q8, Q8_Q4, made_measurement, made_report


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = made_report(made_measurement(Q8, 0.001), made_measurement(Q8_Q4, 0.02))
    write_report(tmp_path / "report.json", report)
    assert read_report(tmp_path / "report.json") == report


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"schema": 2', '"schema": 3', "schema 3"),
        ('"k": "q8_0"', '"k": "q8 0"', "kind.k"),
        ('"role": "control"', '"role": "king"', "role"),
        ('"elapsed_s": 12.5', '"elapsed_s": -1', "elapsed_s"),
        ('"n_threads": 2', '"n_threads": 2, "more": 1', "more"),
        ('"name": "a chat"', '"name": "a\\u001bchat"', "name"),
    ],
)
def test_an_invalid_report_is_refused_with_the_place(before: str, after: str, message: str) -> None:
    text = report_json(made_report())
    assert before in text
    with pytest.raises(ValueError, match=message):
        report_of(text.replace(before, after, 1))


def test_an_invalid_report_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(QualityError, match=r"x\.json cannot be read"):
        read_report(tmp_path / "x.json")


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
