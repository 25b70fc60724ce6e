"""What one hostile input does to a reader: errors, time, memory, what would reach a terminal."""

import io
import re
import resource
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from app.sanitize import Door
from engine.errors import EngineError

LIMIT_S = 2.0
LIMIT_BYTES = 200 << 20
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Reader:
    """A reader: `read` gives the texts that a person would be shown."""

    name: str
    inputs: Callable[[int, int], Iterator[object]]
    """So many hostile inputs, the same ones for the same seed."""
    read: Callable[..., Iterable[str]]
    share: float = 1.0
    """Of the inputs of a usual reader: those that take long get fewer."""


@dataclass(frozen=True)
class Outcome:
    """What one input did to a reader."""

    failure: str | None
    """Traceback of what is no error for a person."""
    elapsed_s: float
    """Of the processor: on a busy machine the clock measures the others too."""
    grown_bytes: int
    n_controls: int
    """Characters that would move the cursor of a terminal."""


def measured(reader: Reader, given: object) -> Outcome:
    """Read one input."""
    failure, texts = None, [""]
    before = _reset_peak()
    started = time.process_time()
    try:
        texts = list(reader.read(given))
    except (EngineError, click.ClickException) as error:
        texts = [str(error)]
    except Exception:  # noqa: BLE001  which errors there are is what is asked
        failure = traceback.format_exc()
    elapsed_s = time.process_time() - started
    return Outcome(failure, elapsed_s, _peak_bytes() - before, _n_controls(texts))


def _n_controls(texts: Iterable[str]) -> int:
    terminal = io.StringIO()
    Door(terminal).writelines(texts)
    return len(CONTROLS.findall(terminal.getvalue()))


def _reset_peak() -> int:
    """Let the peak of this process begin again, and give what it holds now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s*(\d+)", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
