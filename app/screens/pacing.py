"""How often something is done: at most so often, and never more than a share of the time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
