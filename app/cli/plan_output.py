"""Plans and found configurations on standard output, by the same lines as on the screen."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from app.cli.console import Part, say, tell
from app.format import nbytes
from app.render.charts import GraphSymbols
from app.render.lines import EMPTY, Line, Run
from app.render.plan import (
    command_lines,
    heading_line,
    n_columns,
    plan_lines,
    table_section,
    warning_lines,
    warning_section,
)
from app.render.plan_changes import effect_lines
from app.render.plan_lists import configuration_lines, goal_lines, machine_lines
from engine.memory.server_log import Compared, compare_log, read_server_log, settings_that_differ
from engine.planning.comparison import cost_table
from engine.planning.fit import FitResult
from engine.planning.measured import holders
from engine.planning.planner import Plan, Planner
from engine.planning.what_if import what_ifs

MIN_WIDTH, USUAL_WIDTH, MAX_WIDTH = 60, 100, 110

COLORS = {
    "muted": "bright_black", "accent": "yellow", "good": "green", "warn": "yellow", "bad": "red",
    "mem-weights": "blue", "mem-kv": "yellow", "mem-state": "magenta", "mem-compute": "green",
    "mem-overhead": "white", "mem-draft": "cyan",
    "mem-projector": "bright_blue", "mem-adapters": "bright_magenta",
    "mem-shared": "white",
    "mem-free": "bright_black", "mem-over": "red",
}  # fmt: skip
"""The terminal's own colours: a command knows no theme."""
PLAIN = str.maketrans("✓✗·–…−±›≤", "+x--.-+><")  # noqa: RUF001  what a plan is written with
"""Letters for signs that a terminal without Unicode lacks."""
BOLD = {"strong", "heading-minor", "bad"}


def print_plan(plan: Plan, planner: Planner) -> None:
    """Print a plan, with colours where a terminal shows them."""
    width, symbols = _width(), symbols_for(sys.stdout.encoding)
    table = cost_table(plan, planner.estimator(plan.setup), n_columns(width))
    effects = what_ifs(plan, planner, planner.facts_of(plan.setup))
    _print_sections(
        [heading_line(plan, width), *plan_lines(plan, width, symbols)],
        table_section(table, width),
        effect_lines(effects, width),
        warning_section(plan, width),
        command_lines(plan, width),
    )


def print_fit(fit: FitResult) -> None:
    """Print a found configuration, why it was found, its devices, and how to start it."""
    width, symbols, plan = _width(), symbols_for(sys.stdout.encoding), fit.plan
    programs = holders() if plan.setup.machine.has_own_gpus else []
    _print_sections(
        machine_lines(fit, width),
        [heading_line(plan, width)],
        configuration_lines(fit.found.configuration, plan.model, width),
        goal_lines(fit.found, width),
        plan_lines(plan, width, symbols),
        warning_section(plan, width),
        [line for text in programs for line in warning_lines(text, width)],
        command_lines(plan, width),
    )


def _print_sections(*sections: Sequence[Line]) -> None:
    """Print lines, an empty one between two sections that hold something."""
    is_plain = symbols_for(sys.stdout.encoding) == "ascii"
    lines = [line for section in sections if section for line in (EMPTY, *section)]
    for line in lines[1:]:
        say(*(_part(run, is_plain=is_plain) for run in _trimmed(line)))


def symbols_for(encoding: str | None) -> GraphSymbols:
    """The characters that an encoding has: letters where it knows no blocks."""
    try:
        "█▓▒▚░·✓✗".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ascii"
    return "block"


def _trimmed(line: Line) -> Line:
    """The line without the spaces at its end, which styles would keep."""
    end = line[-1].text.rstrip() if line else ""
    return (*line[:-1], Run(end, line[-1].style)) if line else line


def _part(run: Run, *, is_plain: bool) -> Part:
    names = run.style.split()
    color = next((COLORS[name] for name in names if name in COLORS), "")
    style = f"{color} bold" if any(name in BOLD for name in names) else color
    text = run.text
    if is_plain:
        text = text.translate(PLAIN).encode("ascii", "replace").decode("ascii")
    return text, style


def _width() -> int:
    # What goes into a pipe has the same width wherever it came from.
    is_terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size((USUAL_WIDTH, 24)).columns if is_terminal else USUAL_WIDTH
    return min(max(columns, MIN_WIDTH), MAX_WIDTH)


SHARE_SHOWN = 0.01
"""Differences below this share of the measured bytes are not coloured."""


def print_comparison(plan: Plan, path: Path) -> None:
    """Print each term of each device, planned and measured.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
    """
    log = read_server_log(path)
    rows = compare_log(plan.estimate, log)
    for note in settings_that_differ(plan.estimate, log):
        say((f"{note}: the numbers are of two configurations", "yellow"))
    width = max((len(row.device) for row in rows), default=6)
    say(f"{'':{width}}  {'':12} {'planned':>12} {'measured':>12} {'planned too much':>17}")
    for row in rows:
        say(*_line(row, width))
    say(
        *_line(
            Compared(
                "all",
                "total",
                sum(row.planned_bytes for row in rows),
                sum(row.measured_bytes for row in rows),
            ),
            width,
        )
    )
    reclaimable = sum(device.reclaimable_bytes for device in plan.estimate.devices)
    if reclaimable and any(buffer.is_mapped for buffer in log.buffers):
        say(
            f"Left out on both sides: {nbytes(reclaimable)} of mapped file whose weights were "
            "copied, which the log counts and the system may take back."
        )


def comparison_json(plan: Plan, path: Path) -> list[dict[str, str | int]]:
    """Each term of each device, planned and measured, as plain values.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
    """
    return [asdict(row) for row in compare_log(plan.estimate, read_server_log(path))]


def learn(plan: Plan, path: Path) -> None:
    """Keep what a log says about the cards, and say on standard error what it was.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
        CalibrationError: it says nothing about a card, or the file cannot be kept.
    """
    from app.paths import calibration_path
    from engine.planning.measured import learn_from_log

    for name, found in learn_from_log(plan, path, calibration_path()).items():
        factor = f", graphs times {found.compute_factor:g}" if found.compute_factor else ""
        tell(f"{name}: {nbytes(found.overhead_bytes)} beyond buffers{factor}")
    tell(f"kept in {calibration_path()}")


def _line(row: Compared, width: int) -> tuple[Part, ...]:
    share = row.difference_bytes / row.measured_bytes if row.measured_bytes else 1.0
    text = f"{share:+.1%}" if row.measured_bytes else "not in the log"
    color = "" if abs(share) < SHARE_SHOWN else "yellow" if share > 0 else "red"
    numbers = f"{nbytes(row.planned_bytes):>12} {nbytes(row.measured_bytes):>12}"
    return f"{row.device:{width}}  {row.kind:12} {numbers} ", (f"{text:>17}", color)
