"""What a batch of n rows costs, learned from rounds."""

from collections import deque
from itertools import pairwise
from statistics import median

from engine.configuration import MAX_DRAFT

RECENT = 7
"""Samples of a number of rows: few, since a machine that others use changes its speed, and a ratio
of old to new times would be taken for a cost."""
MAX_ROWS = 1 + MAX_DRAFT

FIRST_GUESS = 1.1
"""Plain steps that an unmeasured batch of two is taken to cost: low, so that it is tried."""
FALLING = 0.15
"""Share of the slope from one row to the next number that a longer batch is taken to climb on with.
Batches of two are dear beside one on many machines and longer ones are not; a guess that is too low
is tried once, one that is too high never."""
HARDLY_FALLING = 0.8
"""The same behind three measured numbers, for the slope from the second one on."""


class BatchCurve:
    """Seconds of a verification by its number of rows.

    Each number of rows has the median of its recent samples, so a stalled round does not move it;
    with two samples it is the smaller, and one alone counts as twice what was expected at most.
    Between measured numbers it is linear, which keeps the kinks of the machine's kernels, and it
    never falls (pool adjacent violators: Ayer et al. 1955). Beyond the largest measured number it
    is a low guess that reaches twice as far: longer drafts are tried step by step.
    """

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._settled: dict[int, float] = {}
        self._seconds: tuple[float, ...] = ()
        self.all_steps: tuple[float, ...] = (1.0,) * MAX_ROWS
        """The cost of 1 to `MAX_ROWS` rows in plain steps."""

    def add(self, n_rows: int, elapsed_s: float) -> None:
        """Take the time of one verification of `n_rows` tokens."""
        self._samples.setdefault(n_rows, deque(maxlen=RECENT)).append(elapsed_s)
        if 1 in self._samples:
            self._seconds = tuple(self._drawn(n_rows))
            self.all_steps = tuple(seconds / self._seconds[0] for seconds in self._seconds)

    @property
    def plain_s(self) -> float | None:
        """Seconds of one row, None before it was measured."""
        return self._seconds[0] if self._seconds else None

    @property
    def n_plain_samples(self) -> int:
        """How many plain steps the curve rests on, `RECENT` at most."""
        return len(self._samples.get(1, ()))

    @property
    def reach(self) -> int:
        """The most rows that may be tried: twice the most that were measured."""
        return min(2 * max(self._samples, default=0), MAX_ROWS)

    def steps(self, n_rows: int) -> float:
        """Give the cost of a batch in plain steps; 1 for one row."""
        return self.all_steps[n_rows - 1]

    def measured(self) -> tuple[tuple[int, float], ...]:
        """Give the measured points, rows and plain steps."""
        return tuple((n_rows, self.steps(n_rows)) for n_rows in sorted(self._samples))

    def _drawn(self, changed: int) -> list[float]:
        points: list[tuple[int, float]] = []
        for n_rows, samples in sorted(self._samples.items()):
            if n_rows == changed or len(samples) == 1 or n_rows not in self._settled:
                self._settled[n_rows] = _settled(samples, _expected(points, n_rows))
            points.append((n_rows, self._settled[n_rows]))
        rising = _never_falling([(value, len(self._samples[n])) for n, value in points])
        known = [(n_rows, value) for (n_rows, _), value in zip(points, rising, strict=True)]
        return _joined(known)


def _settled(samples: deque[float], expected: float | None) -> float:
    if len(samples) == 1:
        return samples[0] if expected is None else min(samples[0], 2 * expected)
    return min(samples) if len(samples) == 2 else median(samples)


def _expected(points: list[tuple[int, float]], n_rows: int) -> float | None:
    """Give the low guess for a number of rows above all the points, None without points."""
    if not points:
        return None
    first, last = points[0], points[-1]
    if last[0] == first[0]:
        return first[1] * (1 + (FIRST_GUESS - 1) * (n_rows - first[0]))
    start = points[1] if len(points) > 2 else first
    share = HARDLY_FALLING if len(points) > 2 else FALLING
    slope = (last[1] - start[1]) / (last[0] - start[0])
    return last[1] + share * slope * (n_rows - last[0])


def _joined(points: list[tuple[int, float]]) -> list[float]:
    """Give the seconds of 1 to `MAX_ROWS` rows: straight between points, guessed beyond them."""
    seconds = [points[0][1]]
    for (left, low), (right, high) in pairwise(points):
        slope = (high - low) / (right - left)
        seconds += [low + slope * n for n in range(1, right - left + 1)]
    beyond = range(len(seconds) + 1, MAX_ROWS + 1)
    return seconds + [_expected(points, n_rows) or points[-1][1] for n_rows in beyond]


def _never_falling(weighted: list[tuple[float, int]]) -> list[float]:
    """Give the nearest values that do not fall, as means of pools of neighbours."""
    pools: list[tuple[float, int, int]] = []
    for value, weight in weighted:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            right, left = pools.pop(), pools.pop()
            both = left[1] + right[1]
            mean = (left[0] * left[1] + right[0] * right[1]) / both
            pools.append((mean, both, left[2] + right[2]))
    return [value for value, _, size in pools for _ in range(size)]
