"""A plan on standard output."""

import shutil
import sys

from app.cli.console import Part, say
from app.render.charts import GraphSymbols
from app.render.lines import Line, Run
from app.render.plan import (
    command_lines,
    heading_line,
    n_columns,
    plan_lines,
    table_section,
    warning_section,
)
from app.render.plan_changes import effect_lines
from engine.planning.planner import Plan, Planner
from engine.planning.table import cost_table
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
PLAIN = str.maketrans({"✓": "+", "✗": "x", "·": "-", "–": "-", "…": ".", "−": "-", "±": "+"})  # noqa: RUF001
"""Letters for signs that a terminal without Unicode lacks."""
BOLD = {"strong", "heading-minor", "bad"}


def print_plan(plan: Plan, planner: Planner) -> None:
    """Print a plan, with colours where a terminal shows them."""
    width = min(max(_columns(), MIN_WIDTH), MAX_WIDTH)
    table = cost_table(plan, planner.estimator(plan.setup), n_columns(width))
    symbols = symbols_for(sys.stdout.encoding)
    lines = [heading_line(plan, width), *plan_lines(plan, width, symbols)]
    effects = what_ifs(plan, planner, planner.facts_of(plan.setup))
    for section in (
        table_section(table, width),
        effect_lines(effects, width),
        warning_section(plan, width),
        command_lines(plan, width),
    ):
        lines += [(), *section] if section else []
    for line in lines:
        say(*(_part(run, is_plain=symbols == "ascii") for run in _trimmed(line)))


def symbols_for(encoding: str | None) -> GraphSymbols:
    """Give the characters that an encoding has: letters where it knows no blocks."""
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


def _columns() -> int:
    # What goes into a pipe has the same width wherever it came from.
    is_terminal = sys.stdout.isatty()
    return shutil.get_terminal_size((USUAL_WIDTH, 24)).columns if is_terminal else USUAL_WIDTH
