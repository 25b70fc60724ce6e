"""One run of a measurement: its report's file while it grows, and how the next one goes on."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, Self

from app import paths
from engine.files import FileLock, acquire_lock
from engine.process.laboratory import LaboratoryProcess
from engine.quality.laboratory import LaboratoryEvent, LaboratoryFinished, Note, ReportChanged
from engine.quality.records import QualityError, Report, read_report, write_report
from engine.quality.request import LaboratoryRequest

LOCK_SUFFIX = ".lock"
"""Ends the name of the file that is there while a run writes a report."""
BEFORE_SUFFIX = ".before"
PLACE_BYTES = 4
MOST_OF_A_NAME = 48
"""Characters of a model's name in that of its reports: file systems allow 255 bytes."""


class Measuring(Protocol):
    """The events of a measurement in a process of its own."""

    def __iter__(self) -> Iterator[LaboratoryEvent]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


Start = Callable[[LaboratoryRequest, Path], Measuring]


class MeasurementRun:
    """The events of one measurement by iteration; its report is written behind every change.

    A stop, a kill or a fault leaves what there was. The file is this run's from entering to
    leaving, which ends the process.

    Args:
        path: The report's file; None keeps the report in memory.
        start: Starts the process.
    """

    def __init__(self, path: Path | None, start: Start = LaboratoryProcess) -> None:
        self.path = path
        self.report: Report | None = None
        """What was measured so far; None before the first change."""
        self.is_complete: bool | None = None
        """Whether nothing was stopped; None until the last event."""
        self.is_written = True
        """Whether the file has the report as it is."""
        self._start = start
        self._lock: FileLock | None = None
        self._process: Measuring | None = None
        self._events: Iterator[LaboratoryEvent] = iter(())
        self._instead: LaboratoryRequest | None = None
        self._note: Note | None = None
        self._is_stopped = self._is_closed = self._has_told = False

    def __enter__(self) -> Self:
        """Take the report's file.

        Raises:
            QualityError: another run writes it, or it cannot be written.
        """
        if self.path is not None:
            self._lock = _lock(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._lock is not None:
            self._lock.close()

    def begin(self, request: LaboratoryRequest) -> None:
        """Start to measure, from the earlier report of the request on."""
        self._process = self._start(request, paths.state_dir() / "laboratory.log")
        self._events = iter(self._process)
        if self._is_stopped:
            self._process.stop()
        if self._is_closed:
            self._process.close()

    def go_on(self, request: LaboratoryRequest) -> None:
        """Start from the report that the file holds.

        One of other texts or settings, or of another build, is set aside.
        """
        earlier = None if self.path is None else earlier_report(self.path)
        self._instead = None if earlier is None else request
        self.begin(replace(request, earlier=earlier))

    def stop(self) -> None:
        """Ask for the end; the last event comes soon, with what there is."""
        self._is_stopped = True
        if self._process is not None:
            self._process.stop()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._is_closed = True
        if self._process is not None:
            self._process.close()

    def __iter__(self) -> Iterator[LaboratoryEvent]:
        return self

    def __next__(self) -> LaboratoryEvent:
        """The next event; waits for it.

        Raises:
            EngineError: the measurement failed; `report` has what there was.
        """
        if self._note is not None:
            note, self._note = self._note, None
            return note
        try:
            event = next(self._events)
        except QualityError:
            if self._instead is None:
                raise
            self._begin_anew(self._instead)
            return next(self)
        self._take(event)
        return event

    def _begin_anew(self, request: LaboratoryRequest) -> None:
        self._instead = None
        if self._process is not None:
            self._process.close()
        if self.path is not None:
            set_aside(self.path)
        self.begin(request)

    def _take(self, event: LaboratoryEvent) -> None:
        match event:
            case ReportChanged(report):
                self._keep(report)
            case LaboratoryFinished(report, is_complete):
                self.is_complete = is_complete
                self._keep(report)
            case _:
                pass

    def _keep(self, report: Report) -> None:
        """Write the report; the first time that it cannot be written is told."""
        self.report, self._instead = report, None
        if self.path is None:
            return
        try:
            write_report(self.path, report)
            self.is_written = True
        except QualityError as error:
            self.is_written = False
            if not self._has_told:
                self._note, self._has_told = Note(str(error)), True


def _lock(path: Path) -> FileLock:
    try:
        lock = acquire_lock(path.with_name(f"{path.name}{LOCK_SUFFIX}"))
    except OSError as error:
        raise QualityError(
            f"{path} cannot be written ({error.strerror or error}): use another file"
        ) from error
    if lock is None:
        raise QualityError(
            f"another run of kvchat is writing {path}: wait until that run ends, or stop that run"
        )
    return lock


def report_path(model_path: Path, texts: str) -> Path:
    """Where the report of a model on some texts lies, such as `own` or `chats`."""
    place = blake2b(os.fsencode(model_path.absolute()), digest_size=PLACE_BYTES).hexdigest()
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
