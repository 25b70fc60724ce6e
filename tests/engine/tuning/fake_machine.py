"""A machine whose speeds and noise are known, and whose clock moves with its runs alone."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.configuration import Configuration
from engine.tuning.outcome import Outcome, TrialResult, TuningRecord
from engine.tuning.timer import OutOfTimeError, VariantFailedError
from engine.tuning.trials import Scope, Variant, Workload
from engine.tuning.tuner import Tuner

START = Configuration(Path("/models/m.gguf"), n_ctx=8192)
CPU = Scope(n_cores=4, n_logical=4, n_layers=31, has_gpu=False, has_flash_attention=True)
SECONDS = {"prompt": 1 / 400, "near": 1 / 60, "deep": 1 / 50}
"""Of a token with the settings of the start."""
LOAD_S = 1.5

Speed = Callable[[Configuration, str], float]
"""How many times as fast a configuration is as the start, by workload."""


def as_ever(configuration: Configuration, workload: str) -> float:
    """All settings are equal, but more threads than cores or fewer are slower."""
    n_threads = configuration.n_threads_batch if workload == "prompt" else configuration.n_threads
    return min(n_threads or 4, 4) / 4


@dataclass
class FakeMachine:
    """Runs take what `speed` says, times noise and a drift."""

    speed: Speed = as_ever
    noise: float = 0.005
    """Standard deviation of a run's time, as a share."""
    drift: float = 0.0
    """Share by which runs grow slower every minute."""
    failing: Mapping[str, Callable[[Configuration], bool]] = field(default_factory=dict)
    seed: int = 1
    now_s: float = 0.0
    n_runs: int = 0
    n_deep_reads: int = 0
    """How often an engine had to read a long chat."""
    is_interrupted_at: int | None = None
    loaded: list[Variant] = field(default_factory=list)
    held: dict[Variant, str] = field(default_factory=dict)
    """What each engine read last."""

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def clock(self) -> float:
        return self.now_s

    def seconds(self, variant: Variant, workload: Workload, *, within_s: float) -> float:
        self.n_runs += 1
        if self.n_runs == self.is_interrupted_at:
            raise KeyboardInterrupt
        for reason, fails in self.failing.items():
            if fails(variant.configuration):
                raise VariantFailedError(variant, reason)
        began_s = self.now_s
        if variant not in self.loaded:
            self.loaded = [*self.loaded[-1:], variant]
            self.now_s += LOAD_S
        usual = SECONDS[workload.name] / self.speed(variant.configuration, workload.name)
        factor = max(1 + self._rng.gauss(0, self.noise), 0.1) * (1 + self.drift * self.now_s / 60)
        took = usual * factor
        self.now_s += took * workload.n_tokens
        if self.held.get(variant) != workload.name:
            self.now_s += SECONDS["prompt"] * workload.n_held
            self.n_deep_reads += workload.name == "deep"
        self.held[variant] = workload.name
        if self.now_s - began_s > within_s:
            self.now_s = began_s + within_s
            raise OutOfTimeError("it did not finish")
        return took


def tuned(
    machine: FakeMachine,
    *,
    start: Configuration = START,
    facts: Scope = CPU,
    record: TuningRecord | None = None,
    minutes: float = 60.0,
) -> Outcome:
    """What a tuner finds on a machine."""
    tuner = made_tuner(machine, start=start, facts=facts, record=record, minutes=minutes)
    for _ in tuner.run():
        pass
    return tuner.outcome()


def made_tuner(
    machine: FakeMachine,
    *,
    start: Configuration = START,
    facts: Scope = CPU,
    record: TuningRecord | None = None,
    minutes: float = 60.0,
) -> Tuner:
    return Tuner(
        start,
        facts,
        machine,
        TuningRecord() if record is None else record,
        budget_s=60 * minutes,
        keep=lambda _: None,
        clock=machine.clock,
    )


def told(outcome: Outcome, setting: str, label: str) -> TrialResult:
    """What was said of a candidate."""
    return next(each for each in outcome.compared if (each.setting, each.label) == (setting, label))
