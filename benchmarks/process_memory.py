"""What a plan says that the engine's process holds, beside what the process holds.

    ../.venv/bin/python process_memory.py MODEL… [--contexts 512 1024 2048] [--json FILE]

Each model is loaded at each context by a worker of its own, whose context is then filled: a buffer
takes memory when it is first written to. Counted apart, from `/proc/PID/smaps` of the worker: pages
of the model's file, and memory of the process itself (`Anonymous`). What other files map is the
code of Python and of its libraries, which all processes that use them share: it is printed, and
the plan's overhead has it as a constant.
"""

import argparse
import json
import re
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from common import ask, load

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.memory.estimate import estimate
from engine.memory.hardware import usable_devices
from engine.memory.terms import LIBRARY_BYTES, TermKind
from engine.memory.units import MIB
from engine.model.architecture import read_model
from engine.requests import GenerationRequest, Message

WORD = "ship "
REPLY = 8
LEFT = 64
"""Tokens of a context that the prompt and its template leave for the reply."""
MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)


@dataclass(frozen=True, slots=True)
class Row:
    """One model at one context, in bytes."""

    model: str
    n_ctx: int
    planned_mapped: int
    mapped: int
    """Of the model's file."""
    planned_own: int
    own: int
    """Memory of the process itself."""
    overhead: int
    """Its part of the plan: the process beside llama.cpp's buffers."""
    libraries: int
    """Pages of other files."""
    reclaimable: int

    @property
    def off(self) -> tuple[float, float, float]:
        """How far the plan is from the process: mapped, own memory, both."""
        planned, found = self.planned_mapped + self.planned_own, self.mapped + self.own
        return (
            self.planned_mapped / self.mapped - 1,
            self.planned_own / self.own - 1,
            planned / found - 1,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for model in options.models:
        for n_ctx in options.contexts:
            rows.append(measured(model, n_ctx))
            print(line(rows[-1]), flush=True)
    print(summary(rows))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def measured(path: Path, n_ctx: int) -> Row:
    """The plan of a model and what a worker holds that has filled its context."""
    now = Configuration(path.resolve(), n_ctx, speculation=PLAIN)
    [cpu] = (each for each in estimate(read_model(path), now, usable_devices()).devices)
    engine = load(path, n_ctx=n_ctx, speculation=PLAIN)
    text = WORD * (n_ctx - LEFT)
    ask(engine, GenerationRequest((Message("user", text),), max_tokens=REPLY))
    found = held(path)
    engine.client.close()
    in_place = cpu.mapped_bytes - cpu.reclaimable_bytes
    return Row(
        model=path.stem,
        n_ctx=n_ctx,
        planned_mapped=cpu.mapped_bytes,
        mapped=found["model"],
        planned_own=cpu.total_bytes - in_place - LIBRARY_BYTES,
        own=found["own"],
        overhead=cpu.term(TermKind.OVERHEAD).nbytes - LIBRARY_BYTES,
        libraries=found["libraries"],
        reclaimable=cpu.reclaimable_bytes,
    )


def held(model: Path) -> Counter[str]:
    """Resident bytes of this process's children, by what they are pages of."""
    found: Counter[str] = Counter()
    for child in psutil.Process().children(recursive=True):
        kind = ""
        for text in Path(f"/proc/{child.pid}/smaps").read_text("utf-8", "replace").splitlines():
            if MAPPING.match(text):
                kind = "model" if str(model.resolve()) in text else "libraries"
            elif text.startswith(("Rss:", "Anonymous:")):
                name, number = text.split()[:2]
                nbytes = int(number) * 1024
                found["own" if name == "Anonymous:" else kind] += nbytes
                found[kind] -= nbytes if name == "Anonymous:" else 0
    return found


def line(row: Row) -> str:
    """A row of the page's table."""
    sizes = (row.planned_mapped, row.mapped, row.planned_own, row.own)
    cells = [row.model, f"{row.n_ctx:,}", *(f"{nbytes / MIB:,.1f}" for nbytes in sizes)]
    cells += [f"{share:+.1%}" for share in row.off]
    cells += [f"{nbytes / MIB:,.1f}" for nbytes in (row.reclaimable, row.overhead, row.libraries)]
    return f"| {' | '.join(cells)} |"


def summary(rows: list[Row]) -> str:
    """The largest and the median difference of each column."""
    columns = list(zip(*(row.off for row in rows), strict=True))
    texts = (
        f"{name}: median {statistics.median(map(abs, values)):.1%}, worst "
        f"{max(values, key=abs):+.1%}"
        for name, values in zip(("mapped", "own", "both"), columns, strict=True)
    )
    return "; ".join(texts)


if __name__ == "__main__":
    main()
