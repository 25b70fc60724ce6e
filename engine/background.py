"""Threads that do not die in silence: every thread of kvchat is started here.

    start_thread(body, name="chat-store", on_fault=tell, pauses_s=PAUSES_S, stopping=event)

An exception that leaves `body` is reported with a reference to whoever `set_fault_handler` named,
else to `threading.excepthook`, which prints the traceback: to the log in the engine's process. The
owner of the thread then hears of it by `on_fault`, in that thread, and says what no longer works;
`ThreadFault.reference` leads from that sentence to the report. With `pauses_s` the body is started
again after each of these pauses, so a body that serves jobs goes on with the next one.
"""

import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CALM_S = 60.0
"""A body that ran this long before it raised has all its pauses before it again."""

PAUSES_S = (0.1, 1.0, 5.0, 15.0, 30.0)
"""Pauses for a body that serves jobs: a bad job costs a moment, a bad state no core."""


@dataclass(frozen=True, slots=True)
class ThreadFault:
    """An exception that left the body of a thread."""

    thread: str
    reference: str
    """Eight hexadecimal digits, which the report has too."""
    error: Exception
    will_restart: bool
    """Whether the body is started again."""

    def __str__(self) -> str:
        """What went wrong, in one sentence with the reference."""
        what = str(self.error) or type(self.error).__name__
        return f"an internal error in the thread {self.thread} ({self.reference}): {what}"

    @property
    def report(self) -> str:
        """The sentence and the traceback."""
        return f"{self}\n{''.join(traceback.format_exception(self.error))}"


FaultHandler = Callable[[ThreadFault], None]


def _print(fault: ThreadFault) -> None:
    fault.error.add_note(f"reference {fault.reference}")
    error = fault.error
    threading.excepthook(
        threading.ExceptHookArgs(
            (type(error), error, error.__traceback__, threading.current_thread())
        )
    )


_handler: FaultHandler = _print


def set_fault_handler(handler: FaultHandler | None) -> None:
    """Report faults of all threads to `handler`, called in the thread; None prints them again."""
    global _handler  # noqa: PLW0603  one process has one place for reports
    _handler = handler or _print


def start_thread(
    body: Callable[[], object],
    *,
    name: str,
    on_fault: FaultHandler | None = None,
    pauses_s: Sequence[float] = (),
    stopping: threading.Event | None = None,
) -> threading.Thread:
    """A daemon thread that runs `body`, and reports what ends it before its time.

    Args:
        body: What the thread does; where it serves jobs, it can be called again after a fault.
        name: Of the thread, for the report.
        on_fault: Called in the thread after each report.
        pauses_s: Pauses before the body is started again; after the last one the thread ends.
        stopping: Ends a pause, and the thread with it.
    """
    thread = threading.Thread(
        target=_run, args=(body, name, on_fault, tuple(pauses_s), stopping), name=name, daemon=True
    )
    thread.start()
    return thread


def _run(
    body: Callable[[], object],
    name: str,
    on_fault: FaultHandler | None,
    pauses_s: tuple[float, ...],
    stopping: threading.Event | None,
) -> None:
    left = list(pauses_s)
    while True:
        began_at = time.monotonic()
        try:
            body()
        except Exception as error:  # noqa: BLE001  the edge of a thread: it is reported
            if time.monotonic() - began_at >= CALM_S:
                left = list(pauses_s)
            fault = ThreadFault(name, secrets.token_hex(4), error, bool(left))
            _report(fault, on_fault)
        else:
            return
        if not left:
            return
        pause = left.pop(0)
        if stopping is None:
            time.sleep(pause)
        elif stopping.wait(pause):
            return


def _report(fault: ThreadFault, on_fault: FaultHandler | None) -> None:
    """Call the handler and the owner; what they raise is printed, and stops neither."""
    for call in (_handler, on_fault):
        if call is None:
            continue
        try:
            call(fault)
        except Exception as error:  # noqa: BLE001  the report of a report
            _print(ThreadFault(fault.thread, fault.reference, error, fault.will_restart))
