"""What `kvchat tune` gains over the usual settings, and whether a second run agrees.

    ../.venv/bin/python tuning.py MODEL [MODEL ...] [--minutes 3] [--page ../docs/tune.md]

Each model is tuned twice, both times as if kvchat had never met it; a third call behind the second
has nothing to do. With `--page` the table is written between the marks of that page.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.memory.hardware import this_processor
from engine.tuning.gain import PairedGain, agree

BEGIN, END = "<!-- measured by benchmarks/tuning.py -->", "<!-- end of what was measured -->"
MAIN = "from app.cli.main import main; main()"
NOTHING = "nothing"
TITLES = (
    "model", "run", "two equals differ by", "taken", "all together (95 %)",
    "tokens/s in a short chat", "in a long one", "of a prompt", "drafts", "s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the command."""

    found: dict[str, object]
    """What `--json` gave."""
    elapsed_s: float

    @property
    def total(self) -> PairedGain | None:
        total = self.found["total"]
        return PairedGain(**total) if isinstance(total, dict) else None

    @property
    def taken(self) -> tuple[str, ...]:
        compared = self.found["compared"]
        assert isinstance(compared, list)
        return tuple(
            f"{each['setting']} {each['label']}" for each in compared if each["verdict"] == "taken"
        )


def main() -> None:
    options = parsed()
    lines = [*heading(options.minutes)]
    for model in options.models:
        lines += measured(model, options.minutes)
    text = "\n".join(lines)
    print(text)
    if options.page is not None:
        write(options.page, text)


def measured(model: Path, minutes: float) -> Iterator[str]:
    """The rows of a model, and whether its runs agree."""
    runs = []
    for number in (1, 2):
        with tempfile.TemporaryDirectory() as home:
            runs.append(tune(model, minutes, Path(home)))
            done = tune(model, minutes, Path(home)) if number == 2 else None
        print(f"{model.name}, run {number}: {runs[-1].elapsed_s:.0f} s", file=sys.stderr)
    for number, run in enumerate(runs, 1):
        yield row(model, number, run)
    verdict = "agree" if agreed(*runs) else "**do not agree**"
    assert done is not None
    state = "found everything done" if done.found["was_done"] else "**measured again**"
    yield f"| | | | the two {verdict}; a third call {state} in {done.elapsed_s:.1f} s | | | | | | |"


def tune(model: Path, minutes: float, home: Path) -> Run:
    folders = {
        f"XDG_{name}_HOME": str(home / name) for name in ("CONFIG", "DATA", "STATE", "CACHE")
    }
    command = [sys.executable, "-c", MAIN, "tune", str(model.resolve()), "--json"]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--minutes", f"{minutes:g}"],
        env={**os.environ, "HOME": str(home), **folders},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"kvchat tune {model} ended with {done.returncode}")
    return Run(json.loads(done.stdout), time.perf_counter() - started)


def agreed(one: Run, other: Run) -> bool:
    """Whether two runs took the same settings, and their gains can both be right."""
    if one.total is None or other.total is None:
        return one.total is other.total
    return one.taken == other.taken and agree(one.total, other.total)


def heading(minutes: float) -> Iterator[str]:
    memory = psutil.virtual_memory().total / 2**30
    yield (
        f"{this_processor().name}, {psutil.cpu_count(logical=False)} cores, {memory:.0f} GiB, "
        f"{minutes:g} minutes a run, `python benchmarks/tuning.py`:"
    )
    yield ""
    yield f"| {' | '.join(TITLES)} |"
    yield f"|{'---|' * len(TITLES)}"


def row(model: Path, number: int, run: Run) -> str:
    noise, total, drafts = run.found["noise"], run.total, run.found["drafts"]
    assert isinstance(noise, dict)
    gain = PairedGain(**noise)
    together = "-" if total is None else f"{total.median:.3f} ({total.low:.2f} to {total.high:.2f})"
    cells = (
        model.stem, str(number), f"{100 * gain.noise:.1f} %", ", ".join(run.taken) or NOTHING,
        together, *(rates(run, name) for name in ("near", "deep", "prompt")),
        drafts["recommended"] if isinstance(drafts, dict) else "-", f"{run.elapsed_s:.0f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def rates(run: Run, name: str) -> str:
    """Tokens a second before and after."""
    before, after = run.found["start_tps"], run.found["chosen_tps"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
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
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--page", type=Path, help="write the table between this page's marks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
