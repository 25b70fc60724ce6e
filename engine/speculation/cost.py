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
        self._is_behind_batch = False
        self.seconds: float | None = None
        """The median, None before there is a sample."""

    def add(self, elapsed_s: float, *, n_rows: int = 1, switching: float = 0.0) -> None:
        """Take the whole time of one round; only plain ones count.

        One right behind a batch is longer by the share `switching` (`BatchCurve.switching`).
        """
        behind = switching if self._is_behind_batch else 0.0
        self._is_behind_batch = n_rows > 1
        if n_rows > 1:
            return
        self._samples.append(elapsed_s / (1.0 + behind))
        self.seconds = sorted(self._samples)[len(self._samples) // 2]


class PromptRate:
    """The time of one token of a prompt: the median over the last prompts that were computed."""

    MIN_TOKENS = 16
    """A shorter prompt says more about a batch's fixed cost than about a token's."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=RECENT)

    def add(self, n_tokens: int, elapsed_s: float) -> None:
        """Take the time of computing a prompt, or what was left of it."""
        if n_tokens >= self.MIN_TOKENS:
            self._samples.append(elapsed_s / n_tokens)

    def seconds_of(self, n_tokens: int) -> float:
        """Give what computing that many tokens would take; 0 before anything was measured."""
        if not self._samples:
            return 0.0
        return n_tokens * sorted(self._samples)[len(self._samples) // 2]
