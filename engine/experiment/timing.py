"""Times of settings, measured by a process of its own (`engine.experiment.timing_worker`).

Whoever waits for a run ends that process where time is up, so nothing in native code can
delay the end.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.experiment.settings import Work
from engine.process.watchdog import describe_exit, is_native_crash, start_behind_pipe

if TYPE_CHECKING:
    from subprocess import Popen

COMMAND = (sys.executable, "-P", "-m", "engine.experiment.timing_worker")
POLL_S = 0.2


class Ran(NamedTuple):
    """What one run took."""

    seconds: float
    """A token; of a run that was stopped at its limit at least so many."""
    n_others: float | None = None
    """Cores that other programs took meanwhile; None where that was not seen."""


class OutOfTimeError(EngineError):
    """The time was over before a run was."""

    title = "Time is up"


class EngineDiedError(EngineError):
    """The process of the runs ended by itself."""

    title = "A setting crashed the engine"

    def __init__(self, reason: str, *, is_crash: bool) -> None:
        super().__init__(reason)
        self.is_crash = is_crash
        """Whether native code crashed."""


class TimingMachine(Protocol):
    """Takes times; a fake one knows them."""

    def run(
        self, configuration: Configuration, work: Work, *, limit_s: float, until_s: float
    ) -> Ran:
        """Time one run.

        Args:
            configuration: What it runs with; what is missing is opened, which is not timed.
            work: What is timed.
            limit_s: The run is stopped where it takes longer.
            until_s: When the time for everything is over, on the monotonic clock.

        Raises:
            OutOfTimeError: the time was over; the process was ended.
            EngineError: this configuration cannot run.
        """
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """One run that is asked of the process."""

    configuration: Configuration
    work: Work
    limit_s: float


class TimingProcess:
    """The machine that the program runs on; closing it ends the process.

    Args:
        log_path: Where the process writes what a crash says.
        waiting: Called several times a second while a run is waited for.
    """

    def __init__(self, log_path: Path, waiting: Callable[[], None]) -> None:
        self._log_path = log_path
        self._waiting = waiting
        self._popen: Popen[bytes] | None = None
        self._connection: Connection[Order, Ran | EngineError] | None = None

    def run(
        self, configuration: Configuration, work: Work, *, limit_s: float, until_s: float
    ) -> Ran:
        connection = self._connection or self._start()
        try:
            connection.send(Order(configuration, work, limit_s))
            while not connection.poll(POLL_S):
                self._waiting()
                if time.monotonic() >= until_s:
                    self.close()
                    raise OutOfTimeError("time is up")
            answer = connection.recv()
        except (EOFError, OSError) as error:
            assert self._popen is not None
            code = self._popen.wait()
            self.close()
            raise EngineDiedError(describe_exit(code), is_crash=is_native_crash(code)) from error
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._connection is not None:
            self._connection.close()
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
        self._popen = self._connection = None

    def _start(self) -> "Connection[Order, Ran | EngineError]":
        self._popen, self._connection = start_behind_pipe(COMMAND, self._log_path)
        return self._connection
