"""Measured costs in plain steps: of the rows of a batch, and of a source's guesses."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import ceil
from statistics import median
from typing import Annotated, NamedTuple

from engine.configuration import MAX_DRAFT, Bounds

MAX_ROWS = 1 + MAX_DRAFT
RECENT = 7
"""Samples per median: seven tolerate three stalled ones."""
RECENT_PLAIN = 5
"""Plain steps in the median of the present speed: few, because other programs use the machine."""
STALLED = 2.0
"""Ratio to the expected time from which one plain step between drafts is a stall."""
MISSES = 15
SPREAD_SHARE = 0.8
"""Share of the last `MISSES` plain steps within `PlainStep.spread`."""

NEAR = 12
"""Rounds for which a measured plain step represents the present speed."""
PER_PLAIN = 3
"""Maximum ratios per row count to one plain step: too few to set the median if it is an outlier."""
TRUSTED = 2
"""Number of samples that a cost of an earlier run counts as."""
MIN_SWITCHES = 3
"""Plain steps after batches that are needed for their median."""
FIRST_SLOPE = 0.1
"""Assumed cost of an unmeasured row, in plain steps: low, so that it is tried."""
FALLING = 0.15
"""Assumed slope beyond two rows, as a share of the slope from one to two. On many machines a second
row is expensive and further ones are not. A low guess is tried once, a high one never."""
HARDLY_FALLING = 0.8
"""The same beyond three measured row counts, as a share of the slope from the second one on."""

RECENT_DRAFTS = 8
UNLIKE = 1.5
"""Minimum ratio of two drafts' lengths to compute a slope: nearer ones mostly measure noise."""
CAUGHT_UP = 20
"""Missed tokens up to which a draft counts as caught up: the longest round with its bonus."""
MIN_DRAFTS = 2
"""Drafts needed for a known cost: a single one may have stalled."""
CATCH_UP_SHARE = 0.1
"""Assumed cost of a catch-up token before a measurement, in draft steps; low, because a guess that
is too high is never corrected."""

MIN_POINTS = 3
"""Measured row counts needed to save costs."""
CHECKED_AT = 3
"""Plain steps after which an earlier run's costs are checked."""
CHANGED = 2.0

MAX_SAVED_STEPS = 1000
Steps = Annotated[float, Bounds(ge=0, lt=MAX_SAVED_STEPS)]
Points = tuple[
    tuple[Annotated[int, Bounds(ge=1)], Annotated[float, Bounds(gt=0, lt=MAX_SAVED_STEPS)]], ...
]


class KnownCost(NamedTuple):
    """Saved costs of one source, in plain steps."""

    fixed: Steps
    step: Steps
    catch_up: Steps
    silence: Steps


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Saved costs of a configuration, in plain steps."""

    plain_s: Annotated[float, Bounds(gt=0, lt=1000)]
    """Seconds of a plain step."""
    points: Points
    """Cost of batches by their number of rows."""
    drafting: Mapping[str, KnownCost] = field(default_factory=dict)
    """Cost of drafting by source."""


class Costs:
    """All costs that a session has measured or read from an earlier run."""

    def __init__(self, known: CostProfile | None = None) -> None:
        self._known = known
        self.rows = RowCosts(() if known is None else known.points)
        self.drafts: dict[str, DraftCost] = {}
        """By source."""
        if known is not None:
            self.drafts = {name: DraftCost(cost) for name, cost in known.drafting.items()}
        self._others: dict[int, tuple[RowCosts, float | None]] = {}
        """Row costs and seconds of a plain step, by each other number of threads."""
        self._n_threads = self._n_usual = 0

    def use_threads(self, n_threads: int) -> None:
        """Switch to the row costs of `n_threads`; a new number starts without any.

        The previous number's costs are not reused: other programs probably slowed them.
        """
        if n_threads == self._n_threads:
            return
        if self._n_threads:
            plain = self.plain
            self._others[self._n_threads] = (self.rows, plain.seconds)
            self.rows, seconds = self._others.pop(n_threads, (RowCosts(plain=plain), None))
            plain.restart(seconds)
        self._n_threads = n_threads
        self._n_usual = self._n_usual or n_threads

    @property
    def plain(self) -> "PlainStep":
        """Plain step for the screen, for the limit on late predictors and for `auto`."""
        return self.rows.plain

    def add(self, n_rows: int, elapsed_s: float) -> None:
        """Record a verification's time; drop an earlier run's costs if the speed has changed.

        A plain step `CHANGED` times as long or as short as the earlier run's means another machine.
        """
        self.rows.add(n_rows, elapsed_s)
        plain_s = self.plain.seconds
        if self._known is None or plain_s is None or self.plain.n_measured < CHECKED_AT:
            return
        known_s, self._known = self._known.plain_s, None
        if not 1 / CHANGED <= plain_s / known_s <= CHANGED:
            self.rows = RowCosts(plain=self.plain)
            self.drafts.clear()

    def profile(self) -> CostProfile | None:
        """The costs at this run's initial number of threads; None if too few were measured."""
        rows, plain_s = self._others.get(self._n_usual, (self.rows, self.plain.seconds))
        points = rows.measured_points()
        if plain_s is None or len(points) < MIN_POINTS:
            return None
        costs = {name: cost.known() for name, cost in self.drafts.items()}
        return CostProfile(plain_s, points, {n: cost for n, cost in costs.items() if cost})


class PlainStep:
    """Time of one plain step at the machine's present speed.

    It is the median of the last few plain steps. During consecutive drafts it is inferred from
    batches of known cost in plain steps. After those, one much slower plain step counts as a
    stall and two in a row as the machine's speed. The caller leaves out the first step after a
    prefill, which touches cold memory.
    """

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=RECENT_PLAIN)
        self._inferred: deque[float] = deque(maxlen=RECENT)
        self._misses: deque[float] = deque(maxlen=MISSES)
        self._was_refused = False
        self.seconds: float | None = None
        """None before the first measurement."""
        self.spread: float | None = None
        """Relative error of the expected time that 80 % of the plain steps are within; None before
        two comparisons."""
        self.n_measured = 0

    def add(self, elapsed_s: float) -> bool:
        """Record a plain round's time; return False and change nothing if it is a stall."""
        self._compare(elapsed_s)
        if self._inferred:
            is_slow = elapsed_s > STALLED * median(self._inferred)
            self._was_refused = is_slow and not self._was_refused
            if self._was_refused:
                return False
            # Plain steps from before the drafts are outdated.
            self._measured.clear()
            self._inferred.clear()
        self._measured.append(elapsed_s)
        self.seconds = median(self._measured)
        self.n_measured += 1
        return True

    def restart(self, seconds: float | None) -> None:
        """Start again from another speed; None if unknown."""
        self._measured.clear()
        self._inferred.clear()
        self.seconds = seconds

    def infer(self, elapsed_s: float) -> None:
        """Record a plain step's time inferred from a batch of known cost."""
        self._inferred.append(elapsed_s)
        self.seconds = median(self._inferred)

    def _compare(self, elapsed_s: float) -> None:
        if self.seconds is None:
            return
        self._misses.append(abs(elapsed_s / self.seconds - 1.0))
        if len(self._misses) > 1:
            self.spread = sorted(self._misses)[ceil(SPREAD_SHARE * len(self._misses)) - 1]


class RowCosts:
    """Cost of a verification by its number of rows, in plain steps.

    Costs are ratios to plain steps measured nearby, so that other programs' load does not distort
    them. A batch without a plain step nearby only updates the present speed. A row count's cost is
    the median of its recent ratios, the smaller of two, or a single one limited to twice the
    expected cost. It is linear between measured row counts, which preserves the kernels' steps.
    Up to twice the largest measured count it is a low guess, so longer drafts are tried
    gradually.

    A plain step right after a batch is slower than others, because llama.cpp builds a new graph if
    the number of rows changes (`llama_context::process_ubatch`, 0c1e57098): by `switching`.
    """

    def __init__(
        self, known: Iterable[tuple[int, float]] = (), plain: PlainStep | None = None
    ) -> None:
        """Start from an earlier run's rows and plain steps, if any."""
        self.plain = PlainStep() if plain is None else plain
        self._ratios: dict[int, deque[float]] = {
            n_rows: deque([steps] * TRUSTED, maxlen=RECENT)
            for n_rows, steps in sorted(known)
            if 1 < n_rows <= MAX_ROWS
        }
        self._rounds_since_plain = 0
        self._n_since_plain: Counter[int] = Counter()
        self._first_after_batch: float | None = None
        self._switches: deque[float] = deque(maxlen=RECENT)
        self.switching = 0.0
        """Extra time of the first plain step after a batch, in plain steps."""
        self.all_steps: tuple[float, ...] = (1.0,) * MAX_ROWS
        """Cost of 1 to `MAX_ROWS` rows in plain steps."""
        self._draw()

    def add(self, n_rows: int, elapsed_s: float) -> None:
        """Record the time of a verification of `n_rows` tokens."""
        if n_rows == 1:
            self._add_plain(elapsed_s)
            return
        self._rounds_since_plain += 1
        plain_s = self.plain.seconds
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
    def reach(self) -> int:
        """Maximum rows to try: twice the largest measured number."""
        if not self.plain.n_measured:
            return 0
        return min(2 * max(self._ratios, default=1), MAX_ROWS)

    def steps(self, n_rows: int) -> float:
        """Cost of a batch in plain steps; 1 for one row."""
        return self.all_steps[n_rows - 1]

    def measured_points(self) -> Points:
        """The measured points, rows and plain steps, one row first."""
        if not self.plain.n_measured and not self._ratios:
            return ()
        return tuple((n_rows, self.steps(n_rows)) for n_rows in (1, *sorted(self._ratios)))

    def _add_plain(self, elapsed_s: float) -> None:
        if self._rounds_since_plain:
            self._first_after_batch = elapsed_s
            elapsed_s /= 1.0 + self.switching
        elif self._first_after_batch is not None:
            self._switches.append(self._first_after_batch / elapsed_s)
            self._first_after_batch = None
            if len(self._switches) >= MIN_SWITCHES:
                self.switching = max(median(self._switches) - 1.0, 0.0)
        if self.plain.add(elapsed_s):
            self._rounds_since_plain = 0
            self._n_since_plain.clear()

    def _draw(self) -> None:
        points: list[tuple[int, float]] = [(1, 1.0)]
        for n_rows, ratios in sorted(self._ratios.items()):
            points.append((n_rows, max(_settled(ratios, _expected(points, n_rows)), 1.0)))
        self.all_steps = tuple(_joined(points))


def _settled(ratios: deque[float], expected: float) -> float:
    if len(ratios) == 1:
        return min(ratios[0], 2 * expected)
    return min(ratios) if len(ratios) == 2 else median(ratios)


def _expected(points: list[tuple[int, float]], n_rows: int) -> float:
    """Low guess for a number of rows beyond all points."""
    first, last = points[0], points[-1]
    if last[0] == first[0]:
        return first[1] + FIRST_SLOPE * (n_rows - first[0])
    start = points[1] if len(points) > 2 else first
    share = HARDLY_FALLING if len(points) > 2 else FALLING
    slope = max((last[1] - start[1]) / (last[0] - start[0]), 0.0)
    return last[1] + share * slope * (n_rows - last[0])


def _joined(points: list[tuple[int, float]]) -> list[float]:
    """Steps of 1 to `MAX_ROWS` rows: linear between points, guessed beyond them."""
    steps = [points[0][1]]
    for (left, low), (right, high) in pairwise(points):
        slope = (high - low) / (right - left)
        steps += [low + slope * n for n in range(1, right - left + 1)]
    beyond = range(len(steps) + 1, MAX_ROWS + 1)
    return steps + [_expected(points, n_rows) for n_rows in beyond]


class DraftCost:
    """Plain steps of a draft: a fixed part, and a part for each guess and each catch-up token.

    The step is a Theil-Sen slope (Sen 1968) of time over length, which tolerates stalled drafts.
    """

    def __init__(self, known: KnownCost | None = None) -> None:
        """Start from an earlier run's costs, if any."""
        self._drafts: deque[tuple[int, float]] = deque(maxlen=RECENT_DRAFTS)
        self._catch_ups: deque[tuple[int, float]] = deque(maxlen=RECENT_DRAFTS)
        self._silent: deque[float] = deque(maxlen=RECENT_DRAFTS)
        self._fixed = 0.0
        self._n_timed = 0
        self.step: float | None = None
        """Plain steps per guess; None before a draft was timed."""
        if known is not None:
            self._fixed, self.step = known.fixed, known.step
            self._catch_ups.append((1, known.catch_up))
            self._silent.append(known.silence)
            self._drafts.extend((n, known.fixed + known.step * n) for n in (1, 4))
            self._n_timed = MIN_DRAFTS

    @property
    def is_known(self) -> bool:
        """Whether enough drafts were timed, here or in an earlier run."""
        return self._n_timed >= MIN_DRAFTS

    def known(self) -> KnownCost | None:
        """The costs to save; None before enough drafts were timed."""
        if self.step is None or not self.is_known:
            return None
        return KnownCost(self._fixed, self.step, self._catch_up_steps(), self.silence)

    def add(self, n_drafted: int, n_missed: int, n_steps: float) -> None:
        """Record the time of a draft that had `n_missed` tokens to catch up with."""
        self._n_timed += 1
        if n_missed > CAUGHT_UP and self.step is None:
            self.step = n_steps / (n_drafted + CATCH_UP_SHARE * n_missed)
        if n_missed > CAUGHT_UP:
            rest = n_steps - (self._fixed + (self.step or 0.0) * n_drafted)
            self._catch_ups.append((n_missed, max(rest, 0.0)))
            if rest > 0:
                return
        # A catch-up cheaper than the expected draft shows that the expected cost is too high.
        self._drafts.append((n_drafted, n_steps))
        self.step = max(_slope(self._drafts, self.silence), 0.0)
        left = median(steps - self.step * n_guesses for n_guesses, steps in self._drafts)
        self._fixed = max(left, 0.0)

    def add_silent(self, n_steps: float) -> None:
        """Record the time of asking a source that proposed nothing."""
        self._silent.append(n_steps)

    @property
    def silence(self) -> float:
        """Plain steps of asking in vain."""
        return median(self._silent) if self._silent else 0.0

    def catch_up(self, n_missed: int) -> float:
        """Cost of decoding `n_missed` missed tokens."""
        return self._catch_up_steps() * n_missed

    def steps(self, n_drafted: int, n_missed: int) -> float:
        """Cost of a draft of that length; 0 before one was timed."""
        if self.step is None:
            return 0.0
        caught_up = self._catch_up_steps() * n_missed if n_missed > CAUGHT_UP else 0.0
        return self._fixed + self.step * n_drafted + caught_up

    def _catch_up_steps(self) -> float:
        if self._catch_ups:
            return median(steps / n_missed for n_missed, steps in self._catch_ups)
        return CATCH_UP_SHARE * (self.step or 0.0)


def _slope(drafts: Sequence[tuple[int, float]], silence: float) -> float:
    """Median slope of all pairs of unlike lengths, at most the median cost per guess.

    Without such pairs it is that cost, less the `silence`. The limit matters if most drafts have
    one length: a single stalled draft could then determine all slopes.
    """
    slopes = [
        (right[1] - left[1]) / (right[0] - left[0])
        for left, right in combinations(sorted(drafts), 2)
        if right[0] >= UNLIKE * left[0]
    ]
    return min(median(slopes), _mean(drafts)) if slopes else _mean(drafts, silence)


def _mean(drafts: Sequence[tuple[int, float]], silence: float = 0.0) -> float:
    return median(max(n_steps - silence, 0.0) / n_drafted for n_drafted, n_steps in drafts)
