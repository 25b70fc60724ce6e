"""What rounds cost on this machine, in plain steps: rows of a batch, and guesses of a source."""

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
"""Samples that count: a median of seven forgives three stalled ones."""
RECENT_PLAIN = 5
"""Plain steps that the speed of this moment rests on: few, since others use the machine too."""
STALLED = 2.0
"""Times the expected seconds from which one plain step between drafts is a stall."""
MISSES = 15
MOST_STEPS = 0.8
"""Share of the plain steps, of the last `MISSES`, that lie within `PlainStep.spread`."""

NEAR = 12
"""Rounds behind a plain step in which it still tells the speed of this moment."""
PER_PLAIN = 3
"""Ratios of a number of rows to one plain step: fewer than decide a median, should it mislead."""
TRUSTED = 2
"""Samples that a number of rows known from an earlier run is worth."""
MIN_SWITCHES = 3
"""Plain steps behind batches from which their median is believed."""
FIRST_SLOPE = 0.1
"""Plain steps that an unmeasured row is taken to cost: low, so that it is tried."""
FALLING = 0.15
"""Share of the slope from one row to the next number that a longer batch is taken to climb on with.
Batches of two are dear beside one on many machines and longer ones are not; a guess that is too low
is tried once, one that is too high never."""
HARDLY_FALLING = 0.8
"""The same behind three measured numbers, for the slope from the second one on."""

RECENT_DRAFTS = 8
UNLIKE = 1.5
"""Times a draft has to be as long as another for the two to tell the step from the fixed part:
nearer lengths tell more of the clock."""
CAUGHT_UP = 20
"""Tokens behind the line up to which a draft counts as caught up: a longest round and its bonus."""
MIN_DRAFTS = 2
"""Drafts behind which the cost of guessing is believed: a single one may have stalled."""
CATCH_UP_SHARE = 0.1
"""Share of a draft step that a token of a batch is taken to cost where no catch-up was measured;
low, since a guess that is too high is never put right."""

MIN_POINTS = 3
"""Numbers of rows from which costs are worth keeping."""
CHECKED_AT = 3
"""Plain steps behind which an earlier run's costs are checked."""
CHANGED = 2.0

MAX_STEPS_KEPT = 1000
Steps = Annotated[float, Bounds(ge=0, lt=MAX_STEPS_KEPT)]
Points = tuple[
    tuple[Annotated[int, Bounds(ge=1)], Annotated[float, Bounds(gt=0, lt=MAX_STEPS_KEPT)]], ...
]


class KnownCost(NamedTuple):
    """What guessing costs in plain steps, as one run leaves it to the next."""

    fixed: Steps
    step: Steps
    catch_up: Steps
    silence: Steps


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Measured costs, in plain steps, as one run leaves them to the next."""

    plain_s: Annotated[float, Bounds(gt=0, lt=1000)]
    """Seconds of the plain step that they were measured with."""
    points: Points
    """Cost of batches by their number of rows."""
    drafting: Mapping[str, KnownCost] = field(default_factory=dict)
    """Cost of guessing by the name of who guesses."""


class Costs:
    """Everything that a session has measured, or knows from an earlier run."""

    def __init__(self, known: CostProfile | None = None) -> None:
        self._known = known
        self.rows = RowCosts(() if known is None else known.points)
        self.drafts: dict[str, DraftCost] = {}
        """By source."""
        if known is not None:
            self.drafts = {name: DraftCost(cost) for name, cost in known.drafting.items()}
        self._others: dict[int, tuple[RowCosts, float | None]] = {}
        """By number of threads, but the present one: rows, and the seconds of a plain step."""
        self._n_threads = self._n_usual = 0

    def use_threads(self, n_threads: int) -> None:
        """What follows is computed with that many threads; each number has rows of its own.

        A new one begins with none: others slowed the rows of the number before, or it would not
        have been left.
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
        """The one plain step: of the screen, of the judgement of late predictors and of `auto`."""
        return self.rows.plain

    def add(self, n_rows: int, elapsed_s: float) -> None:
        """Take the time of one verification; costs of a machine of another speed are forgotten.

        Machines become slower for a while and their batches with them; a step that is `CHANGED`
        times as long or as short as an earlier run's was measured on what is another machine.
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
        """The costs for a later run, which begins with the same number of threads as this one.

        None where too little was measured.
        """
        rows, plain_s = self._others.get(self._n_usual, (self.rows, self.plain.seconds))
        points = rows.measured_points()
        if plain_s is None or len(points) < MIN_POINTS:
            return None
        costs = {name: cost.known() for name, cost in self.drafts.items()}
        return CostProfile(plain_s, points, {n: cost for n, cost in costs.items() if cost})


class PlainStep:
    """The time of one plain step at the machine's present speed.

    It is the median of the last few plain steps. While drafts follow one another there are none,
    and batches whose cost in plain steps is known tell the speed; then one plain step that is far
    slower than they said is a stall, and two in a row are the machine. The first step behind a
    prefill is left out by the caller, because it pays for memory that later ones find warm.
    """

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=RECENT_PLAIN)
        self._inferred: deque[float] = deque(maxlen=RECENT)
        self._misses: deque[float] = deque(maxlen=MISSES)
        self._was_refused = False
        self.seconds: float | None = None
        """None before one was measured."""
        self.spread: float | None = None
        """How far eight of ten plain steps were from what was taken for one, as a share of it; None
        before two could be compared."""
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

    def restart(self, seconds: float | None) -> None:
        """Go on from another speed, None where it is not known."""
        self._measured.clear()
        self._inferred.clear()
        self.seconds = seconds

    def infer(self, elapsed_s: float) -> None:
        """Take what a batch of known cost says that a plain step takes by now."""
        self._inferred.append(elapsed_s)
        self.seconds = median(self._inferred)

    def _compare(self, elapsed_s: float) -> None:
        if self.seconds is None:
            return
        self._misses.append(abs(elapsed_s / self.seconds - 1.0))
        if len(self._misses) > 1:
            self.spread = sorted(self._misses)[ceil(MOST_STEPS * len(self._misses)) - 1]


class RowCosts:
    """The cost of a verification by its number of rows, in plain steps.

    What is kept is the ratio to the plain steps measured around it, so that a machine that others
    slow down does not bend the curve; a batch that no plain step stood near says only how fast the
    machine is now. Each number of rows has the median of its recent ratios: a stalled round moves
    nothing. With two samples it is the smaller, and one alone counts as twice what was expected
    at most. Between measured numbers it is linear, which keeps the kinks of the machine's kernels.
    Beyond the largest measured number it is a low guess that reaches twice as far: longer drafts
    are tried step by step.

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
        """The most rows that may be tried: twice the most that were measured."""
        if not self.plain.n_measured:
            return 0
        return min(2 * max(self._ratios, default=1), MAX_ROWS)

    def steps(self, n_rows: int) -> float:
        """The cost of a batch in plain steps; 1 for one row."""
        return self.all_steps[n_rows - 1]

    def measured_points(self) -> Points:
        """The measured points, rows and plain steps, one row first."""
        if not self.plain.n_measured and not self._ratios:
            return ()
        return tuple((n_rows, self.steps(n_rows)) for n_rows in (1, *sorted(self._ratios)))

    def _add_plain(self, elapsed_s: float) -> None:
        if self._rounds_since_plain:
            self._first_behind = elapsed_s
            elapsed_s /= 1.0 + self.switching
        elif self._first_behind is not None:
            self._switches.append(self._first_behind / elapsed_s)
            self._first_behind = None
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
    """The low guess for a number of rows above all the points."""
    first, last = points[0], points[-1]
    if last[0] == first[0]:
        return first[1] + FIRST_SLOPE * (n_rows - first[0])
    start = points[1] if len(points) > 2 else first
    share = HARDLY_FALLING if len(points) > 2 else FALLING
    slope = max((last[1] - start[1]) / (last[0] - start[0]), 0.0)
    return last[1] + share * slope * (n_rows - last[0])


def _joined(points: list[tuple[int, float]]) -> list[float]:
    """The steps of 1 to `MAX_ROWS` rows: straight between points, guessed beyond them."""
    steps = [points[0][1]]
    for (left, low), (right, high) in pairwise(points):
        slope = (high - low) / (right - left)
        steps += [low + slope * n for n in range(1, right - left + 1)]
    beyond = range(len(steps) + 1, MAX_ROWS + 1)
    return steps + [_expected(points, n_rows) for n_rows in beyond]


class DraftCost:
    """Plain steps of a draft: a fixed part, one for each guess, one for each token caught up with.

    The step is a Theil-Sen slope (Sen 1968) of time over length, so stalled drafts do not move it.
    """

    def __init__(self, known: KnownCost | None = None) -> None:
        """Start from what an earlier run measured, or from nothing."""
        self._drafts: deque[tuple[int, float]] = deque(maxlen=RECENT_DRAFTS)
        self._catch_ups: deque[tuple[int, float]] = deque(maxlen=RECENT_DRAFTS)
        self._silent: deque[float] = deque(maxlen=RECENT_DRAFTS)
        self._fixed = 0.0
        self._n_timed = 0
        self.step: float | None = None
        """Plain steps that one more guess takes, None before one was timed."""
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
        """What a later run can start from, None before enough was timed."""
        if self.step is None or not self.is_known:
            return None
        return KnownCost(self._fixed, self.step, self._catch_up_steps(), self.silence)

    def add(self, n_drafted: int, n_behind: int, n_steps: float) -> None:
        """Take the time of a draft that began `n_behind` tokens behind the line."""
        self._n_timed += 1
        if n_behind > CAUGHT_UP and self.step is None:
            self.step = n_steps / (n_drafted + CATCH_UP_SHARE * n_behind)
        if n_behind > CAUGHT_UP:
            rest = n_steps - (self._fixed + (self.step or 0.0) * n_drafted)
            self._catch_ups.append((n_behind, max(rest, 0.0)))
            if rest > 0:
                return
        # One that caught up and took less than a draft is taken to cost says that this is too much.
        self._drafts.append((n_drafted, n_steps))
        self.step = max(_slope(self._drafts, self.silence), 0.0)
        left = median(steps - self.step * n_guesses for n_guesses, steps in self._drafts)
        self._fixed = max(left, 0.0)

    def add_silent(self, n_steps: float) -> None:
        """Take the time of a source that was asked and had nothing to say."""
        self._silent.append(n_steps)

    @property
    def silence(self) -> float:
        """Plain steps that it costs to ask and hear nothing."""
        return median(self._silent) if self._silent else 0.0

    def catch_up(self, n_behind: int) -> float:
        """The cost of taking in that many tokens of the line."""
        return self._catch_up_steps() * n_behind

    def steps(self, n_drafted: int, n_behind: int) -> float:
        """The cost of a draft of that length; 0 before one was timed."""
        if self.step is None:
            return 0.0
        caught_up = self._catch_up_steps() * n_behind if n_behind > CAUGHT_UP else 0.0
        return self._fixed + self.step * n_drafted + caught_up

    def _catch_up_steps(self) -> float:
        if self._catch_ups:
            return median(steps / n_behind for n_behind, steps in self._catch_ups)
        return CATCH_UP_SHARE * (self.step or 0.0)


def _slope(drafts: Sequence[tuple[int, float]], silence: float) -> float:
    """The median slope of all pairs of unlike lengths, at most the mean of a guess.

    Without any it is that mean, less what asking takes where nothing is guessed. Where most drafts
    are of one length all slopes rest on the few others, and one that stalled would set them.
    """
    slopes = [
        (right[1] - left[1]) / (right[0] - left[0])
        for left, right in combinations(sorted(drafts), 2)
        if right[0] >= UNLIKE * left[0]
    ]
    return min(median(slopes), _mean(drafts)) if slopes else _mean(drafts, silence)


def _mean(drafts: Sequence[tuple[int, float]], silence: float = 0.0) -> float:
    return median(max(n_steps - silence, 0.0) / n_drafted for n_drafted, n_steps in drafts)
