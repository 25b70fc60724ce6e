"""A run of a measurement and its report's file, on scripted events."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from app import paths
from app.planning import save_verdict
from app.quality import MeasurementRun, unfinished_path
from engine.configuration import Configuration
from engine.errors import EngineError, WorkerError
from engine.policy.gates import PolicySettings
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
class ScriptedProcess:
    """A process with scripted events, an error among them, and records its requests."""

    events: tuple[LaboratoryEvent | EngineError, ...] = (
        LaboratoryFinished(WHOLE, is_complete=True),
    )
    refuses_earlier: bool = False
    asked: list[LaboratoryRequest] = field(default_factory=list)
    n_stopped: int = 0
    n_closed: int = 0

    def __call__(self, request: LaboratoryRequest, _: Path) -> "ScriptedProcess":
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
    return tmp_path / "saved" / "report.json"


def ignore(_: str) -> None:
    pass


def measured(path: Path, process: ScriptedProcess) -> tuple[MeasurementRun, list[LaboratoryEvent]]:
    with MeasurementRun(path, ignore, process) as run:
        run.begin(REQUEST, replaces=True)
        return run, list(run)


def keep(path: Path, report: Report) -> None:
    path.parent.mkdir(exist_ok=True)
    write_report(path, report)


def test_the_report_grows_in_its_file(path: Path) -> None:
    process = ScriptedProcess((ReportChanged(HALF), LaboratoryFinished(WHOLE, is_complete=True)))
    with MeasurementRun(path, ignore, process) as run:
        run.begin(REQUEST, replaces=True)
        next(run)
        assert read_report(path) == HALF
        assert run.is_complete is None
        next(run)
    assert (run.report, run.is_complete) == (WHOLE, True)
    assert sorted(each.name for each in path.parent.iterdir()) == ["report.json"]
    assert process.n_closed == 1


def test_nobody_else_writes_the_report_of_a_run(path: Path) -> None:
    with MeasurementRun(path, ignore, ScriptedProcess()):
        with pytest.raises(
            QualityError, match=r"another run of kvchat is writing .*report\.json: wait"
        ):
            MeasurementRun(path, ignore, ScriptedProcess()).__enter__()
        with MeasurementRun(path.with_name("other.json"), ignore, ScriptedProcess()):
            pass
    with MeasurementRun(path, ignore, ScriptedProcess()):
        pass
    assert not list(path.parent.iterdir())


def test_where_no_report_can_lie_it_is_reported_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    process = ScriptedProcess()
    with pytest.raises(QualityError, match="cannot be written"):
        measured(tmp_path / "taken" / "report.json", process)
    assert process.asked == []


def test_a_report_of_another_subject_is_set_aside_and_measured_again(path: Path) -> None:
    keep(path, HALF)
    process = ScriptedProcess(refuses_earlier=True)
    run, events = measured(path, process)
    assert [each.earlier for each in process.asked] == [HALF, None]
    assert events == [LaboratoryFinished(WHOLE, is_complete=True)]
    assert run.report == read_report(path) == WHOLE
    assert read_report(path.with_name("report.json.before")) == HALF


def test_what_fails_after_the_first_figures_begins_nothing_again(path: Path) -> None:
    keep(path, HALF)
    process = ScriptedProcess((ReportChanged(WHOLE), QualityError("its logits are not finite")))
    with pytest.raises(QualityError, match="not finite"):
        measured(path, process)
    assert len(process.asked) == 1
    assert read_report(path) == WHOLE


def test_a_process_that_dies_leaves_what_there_was(path: Path) -> None:
    with pytest.raises(WorkerError):
        measured(path, ScriptedProcess((ReportChanged(HALF), WorkerError("killed by signal 9"))))
    assert read_report(path) == HALF
    with MeasurementRun(path, ignore, ScriptedProcess()):
        pass


def test_a_damaged_report_is_moved_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"schema": 1')
    process = ScriptedProcess()
    measured(path, process)
    assert process.asked[0].earlier is None
    assert path.with_name("report.json.before").exists()
    assert read_report(path) == WHOLE


def test_a_report_that_the_user_named_is_never_replaced(path: Path) -> None:
    keep(path, HALF)
    with MeasurementRun(path, ignore, ScriptedProcess(refuses_earlier=True)) as run:
        run.begin(REQUEST, replaces=False)
        with pytest.raises(QualityError, match="another measurement"):
            next(run)
    assert read_report(path) == HALF


def test_a_damaged_report_that_the_user_named_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"schema": 1')
    with MeasurementRun(path, ignore, ScriptedProcess()) as run, pytest.raises(QualityError):
        run.begin(REQUEST, replaces=False)
    assert path.read_text() == '{"schema": 1'


def test_a_report_with_too_few_tokens_becomes_no_plan(home: Path) -> None:
    short = replace(WHOLE, texts=WHOLE.texts[:1])
    assert save_verdict(short, REQUEST.configuration, PolicySettings()) is None
    assert not paths.cache_plans_dir().exists()


def test_a_model_whose_name_is_no_text_has_a_file_for_its_report() -> None:
    configurations = [Configuration(Path(os.fsdecode(name)), 64) for name in (b"na\xff", b"na\xfe")]
    first, second = (
        unfinished_path(replace(REQUEST, configuration=each), takes_chats=False)
        for each in configurations
    )
    assert first != second
    assert not first.exists()
