"""Exceptions of message handlers, actions, timers and workers.

Textual ends the program at the first one. Here an `EngineError` is a notice, so that no handler has
to catch it. Every other exception is a fault: it is reported in a file, and the widget lives on. A
dialog that cannot be drawn is closed; kvchat ends, after saving, if the chat cannot be drawn.
"""

import time
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from typing import Any

from textual._context import active_message_pump
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.dom import NoScreen
from textual.events import Click, Resize
from textual.geometry import Offset
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import OptionList
from textual.worker import WorkerFailed

from app.fault_reports import FaultReport, reference_of, write_report
from engine.background import ThreadFault
from engine.errors import EngineError

N_IN_A_ROW = 3
"""Equal faults in a row after which a chat that cannot be drawn ends."""
ROW_S = 10.0
"""Seconds within which faults are in a row."""
QUIET_S = 60.0
"""Seconds for which an equal fault is not shown again."""

_DRAWING = {
    Screen._refresh_layout.__code__,
    Screen._compositor_refresh.__code__,
    App._display.__code__,
}


class Faults:
    """Shows errors as notices and reports faults; closes a screen that cannot be drawn.

    Args:
        app: The application, which shows faults (`KvchatApp`).
        folder: Returns the folder of the reports.
    """

    def __init__(self, app: Any, folder: Callable[[], Path]) -> None:
        self._app = app
        self._folder = folder
        self._times: dict[str, list[float]] = {}
        """When the last faults of each place were, in seconds."""
        self._reports: dict[str, tuple[float, FaultReport]] = {}
        """When each fault was shown, and its report."""
        self.last_action = "none"

    def handle(self, error: Exception) -> None:
        """Show an exception, and close what cannot be drawn any more."""
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error = error.error
        if isinstance(error, EngineError):
            self._app.show_error(error)
            return
        pump = active_message_pump.get(None)
        report = self.report(error)
        is_mounted = getattr(pump, "_is_mounted", True)
        codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
        if not self._app.is_running:
            self._app.end_after(report)
        elif codes & _DRAWING or not is_mounted:
            screen = _screen_of(pump)
            if screen is not None and screen is not self._app.screen_stack[0]:
                self._app.call_later(close_screen, screen)
            elif not is_mounted or self._is_in_a_row(report.reference):
                self._app.end_after(report)

    def report(self, error: Exception) -> FaultReport:
        """Write a report and show a notice, unless the same fault was shown a moment ago."""
        now = time.monotonic()
        reference = reference_of(error)
        at, report = self._reports.get(reference, (now - QUIET_S, None))
        if report is None or now - at >= QUIET_S:
            pump = active_message_pump.get(None)
            screen = type(_screen_of(pump)).__name__
            doing = f"last action {self.last_action}, in {type(pump).__name__} of {screen}"
            report = write_report(self._folder(), error, doing=doing)
            self._reports[reference] = now, report
            self._app.show_fault(error, report)
        return report

    def report_thread(self, fault: ThreadFault) -> None:
        """Report what ended a thread's work, under the reference that its owner shows too."""
        doing = f"the thread {fault.thread}"
        report = write_report(self._folder(), fault.error, doing=doing, reference=fault.reference)
        self._app.show_fault(fault.error, report)

    def _is_in_a_row(self, reference: str) -> bool:
        now = time.monotonic()
        times = [*self._times.get(reference, ()), now][-N_IN_A_ROW:]
        self._times[reference] = times
        return len(times) == N_IN_A_ROW and now - times[0] <= ROW_S


def close_screen(screen: Screen[Any]) -> None:
    """Close a screen and what stands above it, without a result."""
    app = screen.app
    while screen in app.screen_stack[1:]:
        app.pop_screen()


def mend_textual() -> None:
    """Replace methods of Textual 8.2.8 in this process; a second call changes nothing."""
    for owner, name, mended in (
        (MessagePump, "_dispatch_message", _outliving_faults),
        (Screen, "dismiss", _closing_once),
        (Screen, "get_widget_and_offset_at", _ignoring_removed_widgets),
        (OptionList, "_on_click", _ignoring_removed_options),
    ):
        method = getattr(owner, name)
        if not hasattr(method, "__wrapped__"):
            setattr(owner, name, wraps(method)(mended(method)))


def _outliving_faults(dispatch: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let every widget live on after a message that it failed at.

    Textual's own loop of messages ends with the first fault, and the widget is dead from then on.
    Nor is a screen laid out for a size that the terminal no longer has: Textual 8.2.8 has one
    message for the terminal's new size and for the screen's own that comes of it, and two sizes in
    a queue with other messages between them follow each other without end.
    """

    async def dispatched(self: MessagePump, message: Message) -> None:
        match message:
            case Resize(size=size) if isinstance(self, Screen) and size != self.app.size:
                return
        try:
            await dispatch(self, message)
        except Exception as error:  # whatever it is, the widget lives on
            faults = getattr(self.app, "faults", None)
            if not isinstance(faults, Faults):
                raise
            faults.handle(error)

    return dispatched


def _closing_once(dismiss: Callable[..., AwaitComplete]) -> Callable[..., AwaitComplete]:
    """Let a screen that is dismissed be the one that goes.

    Textual closes the screen on top: after two fast answers to a dialog that is the screen below,
    and if help was opened over a screen that closes by itself it is the help.
    """

    def dismissed(self: Screen[Any], result: object = None) -> AwaitComplete:
        if self not in self.app.screen_stack:
            return AwaitComplete()  # it was answered already
        while self.app.screen is not self:
            self.app.pop_screen()
        return dismiss(self, result)

    return dismissed


Found = tuple[Widget | None, Offset | None]


def _ignoring_removed_widgets(find: Callable[..., Found]) -> Callable[..., Found]:
    """Let the mouse select no text of a widget that has left the screen.

    Until the screen is laid out again, Textual 8.2.8 still finds such a widget under the mouse, for
    example a notice that has expired, and fails since it has no parent.
    """

    def found(self: Screen[Any], x: int, y: int) -> Found:
        widget, offset = find(self, x, y)
        return (None, None) if widget is None or widget.parent is None else (widget, offset)

    return found


def _ignoring_removed_options(
    click: Callable[..., Awaitable[None]],
) -> Callable[..., Awaitable[None]]:
    """Let a click on a row do nothing if the list has become shorter meanwhile.

    Textual 8.2.8 looks the row up in the new list, for example in the palette while the user types.
    """

    async def clicked(self: OptionList, event: Click) -> None:
        row = event.style.meta.get("option")
        if row is None or row < self.option_count:
            await click(self, event)

    return clicked


def _screen_of(pump: MessagePump | None) -> Screen[Any] | None:
    try:
        return pump.screen if isinstance(pump, Widget) else None
    except NoScreen:
        return None
