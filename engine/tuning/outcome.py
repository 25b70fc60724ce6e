"""What tuning says: each candidate beside what was best before it, and what all of it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.configuration import Configuration
from engine.tuning.candidates import Sizes, WorkloadName
from engine.tuning.gain import Gain

Verdict = Literal["taken", "quicker", "slower", "within noise", "failed", "no time"]


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate beside what was best before it."""

    dimension: str
    label: str
    verdict: Verdict
    reason: str
    gain: Gain | None
    """Of a turn's tokens of the workloads; None where nothing was measured."""
    parts: Mapping[WorkloadName, Gain]
    """Of each workload alone."""
    changes: Mapping[str, object] = field(default_factory=dict)
    cost: str = ""

    @property
    def is_open(self) -> bool:
        """Whether more time would tell more."""
        return self.verdict == "no time"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is."""

    dimension: str
    label: str
    n_blocks: int
    gain: Gain | None
    spent_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run says."""

    start: Configuration
    chosen: Configuration
    noise: Gain
    """How unlike two equal engines were, over a turn."""
    compared: tuple[Compared, ...]
    total: Gain | None
    """Of all that was taken over the start; None where nothing was."""
    sizes: Sizes
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
