"""What tuning measured, kept so that a stopped run goes on where it was, and what it says."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import TypeAdapter, ValidationError

from engine.configuration import STRICT, Bounds, Configuration
from engine.errors import EngineError
from engine.files import read_record as read_file
from engine.files import write_record as write_file
from engine.tuning.gain import MOST_SECONDS, Block, PairedGain
from engine.tuning.trials import WorkloadName, WorkloadSizes

VERSION = 1

Verdict = Literal["taken", "quicker", "slower", "within noise", "failed", "no time"]


class RecordError(EngineError):
    """What was measured cannot be kept."""

    title = "Measurements cannot be kept"


@dataclass(slots=True)
class TuningRecord:
    """The blocks of every comparison, by a name that says what was compared with what."""

    __pydantic_config__ = STRICT

    sizes: WorkloadSizes | None = None
    """None until the workloads are sized."""
    blocks: dict[str, dict[WorkloadName, list[Block]]] = field(default_factory=dict)
    """By comparison and workload."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a comparison has no blocks, or no more of them."""
    spent_s: Annotated[float, Bounds(ge=0, lt=MOST_SECONDS)] = 0.0
    """Time of all runs so far."""


def read_record(path: Path) -> TuningRecord:
    """What a file holds; an empty record where it is not there, damaged or of another version."""
    try:
        return TypeAdapter(TuningRecord).validate_python(read_file(path, VERSION))
    except ValidationError:
        return TuningRecord()


def write_record(path: Path, record: TuningRecord) -> None:
    """Replace the file whole.

    Raises:
        RecordError: it cannot be written.
    """
    try:
        write_file(path, VERSION, asdict(record))
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written ({error.strerror or error}): a stopped run will begin anew"
        ) from error


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
