"""Measured costs in plain steps: of the rows of a batch, and of a source's drafts."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Annotated

from engine.configuration import MAX_DRAFT, Bounds

MAX_ROWS = 1 + MAX_DRAFT
RECENT, FEW = 7, 2
"""Batches per median: seven tolerate three stalled ones; of few the cheapest counts."""
RECENT_PLAIN = 5
"""Plain steps per median: few, because other programs use the machine too."""
TRUSTED = 3
"""Number of batches that a cost of an earlier run counts as."""

FIRST_SLOPE = 0.1
"""Assumed cost of an unmeasured row, in plain steps: low, so that it is tried."""
FALLING = 0.15
"""Assumed slope beyond two rows, as a share of the slope from one to two: on many machines a
second row is expensive and further ones are not."""
HARDLY_FALLING = 0.8
"""The same beyond three measured sizes, as a share of the slope from the second one on."""

RECENT_DRAFTS, FEW_DRAFTS = 8, 3
"""Drafts per median; of few drafts the cheapest counts, because stalls only add time."""
MIN_DRAFTS = 2
"""Drafts needed for a known cost: a single one may have stalled."""

DEVIATIONS = 15
SPREAD_SHARE = 0.8
"""Share of the last `DEVIATIONS` plain steps within `PlainStep.spread`."""

MIN_POINTS = 2
"""Measured sizes needed to save costs."""
MAX_STEPS = 1000
Steps = Annotated[float, Bounds(ge=0, lt=MAX_STEPS)]
Points = tuple[
    tuple[Annotated[int, Bounds(ge=1, le=MAX_ROWS)], Annotated[float, Bounds(gt=0, lt=MAX_STEPS)]],
    ...,
]


@dataclass(frozen=True, slots=True)
class KnownCost:
    """Saved costs of one source, in plain steps."""

    ask: Steps
    step: Steps


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Saved costs of a configuration, in plain steps."""

    points: Points
    """Cost of batches by their number of rows."""
    drafting: Mapping[str, KnownCost] = field(default_factory=dict)
    """Cost of drafting by source."""


class Costs:
    """All costs that a session has measured or read from an earlier run."""

    def __init__(self, known: CostProfile | None = None) -> None:
        known = CostProfile(()) if known is None else known
        self.rows = self._first = RowCosts(known.points)
        self._by_threads: dict[int, RowCosts] = {}
        self.drafts = {name: DraftCost(cost) for name, cost in known.drafting.items()}
        """By source."""

    @property
    def plain(self) -> "PlainStep":
        """The plain step at the present number of threads."""
        return self.rows.plain

    def use_threads(self, n_threads: int) -> None:
        """Switch to the costs per batch row measured with `n_threads` threads.

        The first number of threads begins with the costs that earlier runs saved.
        """
        if n_threads not in self._by_threads:
            self._by_threads[n_threads] = RowCosts() if self._by_threads else self._first
        self.rows = self._by_threads[n_threads]

    def profile(self) -> CostProfile | None:
        """The costs at the first number of threads; None if too few were measured."""
        points = self._first.points
        if self._first.plain.seconds is None or len(points) < MIN_POINTS:
            return None
        known = {name: cost.known for name, cost in self.drafts.items()}
        return CostProfile(points, {name: cost for name, cost in known.items() if cost})


class PlainStep:
    """Time of one plain step: the median of the last few."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_PLAIN)
        self._deviations: deque[float] = deque(maxlen=DEVIATIONS)
        self.seconds: float | None = None
        """None before the first measurement."""
        self.spread: float | None = None
        """Relative error of the expected time that 80 % of the plain steps are within; None before
        two comparisons."""
        self.n_measured = 0

    def add(self, elapsed_s: float) -> None:
        """Record a plain round's time."""
        if self.seconds is not None:
            self._deviations.append(abs(elapsed_s / self.seconds - 1.0))
        if (n := len(self._deviations)) > 1:
            self.spread = sorted(self._deviations)[ceil(SPREAD_SHARE * n) - 1]
        self._recent.append(elapsed_s)
        self.seconds = median(self._recent)
        self.n_measured += 1


class RowCosts:
    """Cost of a batch by its number of rows, in plain steps.

    Costs are ratios to plain steps measured shortly before, so that the load of other programs does
    not distort them. A size's cost is the median of its recent ratios, or the smaller of two. It is
    linear between measured sizes, which preserves the kernels' steps. Beyond the largest measured
    size it is a low guess, so that longer drafts are tried.
    """

    def __init__(self, known: Iterable[tuple[int, float]] = ()) -> None:
        """Start from an earlier run's rows and plain steps, if any."""
        self.plain = PlainStep()
        self._ratios = {
            n_rows: deque([steps] * TRUSTED, maxlen=RECENT) for n_rows, steps in known if n_rows > 1
        }
        self.all_steps = self._curve()
        """Cost of 1 to `MAX_ROWS` rows in plain steps."""

    def add(self, n_rows: int, elapsed_s: float) -> None:
        """Record the time of a batch."""
        if n_rows == 1:
            self.plain.add(elapsed_s)
        elif self.plain.seconds is not None:
            ratios = self._ratios.setdefault(n_rows, deque(maxlen=RECENT))
            ratios.append(elapsed_s / self.plain.seconds)
            self.all_steps = self._curve()

    def steps(self, n_rows: int) -> float:
        """Cost of a batch in plain steps; 1 for one row."""
        return self.all_steps[n_rows - 1]

    @property
    def points(self) -> Points:
        """The sizes with a median cost, one row first; a few batches may all have stalled."""
        often = (n_rows for n_rows, ratios in self._ratios.items() if len(ratios) > FEW)
        return tuple((n_rows, self.steps(n_rows)) for n_rows in (1, *sorted(often)))

    def _curve(self) -> list[float]:
        points = [(1, 1.0)]
        for n_rows, ratios in sorted(self._ratios.items()):
            points.append((n_rows, max(_typical(ratios, FEW), 1.0)))
        curve = [1.0]
        for (left, low), (right, high) in pairwise(points):
            slope = (high - low) / (right - left)
            curve += [low + slope * n for n in range(1, right - left + 1)]
        return curve + [_beyond(points, n) for n in range(len(curve) + 1, MAX_ROWS + 1)]


def _beyond(points: list[tuple[int, float]], n_rows: int) -> float:
    """A low guess for a size beyond all measured ones."""
    first, last = points[0], points[-1]
    if len(points) == 1:
        return 1.0 + FIRST_SLOPE * (n_rows - 1)
    start, share = (points[1], HARDLY_FALLING) if len(points) > 2 else (first, FALLING)
    slope = max((last[1] - start[1]) / (last[0] - start[0]), 0.0)
    return last[1] + share * slope * (n_rows - last[0])


class DraftCost:
    """Plain steps of asking a source and of each token it drafts: medians of recent rounds."""

    def __init__(self, known: KnownCost | None = None) -> None:
        """Start from an earlier run's costs, if any."""
        self._silent: deque[float] = deque(maxlen=RECENT_DRAFTS)
        self._drafts: deque[tuple[int, float]] = deque(maxlen=RECENT_DRAFTS)
        self.ask = self.step = 0.0
        """Times in plain steps: of a request without a draft, and per drafted token; at first 0."""
        if known is not None:
            self.add(0, known.ask)
            for _ in range(MIN_DRAFTS):
                self.add(1, known.ask + known.step)

    def add(self, n_drafted: int, n_steps: float) -> None:
        """Record the time of a request for a draft; `n_drafted` is 0 if there was none."""
        if n_drafted:
            self._drafts.append((n_drafted, n_steps))
        else:
            self._silent.append(n_steps)
            self.ask = _typical(self._silent, FEW_DRAFTS)
        if self._drafts:
            steps = [max(t - self.ask, 0.0) / n for n, t in self._drafts]
            self.step = _typical(steps, FEW_DRAFTS)

    @property
    def is_known(self) -> bool:
        """Whether enough drafts were timed, here or in an earlier run."""
        return len(self._drafts) >= MIN_DRAFTS

    @property
    def known(self) -> KnownCost | None:
        """The costs to save; None before enough drafts were timed."""
        return KnownCost(self.ask, self.step) if self.is_known else None

    def steps(self, n_drafted: int) -> float:
        """Plain steps of a draft of that length; 0 if nothing is drafted."""
        return self.ask + self.step * n_drafted if n_drafted else 0.0


def _typical(steps: Sequence[float], n_few: int) -> float:
    return median(steps) if len(steps) > n_few else min(steps)
