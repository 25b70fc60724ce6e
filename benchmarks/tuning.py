"""How long `kvchat tune` takes, what it decides, and whether a second run decides the same.

    ../.venv/bin/python tuning.py MODEL [MODEL ...] [--minutes 1 3] [--page results/tune.md]

Each model is tuned for each time, idle and beside one busy process, twice each, every time as if
kvchat had never met it. With `--page` the table is written between the marks of that page.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.memory.hardware import this_processor

BEGIN, END = "<!-- measured by benchmarks/tuning.py -->", "<!-- end of what was measured -->"
MAIN = "from app.cli.main import main; main()"
BUSY = "while True: pass"
GRACE_S = 10.0
"""How long after its time a run may end."""
TITLES = (
    "model", "minutes", "beside", "run", "took, s", "tokens/s written", "read", "verdict (blocks)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the command."""

    found: dict[str, object]
    """What `--json` gave; empty where it failed."""
    elapsed_s: float

    @property
    def compared(self) -> list[dict[str, object]]:
        compared = self.found.get("compared", [])
        assert isinstance(compared, list)
        return compared

    @property
    def chosen(self) -> tuple[str, ...]:
        """What the preset has."""
        return tuple(named(each) for each in self.compared if each["verdict"] == "chosen")

    @property
    def verdicts(self) -> dict[str, object]:
        """By setting, of those that were decided."""
        decided = (each for each in self.compared if each["verdict"] != "undecided")
        return {named(each): each["verdict"] for each in decided}


def named(result: dict[str, object]) -> str:
    return f"{result['setting']} {result['label']}"


def main() -> None:
    options = parsed()
    lines = [*heading()]
    for model in options.models:
        for minutes in options.minutes:
            for n_busy in options.busy:
                lines += measured(model, minutes, n_busy)
    text = "\n".join(lines)
    print(text)
    if options.page is not None:
        write(options.page, text)


def measured(model: Path, minutes: float, n_busy: int) -> Iterator[str]:
    """The rows of a model, and whether its runs agree."""
    runs = []
    with busy(n_busy):
        for number in (1, 2):
            runs.append(tune(model, minutes))
            line = row(model, minutes, n_busy, number, runs[-1])
            print(line, file=sys.stderr)
            yield line
    late = [run for run in runs if run.elapsed_s > 60 * minutes + GRACE_S]
    in_time = "**too late**" if late else "in time"
    verdict = "the same" if agreed(*runs) else "**others**"
    yield f"| | | | | {in_time} | | | verdicts of the two: {verdict} |"


def agreed(one: Run, other: Run) -> bool:
    """Whether two runs chose the same settings and reached equal verdicts."""
    both = one.verdicts.keys() & other.verdicts.keys()
    is_same = all(one.verdicts[name] == other.verdicts[name] for name in both)
    return bool(one.found and other.found) and one.chosen == other.chosen and is_same


def tune(model: Path, minutes: float) -> Run:
    with tempfile.TemporaryDirectory() as home:
        names = ("CONFIG", "DATA", "STATE", "CACHE")
        folders = {f"XDG_{name}_HOME": str(Path(home) / name.lower()) for name in names}
        command = [sys.executable, "-c", MAIN, "tune", str(model.resolve()), "--json"]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "--minutes", f"{minutes:g}"],
            env={**os.environ, "HOME": home, **folders},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        elapsed_s = time.perf_counter() - started
    return Run(json.loads(done.stdout) if done.returncode == 0 else {}, elapsed_s)


@contextmanager
def busy(n: int) -> Iterator[None]:
    """So many processes that compute."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def heading() -> Iterator[str]:
    memory = psutil.virtual_memory().total / 2**30
    yield (
        f"{this_processor().name}, {psutil.cpu_count(logical=False)} cores, {memory:.0f} GiB, "
        "`python benchmarks/tuning.py`:"
    )
    yield ""
    yield f"| {' | '.join(TITLES)} |"
    yield f"|{'---|' * len(TITLES)}"


def row(model: Path, minutes: float, n_busy: int, number: int, run: Run) -> str:
    verdicts = (f"{named(each)}: {each['verdict']} ({blocks(each)})" for each in run.compared)
    cells = (
        model.stem, f"{minutes:g}", f"{n_busy} busy" if n_busy else "nothing", str(number),
        f"{run.elapsed_s:.0f}", rates(run, "near"), rates(run, "prompt"),
        "; ".join(verdicts) or "**failed**",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def blocks(result: dict[str, object]) -> str:
    gain = result["gain"]
    return f"{gain['n_blocks']}, {gain['median']:.2f}" if isinstance(gain, dict) else "0"


def rates(run: Run, name: str) -> str:
    """Tokens a second before and after."""
    before, after = run.found.get("start_tps"), run.found.get("chosen_tps")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return "-"
    return f"{before[name]:.1f} → {after[name]:.1f}"


def write(page: Path, text: str) -> None:
    old = page.read_text(encoding="utf-8")
    head, found, rest = old.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not (found and ended):
        sys.exit(f"{page} has no place for the table: it lacks {BEGIN} or {END}")
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="processes beside it")
    parser.add_argument("--page", type=Path, help="write the table between this page's marks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
