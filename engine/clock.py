"""Measure elapsed time, limit how often work runs, and limit how long a call may take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import TypeVar

from engine.background import start_thread

T = TypeVar("T")


class Stopwatch:
    """Measures seconds since its creation and since the last split."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._split = self._start

    def split(self) -> float:
        """Return the seconds since the last split and start a new one."""
        now = time.perf_counter()
        elapsed, self._split = now - self._split, now
        return elapsed

    def since_split(self) -> float:
        """Seconds since the last split; does not start a new one."""
        return time.perf_counter() - self._split

    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start


class Pacer:
    """Limits how often work runs, and slow work to a share `max_share` of the time."""

    def __init__(
        self,
        interval_s: float,
        *,
        max_share: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.interval_s = interval_s
        self._max_share = max_share
        self._clock = clock
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether the work should be done now."""
        return self._clock() >= self._next

    @contextmanager
    def work(self) -> Iterator[None]:
        """Time the work in this context and schedule the next one."""
        begin = self._clock()
        yield
        cost = self._clock() - begin
        self._next = begin + max(self.interval_s, cost / self._max_share)


def in_time(ask: Callable[[], T], limit_s: float) -> T:
    """Return the result of `ask`, called in a thread, for libraries without a total time limit.

    After a timeout the thread keeps running until `ask` returns or the process ends.

    Raises:
        TimeoutError: the call took longer than `limit_s` seconds.
    """
    results: Queue[T | BaseException] = Queue()

    def run() -> None:
        try:
            results.put(ask())
        except BaseException as error:  # noqa: BLE001  it is raised in the caller's thread
            results.put(error)

    start_thread(run, name="asks in time")
    try:
        answer = results.get(timeout=limit_s)
    except Empty:
        raise TimeoutError(f"no complete response within {limit_s:g} s") from None
    if isinstance(answer, BaseException):
        try:
            raise answer
        finally:
            del answer  # its traceback refers to this frame: a cycle would keep its connection open
    return answer
