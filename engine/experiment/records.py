"""What a benchmark stores as JSON: the machine, the settings and every reply."""

import dataclasses
import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from engine.events import Finished
from engine.experiment.arm import ExperimentError
from engine.files import RECORDS_BYTES, read_text, replace_file
from engine.memory.hardware import find_gpus, this_processor
from engine.validation import read_versioned

SCHEMA = 2
"""Raised when a field changes its meaning; files of other schemas are refused, not misread."""


Exclusion = Literal["loop", "short"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One reply: which arm made it, how fast, and what was counted."""

    arm: str
    n_tokens: int
    finish_reason: str
    decode_s: float
    """Time after the prefill."""
    n_emitted: int
    n_rounds: int
    n_verified: int
    n_accepted: int
    saved_s: float | None = None
    saved_error_s: float | None = None
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Verified and accepted tokens of each predictor."""
    diverges_at: int | None = None
    """First token that differs from the plain reply of its row; None if none does."""

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return self.decode_s / self.n_emitted

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per pass through the model."""
        return self.n_emitted / max(self.n_rounds, 1)


def sample_of(arm: str, finished: Finished, diverges_at: int | None = None) -> Sample:
    """What a finished reply counts as.

    Raises:
        ExperimentError: the reply is empty, so it has no speed.
    """
    stats = finished.stats
    if not stats.n_emitted or stats.decode_s <= 0:
        raise ExperimentError("the reply is empty, so it has no speed: try another prompt")
    return Sample(
        arm=arm,
        n_tokens=len(finished.token_ids),
        finish_reason=finished.reason.value,
        decode_s=stats.decode_s,
        n_emitted=stats.n_emitted,
        n_rounds=stats.n_rounds,
        n_verified=stats.n_verified,
        n_accepted=stats.n_accepted,
        saved_s=stats.saved_s,
        saved_error_s=stats.saved_error_s,
        by_source={
            name: (counts.n_verified, counts.n_accepted) for name, counts in stats.by_source.items()
        },
        diverges_at=diverges_at,
    )


Row = tuple[Sample, ...]
"""Replies to one prompt in the order they were made: plain, B, B, plain, C, C, plain, ..."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """Median time of the rounds of one size for a prompt."""

    n_rows: int
    """Tokens in the batch: the pending one and the draft."""
    n_rounds: int
    median_s: float


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """All replies to one prompt at one temperature, or why there are none."""

    set_name: str
    prompt: str
    temperature: float
    n_prompt: int = 0
    """Tokens of the prompt."""
    text: str = ""
    """The first plain reply."""
    excluded: Exclusion | None = None
    """Why the prompt does not count: the plain reply repeats itself, or is too short to time."""
    rows: tuple[Row, ...] = ()
    batches: tuple[BatchTime, ...] = ()
    notes: tuple[str, ...] = ()
    """What the engine reported, such as a predictor that failed."""
    failure: str | None = None
    """Why the prompt has no replies; None if it has."""

    @property
    def key(self) -> tuple[str, str, float]:
        """What identifies the prompt when a benchmark is continued."""
        return self.set_name, self.prompt, self.temperature


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Where it was measured."""

    system: str
    processor: str
    n_cores: int
    ram_bytes: int
    gpus: tuple[str, ...]
    llama_cpp: str
    """Version of the binding and the processor features of its build."""
    kvchat: str
    python: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured; only results of one subject are continued."""

    model: str
    """File name."""
    model_bytes: int
    file_type: str
    n_ctx: int
    n_threads: int | None
    draft: str | None
    draft_bytes: int | None
    arms: tuple[str, ...]
    n_blocks: int
    n_tokens: int
    """Maximum tokens of a reply."""
    seed: int
    verification: str


@dataclass(frozen=True, slots=True)
class Results:
    """A benchmark as far as it has come."""

    machine: MachineFacts
    subject: Subject
    started: str
    """ISO 8601 with the offset."""
    prompts: tuple[PromptRecord, ...] = ()
    elapsed_s: float = 0.0
    schema: int = SCHEMA


def this_machine(*, llama_cpp: str, kvchat: str) -> MachineFacts:
    """The facts without which a number cannot be compared with another machine's."""
    return MachineFacts(
        system=f"{platform.system()} {platform.release()}",
        processor=this_processor().name,
        n_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        ram_bytes=psutil.virtual_memory().total,
        gpus=tuple(device.name for device in find_gpus()),
        llama_cpp=llama_cpp,
        kvchat=kvchat,
        python=platform.python_version(),
    )


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote.

    Raises:
        ExperimentError: the file cannot be read, is not a benchmark's, or of another schema.
    """
    try:
        text = read_text(path, limit=RECORDS_BYTES)
        return read_versioned(text, Results, SCHEMA, key="schema")
    except (OSError, ValueError) as error:
        raise ExperimentError(
            f"{path} cannot be read as benchmark results ({error}): measure again with another file"
        ) from error


def write_results(path: Path, results: Results) -> None:
    """Replace the file whole, so that a crash leaves the last complete one.

    Raises:
        ExperimentError: the file cannot be written.
    """
    write_text(path, json.dumps(dataclasses.asdict(results), ensure_ascii=False, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a report's file; a link is followed.

    Raises:
        ExperimentError: the file cannot be written.
    """
    try:
        replace_file(path.resolve(), [text.encode()], is_durable=False)
    except OSError as error:
        raise ExperimentError(f"{path} cannot be written: {error.strerror}") from error


def check_same_subject(old: Subject, new: Subject) -> None:
    """Refuse to continue results of another measurement.

    Raises:
        ExperimentError: they differ; every difference is named.
    """
    differences = [
        f"{name} was {before!r} and is {now!r}"
        for name, now in dataclasses.asdict(new).items()
        if (before := getattr(old, name)) != now
    ]
    if differences:
        raise ExperimentError(
            f"the file has results of another measurement ({'; '.join(differences)}): use the same "
            "options, or another file for --json"
        )
