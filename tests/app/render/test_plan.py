"""A plan as lines."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.render.lines import plain, width_of
from app.render.plan import (
    command_lines,
    heading_line,
    memory_bar,
    n_columns,
    plan_lines,
    refusal_lines,
    table_section,
    verdict_line,
)
from app.render.plan_changes import KnobState, knob_sheet
from app.render.plan_lists import preset_lines
from engine.configuration import Configuration
from engine.events import BufferSize
from engine.memory.bandwidth import Bandwidth
from engine.memory.units import GIB, MIB
from engine.planning.comparison import cost_table
from engine.planning.knobs import KNOBS
from engine.planning.machine import PlannedMachine
from engine.planning.measured import loaded_bytes
from engine.planning.planner import Plan, Planner, Setup
from engine.presets.library import PresetEntry


@pytest.fixture
def setup(starter_path: Path) -> Setup:
    return Setup(Configuration(starter_path, 4096), machine=PlannedMachine((2 * GIB,)))


@pytest.fixture
def plan(setup: Setup) -> Plan:
    return Planner().plan(setup)


def short_of_memory(setup: Setup) -> Plan:
    return Planner().plan(replace(setup, machine=PlannedMachine((300 * MIB,))))


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


def test_a_line_through_the_bar_marks_where_the_memory_ends(setup: Setup) -> None:
    device = short_of_memory(setup).used_devices[0]
    text = plain(memory_bar(device, 100, "block"))
    place = text.index("┃")
    assert place == pytest.approx(100 * device.device.free_bytes / device.total_bytes, abs=1)
    assert "·" not in text
    assert "|" in plain(memory_bar(device, 100, "ascii"))


def test_the_verdict_says_by_how_much(plan: Plan, setup: Setup) -> None:
    assert plain(verdict_line(plan)).startswith("✓ fits · ")
    short = short_of_memory(setup)
    assert plain(verdict_line(short)).startswith("✗ does not fit · GPU 0 lacks ")


def test_less_than_the_margin_does_not_fit_and_says_why(plan: Plan) -> None:
    left = min(device.left_bytes for device in plan.used_devices)
    tight = Planner().plan(replace(plan.setup, margin_bytes=left + MIB))
    assert "that stay free" in plain(verdict_line(tight))


@pytest.mark.parametrize("width", [42, 100])
def test_planned_stands_beside_loaded(plan: Plan, width: int) -> None:
    buffers = (BufferSize("CUDA0", "KV", 123 * MIB),)
    lines = plan_lines(plan, width, "block", loaded=loaded_bytes(buffers, plan.estimate.devices))
    text = "\n".join(map(plain, lines))
    assert "planned" in text
    assert "loaded" in text
    assert "123 MiB" in text


def test_the_command_is_broken_between_flags_only(plan: Plan) -> None:
    heading, program, *flags = map(plain, command_lines(plan, 50))
    assert (heading, program) == ("as a command of llama-server", "llama-server \\")
    for line in flags:
        assert line.startswith("  --")


def test_names_from_a_file_do_no_harm(plan: Plan) -> None:
    lines = refusal_lines("No", "arch \x1b[31m\u202e is unknown", 60)
    text = "\n".join(map(plain, lines))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_heading_is_one_line_whatever_the_file_is_called(plan: Plan) -> None:
    file = replace(plan.model.file, path=Path("two\nlines.gguf"))
    named = replace(plan, model=replace(plan.model, file=file))
    assert plain(heading_line(named, 80)).startswith("two lines  llama")


def test_the_speed_and_the_table_write_a_context_the_same_way(setup: Setup) -> None:
    planner = Planner(bandwidths=lambda _: Bandwidth(1e9, "measured here"))
    shown = [plain(line) for line in plan_lines(planner.plan(setup), 100, "block")]
    assert any(" behind 4k " in line for line in shown)


def test_a_problem_stands_under_its_knob(setup: Setup) -> None:
    state = KnobState(2, typed="q9", problem="q9 is none of them")
    lines = knob_sheet(KNOBS, setup, Planner().facts_of(setup), state, 30, 20).lines
    assert plain(lines[2].line).rstrip().endswith("q9▏")
    assert plain(lines[3].line) == "  ✗ q9 is none of them"
    assert [line.index for line in lines[:5]] == [0, 1, 2, 2, 3]


def test_knobs_of_a_gpu_show_no_value_where_there_is_none(setup: Setup) -> None:
    without = replace(setup, machine=PlannedMachine(has_gpu=False))
    sheet = knob_sheet(KNOBS, without, Planner().facts_of(without), KnobState(), 30, 40)
    rows = {plain(line.line)[2:14].strip(): plain(line.line) for line in sheet.lines}
    for label in ("GPU layers", "KV cache on", "CPU experts", "split", "projector on"):
        assert rows[label].split()[-2:] == ["no", "GPU"], label


def test_the_chosen_knob_is_marked_without_colour(setup: Setup) -> None:
    lines = knob_sheet(KNOBS, setup, Planner().facts_of(setup), KnobState(1), 30, 20).lines
    assert [plain(line.line)[0] for line in lines[:3]] == [" ", "▸", " "]
    assert all(width_of(line.line) == 30 for line in lines if line.index is not None)


def test_the_preview_of_a_broken_preset_names_every_fault() -> None:
    entry = PresetEntry(Path("/x/bad.toml"), "bad", "", False, "bad.toml has 2 faults:\n  a\n  b")
    text = [plain(line) for line in preset_lines(entry, "a = 1\n# why", 40)]
    assert text[0] == "bad  yours"
    assert text[2:5] == ["✗ bad.toml has 2 faults:", "  a", "  b"]
    assert text[-2:] == ["a = 1", "# why"]
