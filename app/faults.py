"""What becomes of an exception that nobody caught, wherever on the screen it was raised.

Textual ends the program at the first one, and ends the loop of the widget that raised it. Here the
loop goes on, a line that cannot be painted stays blank, a timer that fails again and again is
stopped, and a dialog that cannot be shown is closed. Only a chat that cannot be painted any more
ends, after everything was saved.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any, Protocol, TypeVar

from textual._compositor import Compositor
from textual._context import active_message_pump
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.dom import NoScreen
from textual.events import Resize
from textual.geometry import Offset, Region
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget
from textual.worker import WorkerFailed

from app.fault_reports import FaultReport, reference_of, write_report
from engine.background import ThreadFault

T = TypeVar("T")

N_IN_A_ROW = 3
"""Faults of one place after which what repeats by itself is switched off."""
ROW_S = 10.0
"""Seconds within which faults are in a row."""
N_STEP_FAILS = 25
"""Times in a row that a step of a screen fails before it is left out: two seconds of frames."""
QUIET_S = 60.0
"""Seconds for which a fault that comes again is not shown again."""

_PAINTING = {
    Screen._refresh_layout.__code__,
    Screen._compositor_refresh.__code__,
    App._display.__code__,
}


class Shown(Protocol):
    """The application as its faults need it."""

    def tell_fault(self, error: Exception, report: FaultReport) -> None:
        """Show a notice."""

    def end_after(self, report: FaultReport) -> None:
        """Save everything and end, with a sentence on standard error."""


class Faults:
    """Reports faults, and switches off what would only fail again."""

    def __init__(self, app: App[Any], shown: Shown, folder: Callable[[], Path]) -> None:
        """Nothing has failed yet.

        Args:
            app: The application.
            shown: The same, as it shows faults.
            folder: Where the reports are kept.
        """
        self._app = app
        self._shown = shown
        self._folder = folder
        self._times: dict[str, list[float]] = {}
        """When the last faults of each place were, in seconds."""
        self._reports: dict[str, tuple[float, FaultReport]] = {}
        """When each fault was shown, and its report."""
        self.last_action = "none"

    def take(self, error: Exception) -> None:
        """Report an exception, and do what lets the rest of the screen go on."""
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error = error.error
        pump = active_message_pump.get(None)
        report = self._reported(error, pump)
        codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
        if not self._app.is_running:
            self._shown.end_after(report)
        elif not getattr(pump, "_is_mounted", True):
            self._leave(_screen_of(pump), report, is_needed=isinstance(pump, Screen))
        elif codes & _PAINTING:
            self._do_without(error, codes, pump, report)
        elif self._is_in_a_row(report.reference):
            for timer in _callers(error, Timer):
                if timer.name != "screen_update":  # which paints
                    timer.stop()

    def report(self, error: Exception) -> FaultReport:
        """Report an exception after which nothing has to be switched off."""
        return self._reported(error, active_message_pump.get(None))

    def take_thread(self, fault: ThreadFault) -> None:
        """Report what ended a thread's work, under the name that its owner has for it too."""
        doing = f"the thread {fault.thread}"
        report = write_report(self._folder(), fault.error, doing=doing, reference=fault.reference)
        self._shown.tell_fault(fault.error, report)

    def end_after(self, report: FaultReport) -> None:
        """End the application, since nothing can be shown any more."""
        self._shown.end_after(report)

    def _reported(self, error: Exception, pump: MessagePump | None) -> FaultReport:
        now = time.monotonic()
        reference = reference_of(error)
        at, report = self._reports.get(reference, (now - QUIET_S, None))
        if report is None or now - at >= QUIET_S:
            doing = f"last action {self.last_action}, in {_name(pump)}"
            report = write_report(self._folder(), error, doing=doing)
            self._reports[reference] = now, report
            self._shown.tell_fault(error, report)
        return report

    def _is_in_a_row(self, reference: str) -> bool:
        now = time.monotonic()
        times = [*self._times.get(reference, ()), now][-N_IN_A_ROW:]
        self._times[reference] = times
        return len(times) == N_IN_A_ROW and now - times[0] <= ROW_S

    def _do_without(
        self,
        error: Exception,
        codes: set[CodeType],
        pump: MessagePump | None,
        report: FaultReport,
    ) -> None:
        """Leave blank what cannot be painted; hide or close what cannot be laid out."""
        widgets = [each for each in _callers(error, Widget) if not isinstance(each, Screen)]
        culprit = widgets[-1] if widgets else None
        screen = _screen_of(culprit or pump)
        if widgets and Compositor._get_renders.__code__ in codes:
            painter = widgets[0]
            painter.render_lines = partial(  # type: ignore[method-assign]  # of this one
                self._painted, painter.render_lines
            )
            painter.screen.refresh()
        elif self._is_chat(screen) and culprit is not None and _can_be_missed(culprit):
            culprit.display = False
        else:
            self._leave(screen, report, is_needed=self._is_in_a_row(report.reference))

    def _painted(self, render: Callable[[Region], list[Strip]], crop: Region) -> list[Strip]:
        """What a widget can paint; a line that it cannot stays blank."""
        try:
            return render(crop)
        except Exception as error:  # noqa: BLE001  the other widgets have to be painted
            self.report(error)
            if crop.height <= 1:
                return [Strip.blank(crop.width)] * crop.height
            lines = (Region(crop.x, y, crop.width, 1) for y in crop.line_range)
            return [strip for line in lines for strip in self._painted(render, line)]

    def _is_chat(self, screen: Screen[Any] | None) -> bool:
        return screen is None or screen is self._app.screen_stack[0]

    def _leave(self, screen: Screen[Any] | None, report: FaultReport, *, is_needed: bool) -> None:
        """Close a screen with those above it; the chat is left only where it is needed."""
        if screen is not None and not self._is_chat(screen):
            self._app.call_later(close_screen, screen)
        elif is_needed:
            self._shown.end_after(report)


class Steps:
    """What a screen does again and again, step by step; one that always fails is left out."""

    def __init__(self, faults: Faults, steps: Sequence[Callable[[], object]]) -> None:
        """All steps are to be done.

        Args:
            faults: Are told of what fails.
            steps: The first is the one without which nothing goes on.
        """
        self._faults = faults
        self._steps = [*steps]
        self._first = self._steps[0]
        self._n_failed = dict.fromkeys(steps, 0)

    def run(self) -> None:
        """Do each step, whatever the others raise."""
        for step in tuple(self._steps):
            try:
                step()
            except Exception as error:  # noqa: BLE001  the other steps have to go on
                self._failed(step, error)
            else:
                self._n_failed[step] = 0

    def _failed(self, step: Callable[[], object], error: Exception) -> None:
        report = self._faults.report(error)
        self._n_failed[step] += 1
        if self._n_failed[step] < N_STEP_FAILS:
            return
        if step == self._first:
            self._faults.end_after(report)
        else:
            self._steps.remove(step)


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
            faults = _faults_of(self)
            if faults is None:
                raise
            faults.take(error)

    return dispatched


def _closing_once(dismiss: Callable[..., AwaitComplete]) -> Callable[..., AwaitComplete]:
    """Let a screen that is dismissed be the one that goes.

    Textual takes whichever lies on top: behind two quick answers to a dialog that is the screen
    below it, and where help was opened over a screen that closes by itself it is the help.
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


def _faults_of(pump: MessagePump) -> Faults | None:
    """The faults of the application; None in one that has none, such as that of a test."""
    faults = getattr(pump.app, "faults", None)
    return faults if isinstance(faults, Faults) else None


def _callers(error: BaseException, kind: type[T]) -> list[T]:
    """The objects of a kind whose methods led to an exception, the outermost first."""
    objects = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    return [each for each in objects if isinstance(each, kind)]


def _screen_of(pump: MessagePump | None) -> Screen[Any] | None:
    try:
        return pump.screen if isinstance(pump, Widget) else None
    except NoScreen:
        return None


def _can_be_missed(widget: Widget) -> bool:
    return not (widget.can_focus or widget.children)


def _name(pump: MessagePump | None) -> str:
    screen = _screen_of(pump)
    beside = "" if screen is None or screen is pump else f" of {type(screen).__name__}"
    return f"{type(pump).__name__}{beside}"
