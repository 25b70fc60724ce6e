"""Seconds of work, as a stopwatch shows them."""

import time


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
