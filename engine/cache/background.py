"""A thread that does small pieces of work, one after the other."""

import threading
from collections.abc import Callable


class Background:
    """Calls `step` again and again; it returns the seconds until the next call is due."""

    def __init__(self, step: Callable[[], float]) -> None:
        self._step = step
        self._event = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="kvchat cache", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the next step begin at once."""
        self._event.set()

    def stop(self, timeout_s: float) -> bool:
        """Begin no further step, and give whether the one that ran ended in time."""
        self._is_stopped = True
        self._event.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_stopped:
            self._event.clear()
            wait_s = self._step()
            if wait_s > 0:
                self._event.wait(wait_s)
