"""How long a server may take without progress: its connection is cut then, whatever it sends."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from engine.background import start_thread
from engine.model.http_ranges import Connection

LOOK_S = 1.0
"""How often a running answer is looked at."""
REPORT_EVERY_S = 10.0
"""After how long without progress the wait is reported, and how often from then on."""

Report = Callable[[float, float], None]
"""Called with the seconds without progress and the most that are waited for; 0 where it goes on."""


class Patience:
    """Cuts a connection once nothing was noted for `limit_s`; from another thread, in a `with`.

    Bytes are no progress by themselves: headers, answers before the answer, comments and unfinished
    lines can go on for ever.
    """

    def __init__(self, connection: Connection, limit_s: float, report: Report) -> None:
        self.limit_s = limit_s
        self.is_over = False
        """Whether the connection was cut."""
        self._connection, self._report = connection, report
        self._since = time.monotonic()
        self._n_reports = 0
        self._has_ended = threading.Event()

    def __enter__(self) -> Self:
        start_thread(self._watch, name="patience", on_fault=lambda _: self._connection.cut())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._has_ended.set()
        self._forget()

    def note_progress(self, limit_s: float) -> None:
        """Wait for `limit_s` again, from now on."""
        self.limit_s, self._since = limit_s, time.monotonic()
        self._forget()

    def _forget(self) -> None:
        if self._n_reports:
            self._n_reports = 0
            self._report(0.0, self.limit_s)

    def _watch(self) -> None:
        while not self._has_ended.wait(min(max(self._left_s(), 0.0), LOOK_S)):
            if self._left_s() <= 0:
                self.is_over = True
                self._connection.cut()
                return
            silent_s = time.monotonic() - self._since
            if silent_s >= REPORT_EVERY_S * (self._n_reports + 1):
                self._n_reports += 1
                self._report(silent_s, self.limit_s)

    def _left_s(self) -> float:
        return self._since + self.limit_s - time.monotonic()
