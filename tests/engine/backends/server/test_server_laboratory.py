"""Servers that are read the same texts: the first is the reference."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.server.laboratory import MOST_CTX
from engine.backends.server.logprobs import ToldRow, compared_rows
from engine.configuration import Configuration
from engine.errors import ServerError
from engine.load_laboratory import LaboratoryRequest, open_laboratory
from engine.model.addresses import KEY_VARIABLE
from engine.quality.laboratory import Finished, Plan, Progress
from engine.quality.records import QualityError, Report, report_json, report_of
from engine.quality.texts import Text
from tests.hostile_language_server import OTHER, LanguageServer, serving

TEXT = Text("words", "document", "the cat sat on the mat, and the dog sat beside it. " * 4)
N_ROWS = 2 * 99
"""A letter is a token of the stub: two texts of 100, and an end that is too short."""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def pair() -> Iterator[tuple[LanguageServer, LanguageServer]]:
    with serving("llama-server") as first, serving("llama-server") as second:
        second.shares = (0.5, 0.25, 0.1)
        yield first, second


def request_of(*servers: LanguageServer, rows: Path | None = None) -> LaboratoryRequest:
    first, *others = (server.url for server in servers)
    return LaboratoryRequest(
        Configuration.at_server(first),
        Plan((), takes_times=False),
        (TEXT,),
        n_ctx=100,
        other_servers=tuple(others),
        rows_path=rows,
    )


def measured(request: LaboratoryRequest) -> Report:
    laboratory = open_laboratory(request)
    try:
        *_, last = laboratory.run()
    finally:
        laboratory.close()
    assert isinstance(last, Finished)
    assert last.is_complete
    return last.report


def test_a_server_is_compared_with_another_row_by_row(
    pair: tuple[LanguageServer, LanguageServer],
) -> None:
    report = measured(request_of(*pair))
    reference, other = report.measurements
    assert (reference.role, other.role) == ("reference", "candidate")
    assert reference.scores.n_tokens == report.n_tokens == N_ROWS
    rest = [1 - sum(shares) - OTHER for shares in (pair[0].shares, pair[1].shares)]
    least = sum(
        p * math.log(p / q)
        for p, q in zip((*pair[0].shares, rest[0]), (*pair[1].shares, rest[1]), strict=True)
    )
    assert other.scores.kl_median.value == pytest.approx(least, rel=1e-3)
    assert other.scores.same_top.value == 1.0
    assert report_of(report_json(report)) == report
    assert report.is_of_servers
    assert not report.allows_verdict


def test_a_server_beside_itself_differs_by_nothing(
    pair: tuple[LanguageServer, LanguageServer],
) -> None:
    *_, other = measured(request_of(pair[0], pair[0])).measurements
    assert other.scores.kl_mean.value == 0.0
    assert other.scores.nll_delta.value == 0.0


def test_a_stopped_measurement_has_no_rows_of_a_server_that_was_started_otherwise_since(
    pair: tuple[LanguageServer, LanguageServer], tmp_path: Path
) -> None:
    request = request_of(*pair, rows=tmp_path / "rows")
    laboratory = open_laboratory(request)
    for event in laboratory.run():
        if isinstance(event, Progress):
            laboratory.stop()
        if isinstance(event, Finished):
            assert not event.is_complete
            earlier = event.report
    laboratory.close()
    pair[1].shares = (0.9, 0.05, 0.01)
    gone_on = measured(replace(request, earlier=earlier))
    whole = measured(request_of(*pair))
    assert [each.scores for each in gone_on.measurements] == [
        each.scores for each in whole.measurements
    ]


def test_servers_with_other_vocabularies_are_not_compared(
    pair: tuple[LanguageServer, LanguageServer],
) -> None:
    pair[1].letter = 200
    with pytest.raises(QualityError, match="other tokens of the same texts"):
        open_laboratory(request_of(*pair))


def test_a_server_that_breaks_off_is_told_and_can_be_measured_again(
    pair: tuple[LanguageServer, LanguageServer],
) -> None:
    request = request_of(*pair)
    laboratory = open_laboratory(request)
    run = laboratory.run()
    next(run)
    pair[1].misdeed = "gone model"
    with pytest.raises(ServerError, match="not found"):
        list(run)
    laboratory.close()
    pair[1].misdeed = "none"
    assert measured(request).n_tokens == N_ROWS


def test_a_text_is_no_longer_than_one_answer_of_a_server_can_tell_of(
    pair: tuple[LanguageServer, LanguageServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOST_CTX, "llama-server", 50)
    assert measured(request_of(*pair)).subject.n_ctx == 50


def test_what_is_told_of_two_lists_is_a_lower_bound() -> None:
    p, q = {1: 0.5, 2: 0.3, 3: 0.15, 4: 0.05}, {1: 0.4, 2: 0.2, 3: 0.1, 4: 0.3}
    full = sum(p[each] * math.log(p[each] / q[each]) for each in p)

    def row(shares: dict[int, float], n_told: int) -> ToldRow:
        likeliest = sorted(shares, key=lambda each: -shares[each])[:n_told]
        logs = {each: math.log(shares[each]) for each in likeliest}
        return ToldRow(2, math.log(shares[2]), logs)

    told = [float(compared_rows([row(p, n)], [row(q, n)])["kl"][0]) for n in (1, 2, 4)]
    assert 0 < told[0] <= told[1] <= told[2] == pytest.approx(full, rel=1e-5)
