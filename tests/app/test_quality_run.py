"""A run of a measurement and its report's file, on events that a test tells."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from app.quality.run import MeasurementRun, earlier_report, report_path
from engine.configuration import Configuration
from engine.errors import EngineError, WorkerError
from engine.quality.laboratory import (
    LaboratoryEvent,
    LaboratoryFinished,
    LaboratoryPlan,
    ReportChanged,
)
from engine.quality.records import QualityError, Report, read_report, write_report
from engine.quality.request import LaboratoryRequest
from tests.engine.quality.made_reports import Q8, Q8_Q4, made_measurement, made_report

HALF = replace(
    made_report(),
    measurements=tuple(replace(row, is_complete=False) for row in made_report().measurements),
)
WHOLE = made_report(made_measurement(Q8, 0.001), made_measurement(Q8_Q4, 0.4))
REQUEST = LaboratoryRequest(Configuration(Path("/m.gguf"), 2048), LaboratoryPlan((Q8,)), ())


@dataclass
class Told:
    """A process that tells its events, an error among them, and writes down what it is asked."""

    events: tuple[LaboratoryEvent | EngineError, ...] = (
        LaboratoryFinished(WHOLE, is_complete=True),
    )
    refuses_earlier: bool = False
    asked: list[LaboratoryRequest] = field(default_factory=list)
    n_stopped: int = 0
    n_closed: int = 0

    def __call__(self, request: LaboratoryRequest, _: Path) -> "Told":
        self.asked.append(request)
        return self

    def __iter__(self) -> Iterator[LaboratoryEvent]:
        if self.refuses_earlier and self.asked[-1].earlier is not None:
            raise QualityError("the report to go on with is of another measurement")
        for event in self.events:
            if isinstance(event, EngineError):
                raise event
            yield event

    def stop(self) -> None:
        self.n_stopped += 1

    def close(self) -> None:
        self.n_closed += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "report.json"


def measured(path: Path | None, told: Told) -> tuple[MeasurementRun, list[LaboratoryEvent]]:
    with MeasurementRun(path, told) as run:
        run.go_on(REQUEST)
        return run, list(run)


def keep(path: Path, report: Report) -> None:
    path.parent.mkdir(exist_ok=True)
    write_report(path, report)


def test_the_report_grows_in_its_file(path: Path) -> None:
    told = Told((ReportChanged(HALF), LaboratoryFinished(WHOLE, is_complete=True)))
    with MeasurementRun(path, told) as run:
        run.go_on(REQUEST)
        next(run)
        assert read_report(path) == HALF
        assert run.is_complete is None
        next(run)
    assert (run.report, run.is_complete) == (WHOLE, True)
    assert sorted(each.name for each in path.parent.iterdir()) == ["report.json"]
    assert told.n_closed == 1


def test_nobody_else_writes_the_report_of_a_run(path: Path) -> None:
    with MeasurementRun(path, Told()):
        with pytest.raises(
            QualityError, match=r"another run of kvchat is writing .*report\.json: wait"
        ):
            MeasurementRun(path, Told()).__enter__()
        with MeasurementRun(path.with_name("other.json"), Told()):
            pass
    with MeasurementRun(path, Told()):
        pass
    assert not list(path.parent.iterdir())


def test_where_no_report_can_lie_it_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    told = Told()
    with pytest.raises(QualityError, match="cannot be written"):
        measured(tmp_path / "taken" / "report.json", told)
    assert told.asked == []


def test_a_report_of_another_subject_is_set_aside_and_measured_anew(path: Path) -> None:
    keep(path, HALF)
    told = Told(refuses_earlier=True)
    run, events = measured(path, told)
    assert [each.earlier for each in told.asked] == [HALF, None]
    assert events == [LaboratoryFinished(WHOLE, is_complete=True)]
    assert run.report == read_report(path) == WHOLE
    assert read_report(path.with_name("report.json.before")) == HALF


def test_what_fails_behind_the_first_figures_begins_nothing_anew(path: Path) -> None:
    keep(path, HALF)
    told = Told((ReportChanged(WHOLE), QualityError("its logits are not finite")))
    with pytest.raises(QualityError, match="not finite"):
        measured(path, told)
    assert len(told.asked) == 1
    assert read_report(path) == WHOLE


def test_a_process_that_dies_leaves_what_there_was(path: Path) -> None:
    with pytest.raises(WorkerError):
        measured(path, Told((ReportChanged(HALF), WorkerError("killed by signal 9"))))
    assert read_report(path) == HALF
    with MeasurementRun(path, Told()):
        pass


def test_a_damaged_report_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text('{"schema": 1')
    assert earlier_report(path) is None
    assert path.with_name("report.json.before").exists()
    assert not path.exists()


def test_a_model_whose_name_is_no_text_has_a_place_for_its_report() -> None:
    paths = [report_path(Path(os.fsdecode(name)), "own") for name in (b"na\xff.gguf", b"na\xfe")]
    assert paths[0] != paths[1]
    assert earlier_report(paths[0]) is None
