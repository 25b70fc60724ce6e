"""A machine whose speeds and noise are known, and whose clock moves with its runs alone."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.experiment.timing import OutOfTimeError, Ran, Work
from engine.experiment.tuner import Outcome, Scope, Trial, Tuner

START = Configuration(Path("/models/m.gguf"), n_ctx=8192)
CPU = Scope(
    n_cores=4,
    n_begin=4,
    n_logical=4,
    has_flash_attention=True,
)
SECONDS = {"prompt": 1 / 400, "near": 1 / 60, "deep": 1 / 50}
"""Of a token with the settings of the start."""

Speed = Callable[[Configuration, str], float]
"""How many times as fast a configuration is as the start, by workload."""


def as_ever(configuration: Configuration, workload: str) -> float:
    """All settings are equal, but more threads than cores or fewer are slower."""
    n_threads = configuration.n_threads_batch if workload == "prompt" else configuration.n_threads
    return min(n_threads or 4, 4) / 4


def fast_without_flash(configuration: Configuration, workload: str) -> float:
    """8 % faster in all without flash attention."""
    gain = 1.08 if configuration.flash_attention == "off" else 1.0
    return gain * as_ever(configuration, workload)


@dataclass
class FakeMachine:
    """Runs take the time of `speed`, with noise and a drift."""

    speed: Speed = as_ever
    slowness: float = 1.0
    """Times as long as on the usual machine that everything takes."""
    noise: float = 0.005
    """Standard deviation of a run's time, as a share."""
    jump: float = 0.0
    """Share by which runs are faster or slower for a while, until the next jump."""
    drift: float = 0.0
    """Share by which runs grow slower every minute."""
    load_s: float = 1.5
    n_others: float = 0.0
    failing: Mapping[str, Callable[[Configuration], bool]] = field(default_factory=dict)
    seed: int = 1
    now_s: float = 0.0
    n_runs: int = 0
    n_loads: int = 0
    is_interrupted_at: int | None = None
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._opened: dict[Configuration, int] = {}
        self._jumps_at_s = 0.0
        self._level = 1.0

    def clock(self) -> float:
        return self.now_s

    def close(self) -> None:
        self.is_closed = True

    def run(self, configuration: Configuration, work: Work, limit_s: float, until_s: float) -> Ran:
        self.n_runs += 1
        if self.n_runs == self.is_interrupted_at:
            raise KeyboardInterrupt
        for reason, fails in self.failing.items():
            if fails(configuration):
                raise EngineError(reason)
        if not self.n_loads:
            self.n_loads += 1
            self._pass(self.load_s * self.slowness, until_s)
        n_held = self._opened.pop(configuration, 0)
        self._opened[configuration] = work.n_held
        self._pass(SECONDS["prompt"] * self.slowness * max(work.n_held - n_held, 0), until_s)
        token_s = SECONDS[work.name] * self._factor() / self.speed(configuration, work.name)
        n_tokens = work.n_tokens or max(2, round(work.seconds / token_s))
        took_s = min(token_s * n_tokens, limit_s)
        self._pass(took_s, until_s)
        return Ran(took_s / n_tokens, self.n_others)

    def _factor(self) -> float:
        if self.now_s >= self._jumps_at_s:
            self._jumps_at_s = self.now_s + self._rng.expovariate(1.0)
            self._level = 1 + self._rng.uniform(-self.jump, self.jump)
        noise = max(1 + self._rng.gauss(0, self.noise), 0.1)
        return noise * self._level * self.slowness * (1 + self.drift * self.now_s / 60)

    def _pass(self, seconds: float, until_s: float) -> None:
        if self.now_s + seconds > until_s:
            self.now_s = until_s
            raise OutOfTimeError("time is up")
        self.now_s += seconds


@dataclass
class Recorded:
    """The messages and results of a tuner."""

    steps: list[str] = field(default_factory=list)
    saved: list[Outcome] = field(default_factory=list)


def made_tuner(
    machine: FakeMachine,
    recorded: Recorded | None = None,
    *,
    start: Configuration = START,
    scope: Scope = CPU,
    minutes: float = 60.0,
) -> Tuner:
    recorded = recorded or Recorded()
    return Tuner(
        start,
        scope,
        machine.run,
        budget_s=60 * minutes,
        until_s=machine.now_s + 60 * minutes,
        doing=recorded.steps.append,
        report=lambda _: None,
        save=recorded.saved.append,
        clock=machine.clock,
    )


def tuned(
    machine: FakeMachine,
    *,
    start: Configuration = START,
    scope: Scope = CPU,
    minutes: float = 60.0,
) -> Outcome:
    """What a tuner finds on a machine."""
    return made_tuner(machine, start=start, scope=scope, minutes=minutes).run()


def result(outcome: Outcome, setting: str, label: str) -> Trial:
    """The message about a candidate."""
    return next(each for each in outcome.compared if (each.setting, each.label) == (setting, label))
