"""What was measured so far, kept so that a stopped run goes on where it was."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path

from engine.errors import EngineError
from engine.files import RECORDS_BYTES, read_bytes, replace_file
from engine.parsing import parse_json
from engine.tuning.gain import Block
from engine.tuning.trials import EVERYTHING, WorkloadName, WorkloadSizes

VERSION = 1
MOST_SECONDS = 1e6


class RecordError(EngineError):
    """What was measured cannot be kept."""

    title = "Measurements cannot be kept"


@dataclass(slots=True)
class TuningRecord:
    """The blocks of every comparison, by a name that says what was compared with what."""

    sizes: WorkloadSizes | None = None
    """None until the workloads are sized."""
    blocks: dict[str, dict[WorkloadName, list[Block]]] = field(default_factory=dict)
    """By comparison and workload."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a comparison has no blocks, or no more of them."""
    spent_s: float = 0.0
    """Time of all runs so far."""


def read_record(path: Path) -> TuningRecord:
    """What a file holds; an empty record where it is not there, damaged or of another version."""
    try:
        data = parse_json(read_bytes(path, limit=RECORDS_BYTES))
        return _record(data) if isinstance(data, dict) else TuningRecord()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return TuningRecord()


def write_record(path: Path, record: TuningRecord) -> None:
    """Replace the file whole.

    Raises:
        RecordError: it cannot be written.
    """
    text = json.dumps({"version": VERSION, **asdict(record)})
    try:
        replace_file(path, [text.encode()], is_durable=False)
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written ({error.strerror or error}): a stopped run will begin anew"
        ) from error


def _record(data: dict[str, object]) -> TuningRecord:
    if data["version"] != VERSION:
        return TuningRecord()
    sizes, blocks, failures = data["sizes"], data["blocks"], data["failures"]
    if not (isinstance(blocks, dict) and isinstance(failures, dict)):
        return TuningRecord()
    return TuningRecord(
        sizes=WorkloadSizes(**{key: _count(n) for key, n in sizes.items()})
        if isinstance(sizes, dict)
        else None,
        blocks={
            str(name): {work: list(_blocks(found[work])) for work in EVERYTHING if work in found}
            for name, found in blocks.items()
        },
        failures={str(name): str(reason) for name, reason in failures.items()},
        spent_s=_seconds(data["spent_s"]),
    )


def _blocks(found: list[list[object]]) -> Iterator[Block]:
    for first, second, third, fourth in found:
        block = _seconds(first), _seconds(second), _seconds(third), _seconds(fourth)
        if min(block) <= 0:
            raise ValueError("no time is that short")
        yield block


def _seconds(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]  # a TypeError is what is wanted then
    if not (isfinite(seconds) and 0 <= seconds < MOST_SECONDS):
        raise ValueError(f"{value} is no time")
    return seconds


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 < value < MOST_SECONDS:
        raise ValueError(f"{value} is no number of tokens")
    return value
