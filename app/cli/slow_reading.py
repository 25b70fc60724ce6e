"""A line on standard error about what takes longer than a moment."""

import sys
import time
from collections.abc import Callable

from app.cli.console import tell, tell_over
from engine.memory.units import MIB

QUIET_S = 0.7
"""What is faster than that is not talked about."""
TELL_EVERY_S = 0.2


class SlowReading:
    """Shows how far something is, on one line that goes away; without a terminal says it once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_until = clock() + QUIET_S
        self._is_terminal = sys.stderr.isatty()
        self._has_told = False

    def header(self, name: str, n_bytes: int) -> None:
        """Tell how much of the header of a remote model has come."""
        self._tell(f"reading the header of {name}", f"{n_bytes / MIB:.1f} MiB")

    def scanned(self, n_done: int, n_all: int) -> None:
        """Tell how many models of the folders were looked at."""
        self._tell("reading the headers of the models", f"{n_done} of {n_all}")

    def done(self) -> None:
        """Take the line away."""
        if self._is_terminal and self._has_told:
            tell_over()

    def _tell(self, what: str, how_far: str) -> None:
        now = self._clock()
        if now < self._quiet_until:
            return
        self._quiet_until = now + TELL_EVERY_S
        if self._is_terminal:
            tell_over(f"{what}: {how_far}")
        elif not self._has_told:
            tell(f"{what} …")
        self._has_told = True
