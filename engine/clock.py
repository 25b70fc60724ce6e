"""Clocks: how long something took, how often it may be done, and how long it may take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import TypeVar

from engine.background import start_thread

T = TypeVar("T")


class Stopwatch:
    """Seconds since it was made or last split."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._split = self._start

    def split(self) -> float:
        """Seconds since the last split, which ends here."""
        now = time.perf_counter()
        elapsed, self._split = now - self._split, now
        return elapsed

    def since_split(self) -> float:
        """Seconds since the last split, which runs on."""
        return time.perf_counter() - self._split

    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start


class Pacer:
    """Says when work is due; work that turns out slow is done less often."""

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
        """A context for the work; its time sets when the next is due."""
        begin = self._clock()
        yield
        cost = self._clock() - begin
        self._next = begin + max(self.interval_s, cost / self._max_share)


def in_time(ask: Callable[[], T], limit_s: float) -> T:
    """What a library gives that limits no more than the silence of a server.

    When the time is over nobody waits any more; the thread that asks ends with the process.

    Raises:
        TimeoutError: it took longer.
    """
    told: Queue[T | BaseException] = Queue()

    def run() -> None:
        try:
            told.put(ask())
        except BaseException as error:  # noqa: BLE001  it is raised where it was asked for
            told.put(error)

    start_thread(run, name="asks in time")
    try:
        answer = told.get(timeout=limit_s)
    except Empty:
        raise TimeoutError(f"no complete response within {limit_s:g} s") from None
    if isinstance(answer, BaseException):
        try:
            raise answer
        finally:
            del answer  # this frame is in its traceback: a circle would keep its connection
    return answer
