"""A request to stop, made in one thread and obeyed in another."""

import threading
from collections.abc import Callable

from engine.errors import DecodeAborted


class Cancellation:
    """Belongs to one reply; cancelling is final, and may come before the reply has started."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._on_cancel: Callable[[], None] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """Stop the reply; the running decode is aborted."""
        with self._lock:
            self._event.set()
            if self._on_cancel is not None:
                self._on_cancel()

    def check(self) -> None:
        """End the reply between two steps if it was cancelled.

        Raises:
            DecodeAborted: it was.
        """
        if self.is_cancelled:
            raise DecodeAborted("stopped between two steps")

    def attach(self, on_cancel: Callable[[], None]) -> None:
        """Name what interrupts a running decode; who attaches asks `is_cancelled` before each."""
        with self._lock:
            self._on_cancel = on_cancel

    def detach(self) -> None:
        """The reply is over: a late cancel must not stop the next one."""
        with self._lock:
            self._on_cancel = None
