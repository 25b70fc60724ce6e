"""What a batch of n rows costs in plain steps, learned from rounds."""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from engine.configuration import MAX_DRAFT
from engine.speculation.cost import PlainStep

RECENT = 7
"""Samples of a number of rows that count; a median of seven forgives three stalled ones."""
NEAR = 12
"""Rounds behind a plain step in which it still tells the speed of this moment."""
PER_PLAIN = 3
"""Ratios of a number of rows to one plain step: fewer than decide a median, should it mislead."""
TRUSTED = 2
"""Samples that a number of rows known from an earlier run is worth."""
LEAST_SWITCHES = 3
"""Plain steps behind batches from which their median is believed."""
MAX_ROWS = 1 + MAX_DRAFT

FIRST_GUESS = 1.1
"""Plain steps that an unmeasured batch of two is taken to cost: low, so that it is tried."""
FALLING = 0.15
"""Share of the slope from one row to the next number that a longer batch is taken to climb on with.
Batches of two are dear beside one on many machines and longer ones are not; a guess that is too low
is tried once, one that is too high never."""
HARDLY_FALLING = 0.8
"""The same behind three measured numbers, for the slope from the second one on."""

Points = tuple[tuple[int, float], ...]


class BatchCurve:
    """The cost of a verification by its number of rows, in plain steps.

    What is kept is the ratio to the plain steps measured around it, so that a machine that others
    slow down does not bend the curve; a batch that no plain step stood near says only how fast the
    machine is now. Each number of rows has the median of its recent ratios: a stalled round moves
    nothing. With two samples it is the smaller, and one alone counts as twice what was expected
    at most. Between measured numbers it is linear, which keeps the kinks of the machine's kernels,
    and it never falls (pool adjacent violators: Ayer et al. 1955). Beyond the largest measured
    number it is a low guess that reaches twice as far: longer drafts are tried step by step.

    A plain step right behind a batch takes longer than one behind another: llama.cpp builds a new
    graph where the number of rows changes (`llama_context::process_ubatch`, 0c1e57098). That is no
    speed of the machine; `switching` is what it adds.
    """

    def __init__(
        self, known: Iterable[tuple[int, float]] = (), plain: PlainStep | None = None
    ) -> None:
        """Start from points of an earlier run, rows and plain steps, or from nothing."""
        self.plain = PlainStep() if plain is None else plain
        self._ratios: dict[int, deque[float]] = {
            n_rows: deque([steps] * TRUSTED, maxlen=RECENT)
            for n_rows, steps in sorted(known)
            if 1 < n_rows <= MAX_ROWS
        }
        self._rounds_since_plain = 0
        self._n_since_plain: Counter[int] = Counter()
        self._first_behind: float | None = None
        self._switches: deque[float] = deque(maxlen=RECENT)
        self.switching = 0.0
        """Plain steps that the first plain step behind a batch takes beyond the next one."""
        self.all_steps: tuple[float, ...] = (1.0,) * MAX_ROWS
        """The cost of 1 to `MAX_ROWS` rows in plain steps."""
        self._draw()

    def add(self, n_rows: int, elapsed_s: float) -> None:
        """Take the time of one verification of `n_rows` tokens."""
        if n_rows == 1:
            self._add_plain(elapsed_s)
            return
        self._rounds_since_plain += 1
        plain_s = self.plain_s
        if plain_s is None:
            return
        self._n_since_plain[n_rows] += 1
        ratios = self._ratios.setdefault(n_rows, deque(maxlen=RECENT))
        is_near = self._rounds_since_plain <= NEAR and self._n_since_plain[n_rows] <= PER_PLAIN
        if is_near or len(ratios) < PER_PLAIN:
            ratios.append(elapsed_s / plain_s)
            self._draw()
        else:
            self.plain.infer(elapsed_s / self.steps(n_rows))

    @property
    def plain_s(self) -> float | None:
        """Seconds of one row at the machine's present speed, None before it was measured."""
        return self.plain.seconds

    @property
    def reach(self) -> int:
        """The most rows that may be tried: twice the most that were measured."""
        if not self.plain.n_measured:
            return 0
        return min(2 * max(self._ratios, default=1), MAX_ROWS)

    def steps(self, n_rows: int) -> float:
        """Give the cost of a batch in plain steps; 1 for one row."""
        return self.all_steps[n_rows - 1]

    def measured(self) -> Points:
        """Give the measured points, rows and plain steps, one row first."""
        if not self.plain.n_measured and not self._ratios:
            return ()
        return tuple((n_rows, self.steps(n_rows)) for n_rows in (1, *sorted(self._ratios)))

    def afresh(self) -> "BatchCurve":
        """Give a curve that knows the plain step and nothing else."""
        return BatchCurve(plain=self.plain)

    def _add_plain(self, elapsed_s: float) -> None:
        if self._rounds_since_plain:
            self._first_behind = elapsed_s
            elapsed_s /= 1.0 + self.switching
        elif self._first_behind is not None:
            self._switches.append(self._first_behind / elapsed_s)
            self._first_behind = None
            if len(self._switches) >= LEAST_SWITCHES:
                self.switching = max(median(self._switches) - 1.0, 0.0)
        if self.plain.add(elapsed_s):
            self._rounds_since_plain = 0
            self._n_since_plain.clear()

    def _draw(self) -> None:
        points: list[tuple[int, float]] = [(1, 1.0)]
        for n_rows, ratios in sorted(self._ratios.items()):
            points.append((n_rows, _settled(ratios, _expected(points, n_rows))))
        weights = [RECENT, *(len(ratios) for _, ratios in sorted(self._ratios.items()))]
        values = [max(steps, 1.0) for _, steps in points]
        rising = _never_falling(list(zip(values, weights, strict=True)))
        known = [(n_rows, steps) for (n_rows, _), steps in zip(points, rising, strict=True)]
        drawn = _joined(known)
        self.all_steps = tuple(steps / drawn[0] for steps in drawn)


def _settled(ratios: deque[float], expected: float) -> float:
    if len(ratios) == 1:
        return min(ratios[0], 2 * expected)
    return min(ratios) if len(ratios) == 2 else median(ratios)


def _expected(points: list[tuple[int, float]], n_rows: int) -> float:
    """Give the low guess for a number of rows above all the points."""
    first, last = points[0], points[-1]
    if last[0] == first[0]:
        return first[1] * (1 + (FIRST_GUESS - 1) * (n_rows - first[0]))
    start = points[1] if len(points) > 2 else first
    share = HARDLY_FALLING if len(points) > 2 else FALLING
    slope = (last[1] - start[1]) / (last[0] - start[0])
    return last[1] + share * slope * (n_rows - last[0])


def _joined(points: list[tuple[int, float]]) -> list[float]:
    """Give the steps of 1 to `MAX_ROWS` rows: straight between points, guessed beyond them."""
    steps = [points[0][1]]
    for (left, low), (right, high) in pairwise(points):
        slope = (high - low) / (right - left)
        steps += [low + slope * n for n in range(1, right - left + 1)]
    beyond = range(len(steps) + 1, MAX_ROWS + 1)
    return steps + [_expected(points, n_rows) for n_rows in beyond]


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
