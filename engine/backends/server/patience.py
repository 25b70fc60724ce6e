"""How long a server may take without progress: its connection is cut then, whatever it sends."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from engine.background import start_thread

LOOK_S = 1.0
"""How often a running answer is looked at."""
REPORT_EVERY_S = 10.0
"""After how long without progress the wait is reported, and how often from then on."""

Report = Callable[[float, float], None]
"""Called with the seconds without progress and the most that are waited for; 0 where it goes on."""


class Connection:
    """The connection of one answer, which another thread can cut, whatever waits for it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.is_cut = False

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Take the socket that httpcore has opened; with TLS it is another from then on."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.is_cut:
                self.cut()

    def cut(self) -> None:
        """End the connection."""
        self.is_cut = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


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
