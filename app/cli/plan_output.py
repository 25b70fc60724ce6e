"""Plans and found configurations on standard output, by the lines of the screen."""

import shutil
import sys
from collections.abc import Sequence

from app.cli.printing import output_symbols, print_lines
from app.render.lines import EMPTY, Line
from app.render.plan import (
    command_lines,
    heading_line,
    n_columns,
    plan_lines,
    table_section,
    warning_lines,
    warning_section,
)
from app.render.plan_changes import change_lines
from app.render.plan_lists import configuration_lines, goal_lines
from engine.planning.changes import best_changes, changes
from engine.planning.fit import FitResult
from engine.planning.measured import holders
from engine.planning.planner import Plan, Planner
from engine.planning.table import cost_table

MIN_WIDTH, USUAL_WIDTH, MAX_WIDTH = 60, 100, 110


def print_plan(plan: Plan, planner: Planner) -> None:
    """Print a plan, with colours where a terminal shows them."""
    width, symbols = _width(), output_symbols()
    table = cost_table(plan, planner.estimator(plan.setup), n_columns(width))
    found = best_changes(changes(plan, planner, planner.facts_of(plan.setup)))
    _print_sections(
        [heading_line(plan, width), *plan_lines(plan, width, symbols)],
        table_section(table, width),
        change_lines(found, width),
        warning_section(plan, width),
        command_lines(plan, width),
    )


def print_fit(fit: FitResult) -> None:
    """Print a found configuration, why it was found, its devices, and how to start it."""
    width, symbols, plan = _width(), output_symbols(), fit.plan
    programs = holders() if plan.setup.machine.has_own_gpus else []
    _print_sections(
        [heading_line(plan, width)],
        configuration_lines(fit.found.configuration, plan.model, width),
        goal_lines(fit.found, width),
        plan_lines(plan, width, symbols),
        warning_section(plan, width),
        [line for text in programs for line in warning_lines(text, width)],
        command_lines(plan, width),
    )


def _print_sections(*sections: Sequence[Line]) -> None:
    """Print lines, an empty one between two sections that have some."""
    lines = [line for section in sections if section for line in (EMPTY, *section)]
    print_lines(lines[1:])


def _width() -> int:
    # What goes into a pipe has the same width wherever it came from.
    is_terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size((USUAL_WIDTH, 24)).columns if is_terminal else USUAL_WIDTH
    return min(max(columns, MIN_WIDTH), MAX_WIDTH)
