"""What rounds and prompts cost, measured."""

import time
from collections import deque
from math import ceil
from statistics import median

RECENT = 15
RECENT_PLAIN = 5
"""Plain steps that the speed of this moment rests on: few, since others use the machine too."""
RECENT_INFERRED = 7
"""The same of batches; a median of seven forgives three stalled ones."""
STALLED = 2.0
"""Times the expected seconds from which one plain step between drafts is a stall."""
MOST_STEPS = 0.8
"""Share of the plain steps that lie within `PlainStep.spread`."""
LEAST_MISSES = 2


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
    """The time of one plain step at the machine's present speed: of screen, lateness and `auto`.

    It is the median of the last few plain steps. While drafts follow one another there are none,
    and batches whose cost in plain steps is known tell the speed; then one plain step that is far
    slower than they said is a stall, and two in a row are the machine. The first step behind a
    prefill is left out by the caller, because it pays for memory that later ones find warm.
    """

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=RECENT_PLAIN)
        self._inferred: deque[float] = deque(maxlen=RECENT_INFERRED)
        self._misses: deque[float] = deque(maxlen=RECENT)
        self._was_refused = False
        self.seconds: float | None = None
        """None before one was measured."""
        self.spread: float | None = None
        """How far eight of ten plain steps were from what was taken for one, as a share of it; None
        before `LEAST_MISSES` could be compared."""
        self.n_measured = 0

    def add(self, elapsed_s: float) -> bool:
        """Take the time of a plain round; False for a stall, which changes nothing."""
        self._compare(elapsed_s)
        if self._inferred:
            is_slow = elapsed_s > STALLED * median(self._inferred)
            self._was_refused = is_slow and not self._was_refused
            if self._was_refused:
                return False
            # The plain steps from before many drafts say nothing of the machine's speed by now.
            self._measured.clear()
            self._inferred.clear()
        self._measured.append(elapsed_s)
        self.seconds = median(self._measured)
        self.n_measured += 1
        return True

    def infer(self, elapsed_s: float) -> None:
        """Take what a batch of known cost says that a plain step takes by now."""
        self._inferred.append(elapsed_s)
        self.seconds = median(self._inferred)

    def _compare(self, elapsed_s: float) -> None:
        if self.seconds is None:
            return
        self._misses.append(abs(elapsed_s / self.seconds - 1.0))
        if len(self._misses) >= LEAST_MISSES:
            self.spread = sorted(self._misses)[ceil(MOST_STEPS * len(self._misses)) - 1]


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

    def seconds_of(self, n_tokens: int) -> float | None:
        """Give what computing that many tokens would take; None before anything was measured."""
        if not self._samples:
            return None
        return n_tokens * sorted(self._samples)[len(self._samples) // 2]
