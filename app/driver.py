"""Textual's drivers of the terminal and of a browser's tab, which leave both usable.

Textual 8.2.8 enters its mode a second time after a process was stopped by SIGSTOP and continued,
and leaves the terminal as it is where a signal ends the process.
"""

import asyncio
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, cast

from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals at which kvchat saves, leaves the terminal as it was and ends."""
END_S = 5.0
"""Seconds within which everything is saved when a signal ends kvchat."""
SIGNALLED = 128
"""A process that a signal ended has the signal's number and this as its exit code."""
LEAVING = "".join(
    f"\x1b[{mode}"
    for mode in ("?2004l", "?7h", "?1000l", "?1003l", "?1006l", "<u", "?1049l", "?25h")
)
"""Ends bracketed paste, mouse, keyboard protocol and alternate screen, and shows the cursor."""


class TerminalDriver(LinuxDriver):
    """The driver of a terminal: signals stop, continue and end it as other programs."""

    _loop: asyncio.AbstractEventLoop
    _handlers: Mapping[signal.Signals, Any]
    """Signal handlers that were set before."""
    _must_end = False

    def start_application_mode(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handlers = {number: signal.signal(number, self._end) for number in ENDING}
        super().start_application_mode()  # type: ignore[no-untyped-call]  # of Textual

    def run_input_thread(self) -> None:
        threading.Thread(target=self._end_with_the_terminal, daemon=True).start()
        super().run_input_thread()

    def _end_with_the_terminal(self) -> None:
        """Wait until the terminal is gone: without job control, no signal reports that."""
        waiting = select.poll()
        waiting.register(self.fileno, 0)
        if any(happened & (select.POLLHUP | select.POLLERR) for _, happened in waiting.poll()):
            self._end(signal.SIGHUP, None)

    def stop_application_mode(self) -> None:
        super().stop_application_mode()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _sigcont_application(self, *_: object) -> None:
        if self._must_signal_resume or not self._auto_restart:
            super()._sigcont_application()  # SIGTSTP has left the mode before
        else:
            self._call(self._enter_again)

    def _call(self, function: Callable[..., None], *arguments: int) -> None:
        """Call a function of the application, wherever its thread is interrupted."""
        self._loop.call_soon_threadsafe(self._app.call_later, function, *arguments)

    def _enter_again(self) -> None:
        """Leave the mode and enter it: the shell has changed the terminal meanwhile."""
        with suppress(OSError):  # no shell controls this terminal
            if os.tcgetpgrp(self.fileno) != os.getpgrp():
                os.kill(os.getpid(), signal.SIGSTOP)  # until the shell's `fg`
                return
        self.suspend_application_mode()
        self._must_signal_resume = True
        self.resume_application_mode()
        self._app.refresh(layout=True)

    def _end(self, number: int, _: FrameType | None) -> None:
        if self._must_end:
            if number != signal.SIGHUP:  # a terminal that closes is reported twice
                self._die(number)
            return
        self._must_end = True
        self._call(cast(Any, self._app).leave, SIGNALLED + number)
        after_a_while(self._die, number)

    def _die(self, number: int) -> None:
        """End at once, the terminal as it was."""
        if self.attrs_before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
        with suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, LEAVING.encode())
        os._exit(SIGNALLED + number)


class TabDriver(WebDriver):
    """The driver of a browser's tab, which ends with the server of the tab."""

    def start_application_mode(self) -> None:
        self._loop = asyncio.get_running_loop()
        super().start_application_mode()

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():  # the server is gone: this tab cannot be seen or closed
            code = SIGNALLED + signal.SIGHUP
            leave = cast(Any, self._app).leave
            self._loop.call_soon_threadsafe(self._app.call_later, leave, code)
            after_a_while(os._exit, code)


def own_driver(usual: type[Driver]) -> type[Driver]:
    """The driver that replaces Textual's."""
    own: dict[type[Driver], type[Driver]] = {LinuxDriver: TerminalDriver, WebDriver: TabDriver}
    return own.get(usual, usual)


def after_a_while(end: Callable[[int], object], argument: int) -> None:
    """Call `end` if the process has not ended within `END_S`."""
    timer = threading.Timer(END_S, end, (argument,))
    timer.daemon = True
    timer.start()
