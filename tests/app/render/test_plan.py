"""A plan as lines."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import app
from app.render.lines import plain, width_of
from app.render.plan import (
    command_lines,
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
from engine.memory.cards import parse_devices
from engine.memory.hardware import Device
from engine.memory.placement import MappedWeights
from engine.memory.terms import DeviceEstimate, Source, Term, TermKind
from engine.memory.units import GIB
from engine.model.speeds import ModelSpeed
from engine.planning.changes import OptionSteps
from engine.planning.machine import PlannedMachine
from engine.planning.options import OPTIONS
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.request import PlanRequest, setup_of
from engine.planning.table import cost_table
from engine.planning.workers import workers_of
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


def text_of(plan: Plan, width: int = 200) -> str:
    return "\n".join(map(plain, [*plan_lines(plan, width, "block"), *command_lines(plan, width)]))


def test_a_plan_over_workers_has_their_commands_and_the_traffic() -> None:
    far = workers_of(parse_devices("near:24GiB, cellar:2x24GiB"))
    machine = PlannedMachine(ram_bytes=64 * GIB, workers=far, net_gbps=2.5)
    planner = Planner()
    shown = text_of(
        planner.plan(setup_of(PlanRequest("qwen3-32b", machine=machine), planner)), 1000
    )
    assert "start the workers only on a private network" in shown
    for host in ("near", "cellar"):
        assert re.search(rf"^  {host} +\S*rpc-server .*--port 50052", shown, re.MULTILINE)
    for words in (
        "network traffic: 707 KiB per decoded token (2.3 ms at 2.5 Gbit/s, plus 3 network delays",
        "so at most 431 tok/s); 106 MiB per 1,000 prompt tokens (354 ms); 18 GiB once",
    ):
        assert words in shown
    assert "llama-server \\\n  --model" in shown


MEASURED = ModelSpeed(60.0, 50.0, 1024, 400.0, "tuned", "2026-11-22")


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (MEASURED, "measured 60 tok/s, 50 tok/s at 1k context, prefill 400 tok/s  by kvchat tune"),
        (MEASURED, "by kvchat tune  preset tuned"),
        (replace(MEASURED, preset="", by="bench"), "by kvchat bench  default settings"),
        (ModelSpeed(9.0, None, None, None, "", "", by="chats", n_replies=1),
         "9.0 tok/s  your last reply, with varying settings"),
        (ModelSpeed(9.0, None, None, None, "", "", by="chats", n_replies=3),
         "median of your last 3 replies"),
    ],
)  # fmt: skip
def test_a_measured_speed_has_its_source(speed: ModelSpeed, words: str) -> None:
    found, _ = planned(DENSE, 24)
    assert words in text_of(replace(found, speed=speed))


@pytest.mark.parametrize(
    ("n_ctx", "vram_gib", "words"),
    [
        (8192, 24, "✓ fits · "),
        (8192, 24, "largest context "),
        (8192, 1, "✗ does not fit · GPU 0 lacks"),
        (8192, 1, "largest context none: not even 256 tokens fit with"),
        (8192, 8, "limited by memory; fewer GPU layers allow a larger context"),
        (8192, 200, "limited by the training context"),
        (8000, 24, "context 8,192 (8,000 requested)"),
    ],
)
def test_the_verdict_and_the_largest_context_have_their_reasons(
    n_ctx: int, vram_gib: float, words: str
) -> None:
    found, _ = planned(DENSE, vram_gib, n_ctx=n_ctx)
    assert words in f"{text_of(found)}\n{plain(heading_line(found, 200))}"


def test_a_device_shows_what_is_loaded_shared_reclaimable_or_unused() -> None:
    found, _ = planned(DENSE, 24)
    unused = DeviceEstimate(Device("GPU 1", "gpu", 24 * GIB, 23 * GIB), {})
    assert plain(device_lines(found, unused, 60, "block")[0]).endswith("not used · 23 GiB free")
    terms = {TermKind.WEIGHTS: Term(GIB, Source.EXACT), TermKind.KV: Term(0, Source.EXACT)}
    device = DeviceEstimate(Device("CPU", "cpu", 8 * GIB, 6 * GIB), terms, shared_bytes=GIB // 2)
    loaded = {"CPU": {TermKind.WEIGHTS: 2 * GIB, TermKind.KV: GIB // 4}}
    shown = list(map(plain, device_lines(found, device, 90, "block", loaded)))
    assert "1.5 GiB of 6 GiB free" in shown[0]
    assert shown[2].split() == ["planned", "loaded"]
    assert re.search(r"weights +1 GiB +2 GiB  = exact", shown[3])
    assert re.search(r"KV cache +0 B +256 MiB", shown[4])
    assert re.search(r"on GPU +512 MiB  memory shared with the CPU", shown[5])
    assert re.search(r"left +4.5 GiB", shown[6])
    lacking = replace(device, terms={TermKind.WEIGHTS: Term(8 * GIB, Source.EXACT)})
    assert any("lacking" in plain(line) for line in device_lines(found, lacking, 90, "block"))
    mapped = MappedWeights(3 * GIB, GIB, 2 * GIB)
    twice = replace(device, mapped={TermKind.WEIGHTS: mapped, TermKind.DRAFT: mapped})
    last = plain(device_lines(found, twice, 90, "block")[-1])
    assert re.search("reclaimable 2 GiB  of 6 GiB mapped", last)
