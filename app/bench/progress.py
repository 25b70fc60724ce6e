"""Tells how far a benchmark is: a bar on a terminal, a line for each prompt anywhere."""

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from app import format as fmt
from app.bench.job import Unit
from app.bench.numbers import median
from app.bench.policies import parse_policy
from app.bench.records import PromptRecord
from app.bench.summary import exclusion, pair_ratios


def time_left(elapsed_s: float, n_done: int, n_total: int) -> float | None:
    """Give the seconds that the rest takes at the pace so far, None before there is a pace."""
    return elapsed_s / n_done * (n_total - n_done) if n_done else None


def policy_order(name: str) -> tuple[bool, str, int]:
    """Give what sorts policies by name, `auto` first and short drafts before long ones."""
    policy = parse_policy(name)
    return not policy.is_auto, f"{policy.predictor}:{policy.controller}", policy.n_draft or 0


def prompt_line(record: PromptRecord) -> str:
    """Give a prompt's result in one line: its ratio under every policy, or why there is none."""
    where = f"{record.set_name} at {record.temperature:g}  {record.prompt}"
    if record.failure is not None:
        return f"{where}: failed: {record.failure}"
    names = sorted({run.policy for run in record.runs if not run.is_plain}, key=policy_order)
    ratios = " ".join(_ratio(record, name) for name in names)
    reason = exclusion(record)
    return f"{where}: {ratios}" + (f" ({reason}, not in the means)" if reason else "")


def _ratio(record: PromptRecord, policy: str) -> str:
    has_drafts = any(run.n_verified for run in record.runs if run.policy == policy)
    said = f"{policy} {median(pair_ratios(record, policy)):.2f}"
    return said if has_drafts else f"{said} (no drafts)"


class ConsoleProgress:
    """Draws between runs only: a thread that redraws would take time from the engine."""

    def __init__(self, console: Console, n_runs: int) -> None:
        self._console = console
        self._n_runs = n_runs
        self._n_done = 0
        self._start_s = time.monotonic()
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("warming up", total=n_runs)

    def __enter__(self) -> "ConsoleProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def run_done(self, unit: Unit, policy: str) -> None:
        self._advance(self._n_done + 1, f"{unit.prompt.set_name} {unit.prompt.name} · {policy}")

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        line = f"{prompt_line(record)}{self._left(n_done)}"
        self._console.print(line, markup=False, soft_wrap=True)
        for note in record.notes:
            self._console.print(f"  {note}", markup=False, soft_wrap=True)
        self._advance(n_done, "")

    def _left(self, n_done: int) -> str:
        if self._console.is_terminal:
            return ""
        left_s = time_left(self._elapsed_s(), n_done, self._n_runs)
        return f"  [{fmt.seconds(left_s)} left]"

    def _advance(self, n_done: int, what: str) -> None:
        self._n_done = n_done
        left_s = time_left(self._elapsed_s(), n_done, self._n_runs)
        left = f"about {fmt.seconds(left_s)} left"
        self._bar.update(
            self._task, completed=n_done, description=escape(f"{left}  {what}"), refresh=True
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start_s
