"""Start threads whose uncaught exceptions are reported; all threads of kvchat start here.

    start_thread(body, name="chat-store", on_fault=report, pauses_s=PAUSES_S, stopping=event)

An exception that leaves `body` is reported with a reference to the handler of `set_fault_handler`,
by default to `threading.excepthook`, which prints the traceback (to the log in the engine's
process). Then `on_fault` is called in that thread, so that the owner can report what no longer
works; `ThreadFault.reference` links that message to the report. With `pauses_s` the body is
restarted after each pause, so a body that serves jobs continues with the next one.
"""

import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CALM_S = 60.0
"""A body that ran this long before it raised restarts with the first pause again."""

PAUSES_S = (0.1, 1.0, 5.0, 15.0, 30.0)
"""Pauses for a body that serves jobs: short after one bad job, long if every restart fails."""


@dataclass(frozen=True, slots=True)
class ThreadFault:
    """An exception that left the body of a thread."""

    thread: str
    reference: str
    """Eight hexadecimal digits that the report contains too."""
    error: Exception
    will_restart: bool
    """Whether the body will be restarted."""

    def __str__(self) -> str:
        """The fault in one sentence with the reference."""
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
    """Set the handler for faults of all threads, called in the thread; None prints them."""
    global _handler  # noqa: PLW0603  one handler per process
    _handler = handler or _print


def start_thread(
    body: Callable[[], object],
    *,
    name: str,
    on_fault: FaultHandler | None = None,
    pauses_s: Sequence[float] = (),
    stopping: threading.Event | None = None,
) -> threading.Thread:
    """Start a daemon thread that runs `body` and reports its uncaught exceptions.

    Args:
        body: Function to run; with `pauses_s` it is called again after a fault.
        name: Name of the thread, for the report.
        on_fault: Called in the thread after each report.
        pauses_s: Pauses in seconds before restarts; a fault after the last one ends the thread.
        stopping: Event that ends a pause and the thread.
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
        except Exception as error:  # noqa: BLE001  the boundary of a thread: it is reported
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
    """Call the handler and the owner; print their exceptions."""
    for call in (_handler, on_fault):
        if call is None:
            continue
        try:
            call(fault)
        except Exception as error:  # noqa: BLE001  a failed report must not end the thread
            _print(ThreadFault(fault.thread, fault.reference, error, fault.will_restart))
