"""The search for the fastest threads, flash attention and ubatch of a model, within a time.

The settings at the start are measured first, so that there is a result whatever follows. Then the
candidates of each setting are compared with the best settings so far, in blocks A B B A of short
runs, until each is decided (`engine.experiment.gain`) or time is up.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Literal

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.experiment.gain import ORDER, Block, PairedGain, gain_of
from engine.experiment.timing import EngineDiedError, OutOfTimeError, Ran, Work, WorkName
from engine.memory.kv_cache import is_quantized

N_NEAR = 32
"""Tokens in the cache when decoding in a short chat is timed."""
MIN_DEEP, MAX_DEEP = 512, 2048
MIN_PROMPT, MAX_PROMPT = 16, 1024
RUN_SHARE, DEEP_SHARE = 1 / 720, 1 / 24
"""Shares of the whole time: one run (0.25 s of three minutes), and the prefill of a long chat."""
MIN_RUN_S, MAX_RUN_S = 0.25, 2.0
MAX_CTX = MAX_DEEP + MAX_DEEP // 4 + MAX_PROMPT + 256
UBATCHES = (64, 128, 256, 512, 1024)
SLOWEST, STALL_S = 4.0, 1.0
"""A run is stopped at 4 times the time of the best settings, plus one second for stalls."""
BUSY_SHARE = 0.25
"""Share of the cores used by other programs from which no thread count is chosen."""
START_WORKS: tuple[WorkName, ...] = ("near", "prompt")

Verdict = Literal["chosen", "faster", "no gain", "failed", "not tried", "undecided"]


class TuningError(EngineError):
    """Nothing can be measured here."""

    title = "Tuning cannot continue"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths of timed runs."""

    run_s: float = MIN_RUN_S
    n_prompt: int = MIN_PROMPT
    n_deep: int = MIN_DEEP

    def work(self, name: WorkName) -> Work:
        """The work of a name, of this size."""
        if name == "prompt":
            return Work(name, N_NEAR, self.n_prompt)
        return Work(name, self.n_deep if name == "deep" else N_NEAR, seconds=self.run_s)


def sizes_for(prompt_tps: float, budget_s: float, n_ctx: int) -> Sizes:
    """Sizes for a machine with this prefill speed, time for everything, and context."""

    def within(value: float, low: float, high: float) -> float:
        return max(min(value, high), low)

    run_s = within(budget_s * RUN_SHARE, MIN_RUN_S, MAX_RUN_S)
    n_prompt = round(prompt_tps * run_s / MIN_PROMPT) * MIN_PROMPT
    n_deep = within(prompt_tps * budget_s * DEEP_SHARE, MIN_DEEP, MAX_DEEP)
    return Sizes(
        run_s,
        n_prompt=round(within(n_prompt, MIN_PROMPT, min(MAX_PROMPT, n_ctx // 4))),
        n_deep=round(min(n_deep, n_ctx // 2)),
    )


@dataclass(frozen=True, slots=True)
class Scope:
    """Facts about machine and model."""

    n_cores: int
    """Physical cores."""
    n_begin: int
    """Threads that kvchat chooses by itself."""
    n_logical: int
    """Threads that the processor runs at once."""
    has_flash_attention: bool
    """Whether the model can run with and without it."""


def thread_counts(scope: Scope) -> tuple[int, ...]:
    """Thread counts to try: all up to four, else quarters of the cores and every thread."""
    if scope.n_logical <= 4:
        return tuple(range(1, scope.n_logical + 1))
    shares = {max(scope.n_cores * quarters // 4, 1) for quarters in (1, 2, 3, 4)}
    return tuple(sorted({*shares, scope.n_logical}))


SETTINGS: Mapping[str, WorkName] = {
    "decode threads": "near", "prefill threads": "prompt", "flash attention": "deep",
    "ubatch": "prompt",
}  # fmt: skip
"""What is timed for each setting; threads come first: they change while the model runs."""


def candidates(
    setting: str, best: Configuration, scope: Scope, sizes: Sizes
) -> dict[str, dict[str, object]]:
    """Changes to the best configuration so far by their labels."""
    if setting.endswith("threads"):
        name = "n_threads" if setting == "decode threads" else "n_threads_batch"
        counts = thread_counts(scope)
        return {"1 thread" if n == 1 else f"{n} threads": {name: n} for n in counts}
    if setting == "flash attention":
        other = "on" if best.flash_attention == "off" else "off"
        is_needed = not scope.has_flash_attention or is_quantized(best.type_v)
        return {} if is_needed else {other: {"flash_attention": other}}
    # Ubatches that the timed prompt fills: larger ones compute the same batch.
    now, limit = min(best.n_ubatch, sizes.n_prompt), min(sizes.n_prompt, best.n_batch)
    return {f"{n} tokens": {"n_ubatch": n} for n in UBATCHES if n <= limit and n != now}


@dataclass(slots=True)
class Trial:
    """A candidate that is compared with the best settings so far."""

    setting: str
    label: str
    changes: Mapping[str, object]
    verdict: Verdict = "undecided"
    reason: str = ""
    gain: PairedGain | None = None
    """None without a block."""
    blocks: list[Block] = field(default_factory=list)

    def of(self, base: Configuration) -> Configuration:
        """A configuration with the changes."""
        return replace(base, **self.changes)  # type: ignore[arg-type]  # by name

    @property
    def is_open(self) -> bool:
        """Whether more blocks are needed."""
        is_decided = self.gain is not None and self.gain.is_decided
        return self.verdict == "undecided" and not is_decided


def trials_of(setting: str, best: Configuration, scope: Scope, sizes: Sizes) -> list[Trial]:
    """The candidates of a setting that differ from the best settings so far."""
    changes = candidates(setting, best, scope, sizes)
    trials = [Trial(setting, label, each) for label, each in changes.items()]
    return [each for each in trials if each.of(best) != best]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results so far."""

    compared: tuple[Trial, ...]
    sizes: Sizes
    start_tps: Mapping[WorkName, float]
    """Tokens per second with the settings at the start."""
    chosen_tps: Mapping[WorkName, float]
    """Speed of each kind of work with the chosen settings."""
    n_others: float
    """Cores that other programs used meanwhile, the median."""
    is_busy: bool
    """Whether that is too much for a speed that is worth storing."""

    @property
    def changes(self) -> dict[str, object]:
        """The chosen fields of `Configuration`."""
        chosen = (each.changes for each in self.compared if each.verdict == "chosen")
        return {name: value for changes in chosen for name, value in changes.items()}

    @property
    def is_complete(self) -> bool:
        """Whether every candidate was decided."""
        return all(each.verdict != "undecided" for each in self.compared)


TimeRun = Callable[[Configuration, Work, float, float], Ran]
"""`TimingProcess.run`."""


@dataclass(slots=True)
class Tuner:
    """Compares settings until all are decided or time is up."""

    start: Configuration
    """The configuration at the start."""
    scope: Scope
    time_run: TimeRun
    budget_s: float
    """Time for everything."""
    until_s: float
    """Time at which the measurement ends."""
    doing: Callable[[str], None]
    """Called with what is measured, in words."""
    report: Callable[[Trial], None]
    """Called with each result."""
    save: Callable[[Outcome], None]
    """Called with the outcome after the start and after each setting."""
    clock: Callable[[], float] = time.monotonic
    was_stopped: bool = False
    """Whether the user stopped it."""
    _best: Configuration = field(init=False)
    _sizes: Sizes = field(default_factory=Sizes)
    _compared: list[Trial] = field(default_factory=list)
    _others: list[float] = field(default_factory=list)
    """Cores that other programs used, by run."""
    _seconds: dict[WorkName, list[float]] = field(default_factory=dict)
    """Per token, with the best settings so far."""
    _start_seconds: dict[WorkName, list[float]] = field(init=False)
    _is_over: bool = False

    def __post_init__(self) -> None:
        n_threads = self.start.n_threads or self.scope.n_begin
        # Threads that follow the load would change during the measurement.
        self._best = replace(
            self.start,
            n_ctx=min(self.start.n_ctx, MAX_CTX),
            n_slots=1,
            kv_unified=False,
            n_threads=n_threads,
            n_threads_batch=self.start.n_threads_batch or n_threads,
        )
        self._start_seconds = self._seconds

    def run(self) -> Outcome:
        """Measure; Ctrl+C ends it, and what was found until then counts."""
        self._measure_start()
        self.save(self.outcome)
        for setting in SETTINGS:
            trials = trials_of(setting, self._best, self.scope, self._sizes)
            if trials:
                self._try(setting, trials)
                self.save(self.outcome)
        return self.outcome

    @property
    def outcome(self) -> Outcome:
        """The results so far."""
        n_others = median(self._others) if self._others else 0.0
        start_tps, chosen_tps = (
            {name: 1 / median(each) for name, each in seconds.items()}
            for seconds in (self._start_seconds, self._seconds)
        )
        return Outcome(
            compared=tuple(self._compared),
            sizes=self._sizes,
            start_tps=start_tps,
            chosen_tps=chosen_tps,
            n_others=n_others,
            is_busy=n_others >= BUSY_SHARE * self.scope.n_logical,
        )

    def _measure_start(self) -> None:
        self.doing("loading the model")
        first = Sizes()
        try:
            self._warm_up(first.work("near"))
            self.doing("the current settings")
            prompt_s = self._time(self._best, first.work("prompt"))
            self._seconds["near"] = [self._time(self._best, first.work("near"))]
            self._seconds["prompt"] = [prompt_s]
            self._sizes = sizes_for(1 / prompt_s, self.budget_s, self._best.n_ctx)
            for name in START_WORKS:
                self._measure_speed(name)
        except OutOfTimeError as error:
            if len(self._seconds) < len(START_WORKS):
                raise TuningError(
                    f"the {self.budget_s / 60:g} minutes were not enough to measure the current "
                    "settings, so no preset was written: raise --minutes, tune a "
                    "smaller model, or close other programs"
                ) from error
        except EngineError as error:
            raise TuningError(f"the current settings cannot be measured: {error}") from error

    def _warm_up(self, work: Work) -> None:
        """Load the model; if repacked weights crash, without them."""
        try:
            self._time(self._best, work)
        except EngineDiedError:
            if not self._best.use_extra_buffers:
                raise
            self._best = replace(self._best, use_extra_buffers=False)
            self._time(self._best, work)

    # --- one setting ---

    def _try(self, setting: str, trials: Sequence[Trial]) -> None:
        """Compare the candidates with the best so far, and continue with the fastest."""
        if refusal := self._refusal(setting):
            for trial in trials:
                trial.verdict, trial.reason = "not tried", refusal
        else:
            self._within_time(partial(self._measure, setting, trials))
        self._compared += trials
        faster = [
            each for each in trials
            if each.verdict == "undecided" and each.gain and each.gain.is_faster
        ]  # fmt: skip
        fastest = max(faster, key=lambda each: median(b.ratio for b in each.blocks), default=None)
        for trial in trials:
            if trial.verdict == "undecided" and trial.gain is not None:
                best = None if trial is fastest else fastest
                trial.verdict, trial.reason = self._verdict(setting, trial.gain, best)
            elif not trial.reason:
                trial.reason = "not measured"
            self.report(trial)
        if fastest is not None and fastest.verdict == "chosen":
            self._adopt(fastest, setting)

    def _measure(self, setting: str, trials: Sequence[Trial]) -> None:
        work = self._sizes.work(SETTINGS[setting])
        prefill_s = 2 * work.n_held * median(self._seconds["prompt"])  # of two contexts
        if work.n_held > N_NEAR and prefill_s > (self.until_s - self.clock()) / 2:
            return
        while waiting := [trial for trial in trials if trial.is_open]:
            for trial in waiting:
                so_far = f" · {trial.gain.median:.2f}x so far" if trial.gain else ""
                n = len(trial.blocks) + 1
                self.doing(f"{trial.setting}, {trial.label} · block {n}{so_far}")
                try:
                    trial.blocks.append(self._block(trial.of(self._best), work))
                except OutOfTimeError:
                    raise
                except EngineError as error:
                    trial.verdict, trial.reason = "failed", str(error)
                trial.gain = gain_of(trial.blocks)

    def _block(self, other: Configuration, work: Work) -> Block:
        """A block of the best settings and others, whose runs are stopped if far slower."""
        best = self._seconds.setdefault(work.name, [])
        seconds = []
        for index in ORDER:
            if index:
                usual_s = max(best[-1] * max(work.n_tokens, 1), work.seconds)
                seconds.append(self._time(other, work, SLOWEST * usual_s + STALL_S))
            else:
                best.append(self._time(self._best, work))
                seconds.append(best[-1])
        return Block(*seconds)

    def _verdict(self, setting: str, gain: PairedGain, faster: Trial | None) -> tuple[Verdict, str]:
        if not gain.is_decided:
            return "undecided", f"after {gain.n_blocks} blocks"
        if not gain.is_faster:
            return "no gain", "" if gain.is_slower else f"gains below {gain.least:.2f}x are ignored"
        if faster is not None:
            return "faster", f"{faster.label} is even faster"
        refusal = self._refusal(setting)
        return ("faster", refusal) if refusal else ("chosen", "")

    def _refusal(self, setting: str) -> str:
        """Why no thread count is tried or chosen; empty if one may be."""
        outcome = self.outcome
        if not (self.start.n_threads is None and outcome.is_busy and setting.endswith("threads")):
            return ""
        return (
            f"other programs used {outcome.n_others:.1f} of {self.scope.n_logical} cores; "
            "close these programs and tune again"
        )

    def _adopt(self, trial: Trial, setting: str) -> None:
        """Compare the next settings with these, and measure their other speeds."""
        self._best = trial.of(self._best)
        seconds = [each for block in trial.blocks for each in (block.b_first, block.b_last)]
        self._seconds = {**self._seconds, SETTINGS[setting]: seconds}
        for name in START_WORKS:
            if name != SETTINGS[setting]:
                self._within_time(partial(self._measure_speed, name))

    def _measure_speed(self, name: WorkName) -> None:
        self._seconds[name] = [self._time(self._best, self._sizes.work(name))]

    # --- time ---

    def _within_time(self, measure: Callable[[], None]) -> None:
        """Measure, unless time is up or the user stopped."""
        try:
            if not self._is_over:
                measure()
        except OutOfTimeError:
            self._is_over = True
        except KeyboardInterrupt:
            self._is_over = self.was_stopped = True

    def _time(self, settings: Configuration, work: Work, limit_s: float | None = None) -> float:
        left_s = self.until_s - self.clock()
        if left_s <= 0:
            raise OutOfTimeError("time is up")
        limit_s = left_s if limit_s is None else min(limit_s, left_s)
        ran = self.time_run(settings, work, limit_s, self.until_s)
        if ran.n_others is not None:
            self._others.append(ran.n_others)
        return ran.seconds
