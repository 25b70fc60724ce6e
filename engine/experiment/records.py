"""Records that a benchmark stores as JSON: the machine, the settings and every reply."""

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from engine.events import GenerationStats
from engine.experiment.arm import PLAIN, ExperimentError
from engine.experiment.gain import row_of
from engine.files import read_text, reason_of, replace_file
from engine.memory.hardware import find_gpus, this_processor
from engine.memory.units import format_bytes
from engine.validation import read_versioned

RESULTS_BYTES = 1 << 26
"""Limit of a results file: about 2,500 prompts with 10 arms."""
MIN_TOKEN_S, MAX_TOKEN_S = 1e-9, 1e6
"""Shortest and longest time of a token that counts as measured."""
SCHEMA = 4
"""Raised when a field changes its meaning; files of other schemas are refused, not misread."""


Exclusion = Literal["loop", "short"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One reply of an arm."""

    arm: str
    stats: GenerationStats
    diverges_at: int | None = None
    """First token that differs from the plain reply of its row; None if none does."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing was drafted on purpose."""
        return self.arm == PLAIN.name


Row = tuple[Sample, ...]
"""Replies to one prompt in the order they were made: plain, B, B, plain, C, C, plain, ..."""


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """All replies to one prompt at one temperature, or why there are none."""

    set_name: str
    prompt: str
    temperature: float
    digest: str = ""
    """Digest of the prompt's text."""
    n_prompt: int = 0
    """Tokens of the prompt."""
    text: str = ""
    """The first plain reply."""
    excluded: Exclusion | None = None
    """Why the prompt does not count: the plain reply repeats itself, or is too short to time."""
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes of the engine, for example about a predictor that failed."""
    failure: str | None = None
    """Why the prompt has no replies; None if it has."""

    @property
    def key(self) -> tuple[str, str, float, str]:
        """Key of the prompt when a benchmark is continued."""
        return self.set_name, self.prompt, self.temperature, self.digest


Facts = dict[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Results:
    """Results of a benchmark so far."""

    machine: Facts
    subject: Facts
    """What was measured, with every setting; only results of one subject are continued."""
    arms: tuple[str, ...]
    """Names of the arms that are compared with plain decoding."""
    started: str
    """ISO 8601 with the offset."""
    prompts: tuple[PromptRecord, ...] = ()
    elapsed_s: float = 0.0
    schema: int = SCHEMA


def this_machine(*, llama_cpp: str, kvchat: str) -> Facts:
    """The facts without which a number cannot be compared with another machine's."""
    n_cores = psutil.cpu_count(logical=False) or os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": f"{this_processor().name}, {n_cores} cores",
        "ram": format_bytes(psutil.virtual_memory().total),
        "gpus": ", ".join(device.name for device in find_gpus()),
        "llama_cpp": llama_cpp,
        "kvchat": f"{kvchat} on Python {platform.python_version()}",
    }


def check_speed(stats: GenerationStats) -> None:
    """Refuse a reply without a speed that can be compared."""
    n_emitted = stats.n_emitted or 0
    if n_emitted <= 0 or stats.decode_s <= 0:
        raise ExperimentError(
            "the reply is empty, so its speed cannot be measured: try another prompt"
        )
    if not MIN_TOKEN_S <= stats.decode_s / n_emitted <= MAX_TOKEN_S:
        raise ExperimentError(f"{n_emitted} tokens in {stats.decode_s:g} s is not a possible speed")


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote."""
    try:
        text = read_text(path, limit=RESULTS_BYTES)
        results = read_versioned(text, Results, SCHEMA, key="schema", limit=RESULTS_BYTES)
        for record in results.prompts:
            for row in record.rows:
                _check_row(row, results.arms)
        return results
    except (ExperimentError, OSError, ValueError) as error:
        raise ExperimentError(
            f"{path} cannot be read as benchmark results ({error}): use another file"
        ) from error


def _check_row(row: Row, arms: Sequence[str]) -> None:
    names = [sample.arm for sample in row]
    others = names[1::3]
    if names != row_of(PLAIN.name, others) or PLAIN.name in arms or not {*arms} >= {*others}:
        raise ExperimentError(
            f"a block has the replies ({', '.join(names)}) instead of (plain, ARM, ARM, plain)"
        )
    for sample in row:
        check_speed(sample.stats)


def write_results(path: Path, results: Results) -> None:
    """Replace the file whole, so that a crash leaves the last complete one; a link is followed."""
    text = json.dumps(dataclasses.asdict(results), ensure_ascii=False) + "\n"
    try:
        replace_file(path.resolve(), [text.encode()], is_durable=False)
    except OSError as error:
        raise ExperimentError(f"{path} cannot be written: {reason_of(error)}") from error


def check_same_subject(results: Results, now: Results) -> None:
    """Refuse to continue results of another machine, subject or other arms."""
    old, new = (
        {**each.machine, **each.subject, "arms": ", ".join(each.arms)} for each in (results, now)
    )
    differences = [
        f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
        for name in {**new, **old}
        if old.get(name) != new.get(name)
    ]
    if differences:
        raise ExperimentError(
            f"the file contains results of another measurement ({'; '.join(differences)}): use "
            "the same options, or another file for --json"
        )
