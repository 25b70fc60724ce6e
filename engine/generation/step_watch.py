"""Ends a step that takes far longer than it should, while native code computes it."""

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from engine.background import ThreadFault, start_thread
from engine.errors import DecodeAborted, EngineError

T = TypeVar("T")

IDLE_S = 1.0
"""Without a step, after which the watching thread ends."""


class StepStoppedError(EngineError):
    """The step took longer than its limit."""


class StepWatch:
    """Gives each step a limit; a thread that sleeps meanwhile stops the one that passes it.

    The thread is there while steps follow one another, and wakes about once in a limit.
    """

    def __init__(self, stop: Callable[[], None], go_on: Callable[[], None]) -> None:
        """Steps of one backend.

        Args:
            stop: Ends the running step with `DecodeAborted`; called from the thread.
            go_on: Lets steps run again.
        """
        self._stop, self._go_on = stop, go_on
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._until = self._wakes_at = math.inf
        self._is_watching = self._has_stopped = False

    def run(self, step: Callable[[], T], limit_s: float) -> T:
        """What `step` gives.

        Raises:
            StepStoppedError: it took longer than `limit_s`.
            DecodeAborted: somebody else stopped it.
        """
        self._begin(limit_s)
        try:
            return step()
        except DecodeAborted as error:
            if self._end():
                raise StepStoppedError(f"stopped after {limit_s:.2f} s") from error
            raise
        finally:
            if self._end():
                self._go_on()

    def _begin(self, limit_s: float) -> None:
        with self._lock:
            self._has_stopped = False
            self._until = time.perf_counter() + limit_s
            if not self._is_watching:
                self._is_watching = True
                start_thread(self._guard, name="step-watch", on_fault=self._unwatched)
            elif self._until < self._wakes_at:
                self._changed.notify()

    def _end(self) -> bool:
        with self._lock:
            self._until = math.inf
            return self._has_stopped

    def _unwatched(self, fault: ThreadFault) -> None:
        """The running step has no limit; the next one starts a thread again."""
        del fault
        with self._lock:
            self._is_watching, self._wakes_at = False, math.inf

    def _guard(self) -> None:
        idle_since: float | None = None
        with self._lock:
            while True:
                now = time.perf_counter()
                if self._until <= now:
                    self._has_stopped, self._until = True, math.inf
                    self._stop()
                is_idle = self._until == math.inf
                idle_since = (idle_since or now) if is_idle else None
                if idle_since is not None and now - idle_since >= IDLE_S:
                    self._is_watching, self._wakes_at = False, math.inf
                    return
                pause_s = IDLE_S if is_idle else self._until - now
                self._wakes_at = now + pause_s
                self._changed.wait(pause_s)
