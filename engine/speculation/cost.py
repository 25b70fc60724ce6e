"""What rounds cost, measured; the only clocks of the engine are here."""

import time
from collections import deque

RECENT = 15


class Stopwatch:
    """Seconds since it was made or last split."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._split = self._start

    def split(self) -> float:
        """Give the seconds since the last split."""
        now = time.perf_counter()
        elapsed, self._split = now - self._split, now
        return elapsed

    def since_split(self) -> float:
        """Give the seconds since the last split and let it run on."""
        return time.perf_counter() - self._split

    def total(self) -> float:
        """Give the seconds since the start."""
        return time.perf_counter() - self._start


class PlainStep:
    """The time of one plain step: the median of the last `RECENT` measured ones.

    A median is not moved by a stalled step. The first step behind a prefill is left out by the
    caller, because it pays for memory that later ones find warm.
    """

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=RECENT)

    def add(self, elapsed_s: float) -> None:
        """Take the whole time of one plain round."""
        self._samples.append(elapsed_s)

    @property
    def seconds(self) -> float | None:
        """The median, None before there is a sample."""
        if not self._samples:
            return None
        return sorted(self._samples)[len(self._samples) // 2]
