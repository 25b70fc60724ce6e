"""What tuning says: each candidate beside what was best before it, and what all of it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.configuration import Configuration
from engine.tuning.gain import PairedGain
from engine.tuning.trials import WorkloadName, WorkloadSizes

Verdict = Literal["taken", "quicker", "slower", "within noise", "failed", "no time"]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A candidate beside what was best before it."""

    setting: str
    label: str
    verdict: Verdict
    reason: str
    gain: PairedGain | None
    """Of a turn's tokens of the workloads; None where nothing was measured."""
    parts: Mapping[WorkloadName, PairedGain]
    """Of each workload alone."""
    changes: Mapping[str, object] = field(default_factory=dict)
    cost: str = ""

    @property
    def is_open(self) -> bool:
        """Whether more time would tell more."""
        return self.verdict == "no time"


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """Where a run is."""

    setting: str
    label: str
    n_blocks: int
    gain: PairedGain | None
    spent_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run says."""

    start: Configuration
    chosen: Configuration
    noise: PairedGain
    """How unlike two equal engines were, over a turn."""
    compared: tuple[TrialResult, ...]
    total: PairedGain | None
    """Of all that was taken over the start; None where nothing was."""
    sizes: WorkloadSizes
    start_tps: Mapping[WorkloadName, float]
    """Tokens a second with the settings of the start, by workload."""
    chosen_tps: Mapping[WorkloadName, float]
    spent_s: float

    @property
    def changes(self) -> dict[str, object]:
        """What the start lacks, by the fields of `Configuration`."""
        return {
            name: value
            for each in self.compared
            if each.verdict == "taken"
            for name, value in each.changes.items()
        }

    @property
    def is_complete(self) -> bool:
        """Whether more time would tell nothing more."""
        return not any(each.is_open for each in self.compared)
