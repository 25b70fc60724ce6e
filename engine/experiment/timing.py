"""Times settings of llama.cpp in a process of its own (`engine.experiment.timing_worker`).

The parent kills the process when time is up, so nothing in native code can delay the end.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.process.watchdog import describe_exit, start_piped

COMMAND = (sys.executable, "-P", "-m", "engine.experiment.timing_worker")
POLL_S = 0.2

WorkName = Literal["near", "prompt", "deep"]
"""Decoding in a short chat, prefill, decoding in a long chat."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work that is timed."""

    name: WorkName
    n_held: int
    """Tokens in the cache before the clock starts."""
    n_tokens: int = 0
    """Tokens of the prefill; decoding ends by time."""
    seconds: float = 0.0
    """Seconds for which tokens are decoded."""


class Ran(NamedTuple):
    """Time of one run."""

    seconds: float
    """Per token; at least that of a run that was stopped at its limit."""
    n_others: float | None = None
    """Cores that other programs used meanwhile; None if that is unknown."""


class OutOfTimeError(EngineError):
    """The time limit ended before a run was complete."""

    title = "The time limit is reached"


class EngineDiedError(EngineError):
    """The process of the runs ended by itself."""

    title = "A setting crashed the engine"


class Order(NamedTuple):
    """One run for the process."""

    configuration: Configuration
    work: Work
    limit_s: float


class TimingProcess:
    """Times runs on this machine; closing it ends the process.

    Args:
        log_path: Takes the output of the process.
        waiting: Called several times a second during a run.
    """

    def __init__(self, log_path: Path, waiting: Callable[[], None]) -> None:
        self._log_path = log_path
        self._waiting = waiting
        self._process: tuple[Any, Any] | None = None
        """The process and our end of its pipe."""

    def run(self, configuration: Configuration, work: Work, limit_s: float, until_s: float) -> Ran:
        """Time one run; opening a context is not timed.

        Args:
            configuration: The settings.
            work: What is timed.
            limit_s: A longer run is stopped.
            until_s: End of all time, on the monotonic clock.

        Raises:
            OutOfTimeError: the time was up; the process was ended.
            EngineError: this configuration cannot run.
        """
        self._process = self._process or start_piped(COMMAND, self._log_path)
        popen, connection = self._process
        try:
            connection.send(Order(configuration, work, limit_s))
            while not connection.poll(POLL_S):
                self._waiting()
                if time.monotonic() >= until_s:
                    self.close()
                    raise OutOfTimeError("time is up")
            answer = connection.recv()
        except (EOFError, OSError) as error:
            code = popen.wait()
            self.close()
            raise EngineDiedError(describe_exit(code)) from error
        if isinstance(answer, EngineError):
            raise answer
        assert isinstance(answer, Ran)
        return answer

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            popen, connection = self._process
            connection.close()
            popen.kill()
            popen.wait()
        self._process = None
