"""Where a measurement's report lies while it runs, and how the next one goes on with it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from app import paths
from engine.configuration import Configuration
from engine.load_laboratory import LaboratoryRequest
from engine.model.architecture import read_model
from engine.process.laboratory import LaboratoryProcess
from engine.quality.laboratory import Finished, LaboratoryEvent, ReportChanged
from engine.quality.records import QualityError, Report, read_report, write_report

ROWS_SUFFIX = ".rows"
"""Ends the name of the file that keeps rows beside a report until it is complete."""
BEFORE_SUFFIX = ".before"
PLACE_BYTES = 4
MOST_OF_A_NAME = 48
"""Characters of a model's name in that of its reports: file systems allow 255 bytes."""


def rows_path(report: Path) -> Path:
    """Where the rows of an unfinished report lie."""
    return report.with_name(f"{report.name}{ROWS_SUFFIX}")


class KeptReport:
    """The report of the events that were taken, written behind every change."""

    def __init__(self, path: Path | None) -> None:
        """Nothing was measured yet.

        Args:
            path: Where the report is written; None keeps it in memory.
        """
        self.path = path
        self.report: Report | None = None
        self.is_complete: bool | None = None
        """Whether nothing was stopped; None until the last event."""

    def take(self, event: LaboratoryEvent) -> None:
        """Keep what an event says.

        Raises:
            QualityError: the report cannot be written; it is kept in memory from now on.
        """
        match event:
            case ReportChanged(report):
                self._keep(report)
            case Finished(report, is_complete):
                self.is_complete = is_complete
                self._keep(report)
                if is_complete and self.path is not None:
                    rows_path(self.path).unlink(missing_ok=True)
            case _:
                pass

    def _keep(self, report: Report) -> None:
        self.report = report
        if self.path is None:
            return
        try:
            write_report(self.path, report)
        except QualityError:
            self.path = None
            raise


class Measuring(Protocol):
    """The events of a measurement in a process of its own."""

    def __iter__(self) -> Iterator[LaboratoryEvent]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


Start = Callable[[LaboratoryRequest, Path], Measuring]


def report_path(model_path: Path, texts: str) -> Path:
    """Where the report of a model on some texts lies, such as `own` or `chats`."""
    place = blake2b(str(model_path.absolute()).encode(), digest_size=PLACE_BYTES).hexdigest()
    return (
        paths.state_dir()
        / "cache-quality"
        / f"{model_path.stem[:MOST_OF_A_NAME]}-{place}-{texts}.json"
    )


def earlier_report(path: Path) -> Report | None:
    """The report of an earlier measurement; None where there is none that can be read."""
    try:
        return read_report(path) if path.exists() else None
    except QualityError:
        set_aside(path)
        return None


def set_aside(path: Path) -> None:
    """Let the next measurement begin anew; the report stays beside it."""
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}{BEFORE_SUFFIX}"))
    rows_path(path).unlink(missing_ok=True)


class Measurement:
    """One measurement whose report is kept: a stop, a kill or a fault leaves what there was.

    Args:
        ask: Makes what to measure; where its report lies and goes on is set here.
        path: The report's file.
        start: Starts the process.
    """

    def __init__(
        self,
        ask: Callable[[], LaboratoryRequest],
        path: Path,
        start: Start = LaboratoryProcess,
    ) -> None:
        self._ask, self._start = ask, start
        self.kept = KeptReport(path)
        self._process: Measuring | None = None
        self._is_stopped = False

    def events(self) -> Iterator[LaboratoryEvent]:
        """The events to the last, as they come.

        Raises:
            EngineError: the measurement failed, or its report cannot be written; `kept` has it.
        """
        path = self.kept.path
        assert path is not None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        earlier = earlier_report(path)
        self.kept.report = earlier
        try:
            yield from self._run(earlier, path)
        except QualityError:
            if earlier is None or self.kept.report is not earlier:
                raise
            set_aside(path)  # it was of other texts, settings or another build
            self.kept.report = None
            yield from self._run(None, path)

    def stop(self) -> None:
        """Ask for the end; the last event comes soon, with what there is."""
        self._is_stopped = True
        if self._process is not None:
            self._process.stop()

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.close()

    def _run(self, earlier: Report | None, path: Path) -> Iterator[LaboratoryEvent]:
        request = replace(self._ask(), earlier=earlier, rows_path=rows_path(path))
        self._process = self._start(request, paths.state_dir() / "laboratory.log")
        try:
            if self._is_stopped:
                self._process.stop()
            for event in self._process:
                self.kept.take(event)
                yield event
        finally:
            self._process.close()


def why_not(configuration: Configuration) -> str | None:
    """Why nothing can be measured of a model; None where something can.

    Raises:
        ModelFileError: its file cannot be read.
    """
    if not os.path.isfile(configuration.model_path):  # noqa: PTH113  False for impossible names too
        return f"{configuration.model_path} is no longer there"
    architecture = read_model(configuration.model_path).architecture
    if not architecture.layers:
        return f"{architecture.name} keeps a recurrent state and no keys and values: no cache types"
    return None
