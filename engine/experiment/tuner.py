"""The search for the fastest settings of a model on a machine, within a time.

The settings at the start are measured first, so that there is a result whatever follows. Then each
setting is compared with the best so far, in blocks A B B A of short runs, its candidates
by turns, until each is decided (`engine.experiment.gain`) or time is up.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Literal

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.experiment.gain import Block, PairedGain, gain_of, take_block
from engine.experiment.settings import (
    FIRST_SIZES,
    MOST_CTX,
    NEAR_TOKENS,
    SETTINGS,
    Scope,
    Setting,
    Sizes,
    Trial,
    Work,
    WorkName,
    sizes_for,
)
from engine.experiment.timing import EngineDiedError, OutOfTimeError, TimingMachine

SLOWEST = 4.0
"""Times as long as the best so far from which a run of a candidate is stopped."""
STALL_S = 1.0
"""How much longer than that a run may take, should the machine have stalled."""
BUSY_SHARE = 0.25
"""Share of the cores from which other programs that take it decide about threads."""
START_WORKS: tuple[WorkName, ...] = ("near", "prompt")
"""Work that is timed with the settings at the start, whatever follows."""

Verdict = Literal["taken", "faster", "not faster", "failed", "not tried", "no time"]


class TuningError(EngineError):
    """Nothing can be measured here."""

    title = "Tuning cannot go on"


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """What is being measured."""

    setting: str
    label: str = ""
    n_blocks: int = 0
    gain: PairedGain | None = None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A candidate beside what was best before it."""

    setting: str
    label: str
    verdict: Verdict
    reason: str
    gain: PairedGain | None
    """None where nothing was measured."""
    changes: Mapping[str, object] = field(default_factory=dict)
    cost: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found so far."""

    compared: tuple[TrialResult, ...]
    sizes: Sizes
    start_tps: Mapping[WorkName, float]
    """Tokens a second with the settings of the start, by workload."""
    chosen_tps: Mapping[WorkName, float]
    """The same with what was taken; a workload that it leaves as it was counts on."""
    n_others: float
    """Cores that other programs took meanwhile, the median."""
    is_busy: bool
    """Whether that is so much that speeds say little about the machine."""

    @property
    def changes(self) -> dict[str, object]:
        """What the start lacks, by the fields of `Configuration`."""
        taken = (each.changes for each in self.compared if each.verdict == "taken")
        return {name: value for changes in taken for name, value in changes.items()}

    @property
    def is_complete(self) -> bool:
        """Whether every setting was decided."""
        return not any(each.verdict == "no time" for each in self.compared)


@dataclass(slots=True)
class _Series:
    """The blocks of one candidate."""

    trial: Trial
    blocks: list[Block] = field(default_factory=list)
    ended: tuple[Verdict, str] | None = None
    """A verdict without blocks and its reason: it failed, or is not tried."""

    @property
    def gain(self) -> PairedGain | None:
        return gain_of(self.blocks)

    @property
    def is_over(self) -> bool:
        gain = self.gain
        return self.ended is not None or (gain is not None and gain.is_decided)


class Tuner:
    """Compares settings on a machine until all is decided or time is up.

    Args:
        start: The configuration at the start.
        scope: What is known of model and machine.
        machine: Takes times.
        budget_s: Time for everything.
        until_s: When it is over, on the clock.
        tell: Called with what is measured and with each result.
        keep: Called with what was found when the start is measured, and after each setting.
        clock: Seconds, from any start.
    """

    def __init__(
        self,
        start: Configuration,
        scope: Scope,
        machine: TimingMachine,
        *,
        budget_s: float,
        until_s: float,
        tell: Callable[[TuningProgress | TrialResult], None],
        keep: Callable[[Outcome], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        n_threads = start.n_threads or scope.n_begin
        self._leaves_threads_open = start.n_threads is None
        # Threads that follow the machine would change while they are measured.
        self._best = replace(
            start,
            n_ctx=min(start.n_ctx, MOST_CTX),
            n_slots=1,
            kv_unified=False,
            n_threads=n_threads,
            n_threads_batch=start.n_threads_batch or n_threads,
        )
        self._scope = scope
        self._machine = machine
        self._budget_s = budget_s
        self._until_s = until_s
        self._tell = tell
        self._keep = keep
        self._clock = clock
        self._sizes = FIRST_SIZES
        self._compared: list[TrialResult] = []
        self._others: list[float] = []
        self._seconds: dict[WorkName, list[float]] = {}
        """Of the best so far."""
        self._start_seconds = self._seconds
        self._last_s = 0.0
        """A token of the last of these runs."""
        self._is_over = False
        self.was_stopped = False
        """Whether the user stopped it."""

    def run(self) -> Outcome:
        """What was found; Ctrl+C ends the measuring, and what was found until then counts.

        Raises:
            TuningError: not even the settings at the start could be measured.
        """
        self._measure_start()
        self._keep(self.outcome)
        for setting in SETTINGS:
            trials = setting.trials(self._best, self._scope, self._sizes)
            series = [_Series(trial) for trial in trials]
            if refusal := self._refusal(setting):
                for each in series:
                    each.ended = "not tried", refusal
            self._within_time(partial(self._compare, setting, series))
            if series:
                self._conclude(setting, series)
                self._keep(self.outcome)
        return self.outcome

    def _within_time(self, measure: Callable[[], None]) -> None:
        """Measure, unless time is up or the user has stopped it."""
        try:
            if not self._is_over:
                measure()
        except OutOfTimeError:
            self._is_over = True
        except KeyboardInterrupt:
            self._is_over = self.was_stopped = True

    @property
    def outcome(self) -> Outcome:
        """What was found so far."""
        return Outcome(
            compared=tuple(self._compared),
            sizes=self._sizes,
            start_tps=_speeds(self._start_seconds),
            chosen_tps=_speeds(self._seconds),
            n_others=self._n_others,
            is_busy=self._is_busy,
        )

    @property
    def _n_others(self) -> float:
        return median(self._others) if self._others else 0.0

    @property
    def _is_busy(self) -> bool:
        return self._n_others >= BUSY_SHARE * self._scope.n_logical

    @property
    def _left_s(self) -> float:
        return self._until_s - self._clock()

    def _measure_start(self) -> None:
        self._tell(TuningProgress("loading the model"))
        try:
            self._warm_up()
            self._tell(TuningProgress("the present settings"))
            prompt_s = self._of_best(FIRST_SIZES.work("prompt"))
            self._of_best(FIRST_SIZES.work("near"))
            self._sizes = sizes_for(1 / prompt_s, self._budget_s, self._best.n_ctx)
            for name in START_WORKS:
                self._of_best(self._sizes.work(name))
            for each in self._seconds.values():
                del each[0]  # of a run as short as any
        except OutOfTimeError as error:
            if len(self._seconds) < 2:
                raise TuningError(
                    f"the {self._budget_s / 60:g} minutes were not enough to measure the "
                    "present settings, so no preset is written: set more --minutes, tune a "
                    "smaller model, or close other programs"
                ) from error
        except EngineError as error:
            raise TuningError(f"the present settings cannot be measured: {error}") from error

    def _warm_up(self) -> None:
        """Load; where repacked weights crash, without them."""
        work = FIRST_SIZES.work("near")
        try:
            self._time(self._best, work)
        except EngineDiedError as error:
            if not (error.is_crash and self._best.use_extra_buffers):
                raise
            self._best = replace(self._best, use_extra_buffers=False)
            self._time(self._best, work)

    # --- candidates ---

    def _compare(self, setting: Setting, series: Sequence[_Series]) -> None:
        """Take blocks of the candidates by turns until each is decided.

        Raises:
            OutOfTimeError: the time was over first.
        """
        if self._preparing_s(setting) > self._left_s / 2:
            return
        while waiting := [each for each in series if not each.is_over]:
            for each in waiting:
                self._take_block(setting, each)

    def _preparing_s(self, setting: Setting) -> float:
        """Time until the first block: two contexts may read a long chat first."""
        n_held = self._sizes.work(setting.work).n_held
        return 2 * n_held * median(self._seconds["prompt"]) if n_held > NEAR_TOKENS else 0.0

    def _take_block(self, setting: Setting, each: _Series) -> None:
        self._tell(TuningProgress(setting.name, each.trial.label, len(each.blocks), each.gain))
        candidate, work = each.trial.of(self._best), self._sizes.work(setting.work)
        try:
            block = take_block(
                partial(self._of_best, work), partial(self._of_other, candidate, work)
            )
        except OutOfTimeError:
            raise
        except EngineError as error:
            each.ended = "failed", str(error)
        else:
            each.blocks.append(block)

    def _of_best(self, work: Work) -> float:
        """A run of the best so far; what it takes is kept."""
        self._last_s = self._time(self._best, work)
        self._seconds.setdefault(work.name, []).append(self._last_s)
        return self._last_s

    def _of_other(self, candidate: Configuration, work: Work) -> float:
        """A run of a candidate, which is stopped where it takes far longer than the best."""
        usual_s = max(self._last_s * max(work.n_tokens, 1), work.seconds)
        return self._time(candidate, work, SLOWEST * usual_s + STALL_S)

    def _time(
        self, configuration: Configuration, work: Work, limit_s: float | None = None
    ) -> float:
        left_s = self._left_s
        if left_s <= 0:
            raise OutOfTimeError("time is up")
        limit_s = left_s if limit_s is None else min(limit_s, left_s)
        ran = self._machine.run(configuration, work, limit_s=limit_s, until_s=self._until_s)
        if ran.n_others is not None:
            self._others.append(ran.n_others)
        return ran.seconds

    # --- verdicts ---

    def _conclude(self, setting: Setting, series: Sequence[_Series]) -> None:
        """Give each candidate its verdict, and go on with the fastest."""
        faster = [each for each in series if (gain := each.gain) is not None and gain.is_faster]
        fastest = max(faster, key=lambda each: each.gain.median if each.gain else 0.0, default=None)
        for each in series:
            result = self._result(setting, each, fastest)
            self._compared.append(result)
            self._tell(result)
        if fastest is not None:
            self._go_on_with(setting, fastest)

    def _result(self, setting: Setting, each: _Series, fastest: _Series | None) -> TrialResult:
        gain = each.gain
        verdict, reason = _verdict(each, gain)
        if verdict == "taken":
            if each is not fastest:
                assert fastest is not None
                verdict, reason = "faster", f"{fastest.trial.label} is even faster"
            elif reason := self._refusal(setting):
                verdict = "faster"
        return TrialResult(
            setting.name, each.trial.label, verdict, reason, gain, each.trial.changes, setting.cost
        )

    def _refusal(self, setting: Setting) -> str:
        """Why no number of threads is tried or taken: kvchat follows other programs by itself."""
        if not (self._leaves_threads_open and self._is_busy and setting.name.endswith("threads")):
            return ""
        return (
            f"other programs took {self._n_others:.1f} of {self._scope.n_logical} cores meanwhile, "
            "and kvchat adapts to them; close them and tune again for a fixed number"
        )

    def _go_on_with(self, setting: Setting, fastest: _Series) -> None:
        """Compare the next settings with these, and know how fast they are."""
        self._best = fastest.trial.of(self._best)
        measured = [seconds for block in fastest.blocks for seconds in block[1:3]]
        before, self._seconds = self._seconds, {setting.work: measured}
        self._within_time(self._measure_rest)
        self._seconds = {**before, **self._seconds}

    def _measure_rest(self) -> None:
        for name in START_WORKS:
            if name not in self._seconds:
                self._of_best(self._sizes.work(name))


def _verdict(each: _Series, gain: PairedGain | None) -> tuple[Verdict, str]:
    if each.ended is not None:
        return each.ended
    if gain is None:
        return "no time", "not measured"
    if not gain.is_decided:
        return "no time", f"after {gain.n_blocks} blocks"
    if gain.is_faster:
        return "taken", ""
    return "not faster", "" if gain.is_slower else f"gains below {gain.least:.2f} do not count"


def _speeds(seconds: Mapping[WorkName, Sequence[float]]) -> dict[WorkName, float]:
    return {name: 1 / median(each) for name, each in seconds.items()}
