"""Gives hostile inputs to every reader, and writes what they did as a table.

    ../.venv/bin/python hostile_inputs.py [--inputs 210000] [--seed 1] [--page results/readers.md]

It fails if anything but an error for a person is raised, if one input takes more than 2 s of the
processor or 200 MiB of memory, or if a control character passes the door to the terminal. Inputs
that do are written to the current folder.
"""

import argparse
import signal
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.fuzzed_headers import Case
from tests.support.hostile_readers import READERS
from tests.support.measured_reader import LIMIT_BYTES, LIMIT_S, Outcome, measured

GIVEN_UP_S = 20
START, END = "<!-- table -->\n", "<!-- end of the table -->\n"
HEADER = (
    "| reader | inputs | tracebacks | over 2 s | over 200 MiB | control characters | slowest (ms) "
    "| most memory (MiB) |\n|---|--:|--:|--:|--:|--:|--:|--:|\n"
)


@dataclass
class Row:
    """What all inputs did to one reader."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    most_bytes: int = 0

    def add(self, outcome: Outcome) -> list[str]:
        """Count one input; give what was wrong with it."""
        faults = faults_of(outcome)
        self.counts.update(["inputs", *faults])
        self.slowest_s = max(self.slowest_s, outcome.elapsed_s)
        self.most_bytes = max(self.most_bytes, outcome.grown_bytes)
        return faults

    def line(self) -> str:
        """The row of the table."""
        counts = " | ".join(f"{self.counts[kind]:,}" for kind in ("inputs", *FAULTS))
        return (
            f"| {self.name} | {counts} | {self.slowest_s * 1e3:,.0f} "
            f"| {self.most_bytes / 2**20:,.0f} |\n"
        )


FAULTS = ("traceback", "slow", "large", "control")


def main() -> None:
    options = _options()
    found = [n for n, each in enumerate(READERS) if options.only in each.name]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(partial(_row, options=options), found))
    table = HEADER + "".join(row.line() for row in [*rows, _sum(rows)])
    if options.page is not None:
        page = options.page.read_text(encoding="utf-8")
        before, after = page.split(START)[0], page.split(END)[1]
        options.page.write_text(f"{before}{START}{table}{END}{after}", encoding="utf-8")
    if any(row.counts[kind] for row in rows for kind in FAULTS):
        sys.exit("some inputs hurt a reader")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=210_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="readers whose name holds this")
    parser.add_argument("--page", type=Path, help="page whose table is replaced")
    return parser.parse_args()


def _row(number_of_reader: int, options: argparse.Namespace) -> Row:
    warnings.simplefilter("ignore")
    reader = READERS[number_of_reader]
    n_inputs = round(options.inputs / sum(each.share for each in READERS) * reader.share)
    row = Row(reader.name)
    signal.signal(signal.SIGALRM, _give_up)
    for number, given in enumerate(reader.inputs(n_inputs, options.seed)):
        signal.alarm(GIVEN_UP_S)
        outcome = measured(reader, given)
        signal.alarm(0)
        faults = row.add(outcome)
        if faults and row.counts["written"] < 20:
            row.counts["written"] += 1
            data = given.data if isinstance(given, Case) else given
            assert isinstance(data, bytes)
            name = f"hurts-{reader.name.split(':')[-1].split(',')[0].replace(' ', '-')}-{number}"
            Path(name).write_bytes(data)
            print(f"{name}: {', '.join(faults)}, {outcome.elapsed_s:.1f} s", flush=True)
            print(outcome.failure or f"{outcome.grown_bytes >> 20} MiB", flush=True)
    print(row.line().rstrip(), flush=True)
    return row


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"it took longer than {GIVEN_UP_S} s")


def faults_of(outcome: Outcome) -> list[str]:
    """What was wrong with an input."""
    are = (
        outcome.failure is not None,
        outcome.elapsed_s > LIMIT_S,
        outcome.grown_bytes > LIMIT_BYTES,
        outcome.n_controls > 0,
    )
    return [name for name, is_so in zip(FAULTS, are, strict=True) if is_so]


def _sum(rows: list[Row]) -> Row:
    whole = Row("**all**", slowest_s=max(row.slowest_s for row in rows))
    whole.most_bytes = max(row.most_bytes for row in rows)
    for row in rows:
        whole.counts.update(row.counts)
    return whole


if __name__ == "__main__":
    main()
