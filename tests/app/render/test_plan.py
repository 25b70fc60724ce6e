"""A plan as lines."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.render.lines import plain, width_of
from app.render.plan import (
    heading_line,
    memory_bar,
    n_columns,
    plan_lines,
    refusal_lines,
    table_section,
)
from engine.configuration import Configuration
from engine.memory.units import GIB
from engine.planning.comparison import cost_table
from engine.planning.machine import PlannedMachine
from engine.planning.planner import Plan, Planner, Setup


@pytest.fixture
def setup(starter_path: Path) -> Setup:
    return Setup(Configuration(starter_path, 4096), machine=PlannedMachine((2 * GIB,)))


@pytest.fixture
def plan(setup: Setup) -> Plan:
    return Planner().plan(setup)


@pytest.mark.parametrize("width", [30, 42, 76, 140])
def test_no_line_is_wider_than_asked(plan: Plan, width: int) -> None:
    planner = Planner()
    table = cost_table(plan, planner.estimator(plan.setup), n_columns(width))
    lines = [*plan_lines(plan, width, "block"), *table_section(table, width)]
    assert max(map(width_of, lines)) <= width


def test_the_bar_is_as_wide_as_asked_and_shows_every_part_by_shape(plan: Plan) -> None:
    for device in plan.used_devices:
        for width in (10, 41, 120):
            bar = memory_bar(device, width, "block")
            assert width_of(bar) == width
        marks = {run.text[0] for run in bar}
        present = {kind for kind, term in device.terms.items() if term.nbytes}
        assert len(marks) == len(present) + 1
        assert len({run.style for run in bar}) == len(marks)


def test_parts_are_in_proportion(plan: Plan) -> None:
    device = plan.used_devices[0]
    bar = memory_bar(device, 1000, "block")
    [free] = [run for run in bar if run.style == "mem-free"]
    assert len(free.text) == pytest.approx(
        1000 * device.left_bytes / device.device.free_bytes, abs=5
    )


def test_names_from_a_file_do_no_harm(plan: Plan) -> None:
    lines = refusal_lines("No", "arch \x1b[31m\u202e is unknown", 60)
    text = "\n".join(map(plain, lines))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_heading_is_one_line_whatever_the_file_is_called(plan: Plan) -> None:
    file = replace(plan.model.file, path=Path("two\nlines.gguf"))
    named = replace(plan, model=replace(plan.model, file=file))
    assert plain(heading_line(named, 80)).startswith("two lines  llama")
