"""A plan as lines."""

from dataclasses import replace
from pathlib import Path

import pytest

import app
from app.render.lines import plain, width_of
from app.render.plan import (
    device_lines,
    heading_line,
    mark,
    memory_bar,
    n_columns,
    plan_lines,
    refusal_lines,
    table_section,
)
from app.render.plan_changes import option_help, option_line
from engine.configuration import Configuration
from engine.memory.hardware import Device
from engine.memory.terms import DeviceEstimate, Source, Term, TermKind
from engine.memory.units import GIB
from engine.planning.changes import OptionSteps
from engine.planning.machine import PlannedMachine
from engine.planning.options import OPTIONS
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.table import cost_table
from tests.engine.planning.models import DENSE, planned


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


def test_every_kind_of_term_has_a_sign_a_colour_and_a_row() -> None:
    terms = {kind: Term(GIB, Source.EXACT) for kind in TermKind}
    device = DeviceEstimate(Device("GPU 0", "gpu", 24 * GIB, 24 * GIB), terms)
    bar = memory_bar(device, 96, "block")
    assert len({run.text[0] for run in bar}) == len({run.style for run in bar}) == len(terms) + 1
    assert len({mark(kind, "ascii").text for kind in TermKind}) == len(TermKind)
    inks = (Path(app.__file__).parent / "styles/inks.tcss").read_text()
    assert all(f".ink--{run.style} " in inks for run in bar)
    found, _ = planned(DENSE, 12)
    text = "\n".join(map(plain, device_lines(found, device, 60, "block")))
    for kind in TermKind:
        assert ("KV cache" if kind is TermKind.KV else str(kind)) in text


def test_an_option_line_has_its_width_and_a_disabled_option_gives_the_reason() -> None:
    found, planner = planned(DENSE, 12)
    facts = planner.facts_of(found.setup)
    for option in OPTIONS:
        assert width_of(option_line(option, found.setup, facts, 30)) == 30
        lines = option_help(option, found.setup, facts, OptionSteps(), "", 30)
        reason = option.disabled_reason(found.setup, facts)
        assert bool(reason) == ("not used" in " ".join(map(plain, lines)))
        assert max(map(width_of, lines)) <= 30
