"""What a benchmark writes down: the machine, the settings and every run, kept as a JSON file."""

import dataclasses
import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from app import __version__
from app.config import SettingsError, write_atomically
from app.doctor import check_build
from engine.errors import EngineError
from engine.files import RECORDS_BYTES, read_text
from engine.memory.hardware import find_gpus, this_processor
from engine.validation import read_versioned

PLAIN = "plain"
"""Name of the runs that draft nothing."""
SCHEMA = 1
"""Raised whenever a field changes its meaning; older files are then refused, not misread."""


class BenchError(EngineError):
    """A prompt set, a choice of policies, or a file of results that cannot be used."""

    title = "The benchmark cannot run"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One reply: who drafted, how fast, and what was counted."""

    policy: str
    """Name of a policy, or `plain`."""
    pair: int
    group: int
    """Runs of one pair and group ran next to each other."""
    seed: int
    decode_tps: float
    """Tokens a second after the prefill."""
    n_tokens: int
    finish_reason: str
    n_rounds: int
    n_verified: int
    n_accepted: int
    n_emitted: int
    parts_at: int | None = None
    """Index of the first token that differs from the plain run beside it, None where none does; of
    a plain run, from the first plain run of its pair."""
    parts_as: str = ""
    """The text from there on, shortened; empty where it does not part."""
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Verified and accepted tokens of each predictor."""
    by_position: tuple[tuple[int, int], ...] = ()
    """Examined and accepted tokens at the first position of the drafts, the second and so on."""
    last_reason: str = ""
    """The last reason that the rule of the length gave."""

    @property
    def is_plain(self) -> bool:
        return self.policy == PLAIN


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What rounds of one size took over a prompt, the target's batch and the choice together."""

    n_rows: int
    n_rounds: int
    median_s: float


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """All runs of one prompt at one temperature, or why there are none."""

    set_name: str
    prompt: str
    temperature: float
    n_prompt: int = 0
    """Tokens of the prompt."""
    is_loop: bool = False
    """Whether the plain reply ends in repeating itself."""
    text: str = ""
    """The first plain reply."""
    runs: tuple[BenchRun, ...] = ()
    batches: tuple[BatchCost, ...] = ()
    notes: tuple[str, ...] = ()
    """What the engine reported, such as a predictor that failed."""
    failure: str | None = None
    """Why the prompt has no runs, None where it has them."""

    @property
    def key(self) -> tuple[str, str, float]:
        """What identifies the prompt when a benchmark is resumed."""
        return self.set_name, self.prompt, self.temperature


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """Where it was measured."""

    system: str
    processor: str
    n_cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    llama_cpp: str
    """Version of the binding and what its build was made for."""
    kvchat: str
    python: str


@dataclass(frozen=True, slots=True)
class BenchSubject:
    """What was measured."""

    model: str
    """File name of the model."""
    model_bytes: int
    file_type: str
    n_vocab: int
    n_ctx: int
    n_threads: int | None
    draft: str | None
    draft_bytes: int | None
    policies: tuple[str, ...]
    n_pairs: int
    n_tokens: int
    """Maximum tokens of a reply."""
    seed: int
    verification: str


@dataclass(frozen=True, slots=True)
class Results:
    """A benchmark as far as it has come."""

    machine: BenchMachine
    subject: BenchSubject
    started: str
    """Date and time in ISO 8601, with the offset."""
    prompts: tuple[PromptRecord, ...] = ()
    elapsed_s: float = 0.0
    """Time of all prompts so far, those of earlier runs included."""
    schema: int = SCHEMA


def this_machine() -> BenchMachine:
    """The facts without which a number cannot be compared with another machine's."""
    _, build = check_build()
    described = "unknown" if build is None else f"{build.version} ({build.features})"
    return BenchMachine(
        system=f"{platform.system()} {platform.release()}",
        processor=this_processor().name,
        n_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(device.name for device in find_gpus()),
        llama_cpp=f"llama-cpp-python {described}",
        kvchat=__version__,
        python=platform.python_version(),
    )


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote.

    Raises:
        BenchError: the file cannot be read, is not of a benchmark, or of another version.
    """
    try:
        text = read_text(path, limit=RECORDS_BYTES)
        return read_versioned(text, Results, SCHEMA, key="schema")
    except (OSError, ValueError) as error:
        raise BenchError(
            f"{path} cannot be read as benchmark results ({error}): measure again with another file"
        ) from error


def write_results(path: Path, results: Results) -> None:
    """Replace the file whole, so that a crash leaves the last complete one.

    Raises:
        BenchError: the file cannot be written.
    """
    text = json.dumps(dataclasses.asdict(results), ensure_ascii=False, indent=1)
    write_text(path, f"{text}\n")


def write_text(path: Path, text: str) -> None:
    """Write a report's file.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        write_atomically(path, text)
    except SettingsError as error:
        raise BenchError(str(error)) from error


def check_same_subject(old: BenchSubject, new: BenchSubject) -> None:
    """Make sure that new runs can be compared with those of a file.

    Raises:
        BenchError: something else would be measured; every difference is named.
    """
    differences = [
        f"{field.name} was {before!r} and is {now!r}"
        for field in dataclasses.fields(BenchSubject)
        for before, now in [(getattr(old, field.name), getattr(new, field.name))]
        if before != now
    ]
    if differences:
        raise BenchError(
            f"the results to resume belong to another measurement ({'; '.join(differences)}): "
            "use the same options, or a new file"
        )
