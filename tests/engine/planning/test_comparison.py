"""Two plans side by side."""

from dataclasses import replace

from app.render.lines import plain, width_of
from app.render.plan_changes import comparison_lines
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.planning.comparison import compared_devices, differences
from engine.planning.machine import PlannedMachine
from engine.planning.verdict import FitVerdict
from tests.engine.planning.models import DENSE, EXPERTS, planned


def test_differences_are_those_of_the_knobs_and_of_the_terms() -> None:
    a, planner = planned(DENSE, 12)
    b = planner.plan(
        replace(a.setup, configuration=replace(a.setup.configuration, n_ctx=16384, type_k="q8_0"))
    )
    assert differences(a, b) == [("context", "8,192", "16,384"), ("K type", "f16", "q8_0")]
    gpu, cpu = compared_devices(a, b)
    assert (gpu.name, cpu.name) == ("GPU 0", "CPU")
    kv_bytes = [plan.estimate.devices[0].term(TermKind.KV).nbytes for plan in (a, b)]
    assert gpu.terms()[TermKind.KV] == tuple(kv_bytes)
    assert kv_bytes[0] < kv_bytes[1]


def test_a_gpu_that_one_plan_lacks_counts_as_nothing_there() -> None:
    a, planner = planned(DENSE, 6)
    b = planner.plan(
        replace(a.setup, machine=PlannedMachine(2 * a.setup.machine.vram_bytes, ram_bytes=64 * GIB))
    )
    found = compared_devices(a, b)
    assert [device.name for device in found] == ["GPU 0", "GPU 1", "CPU"]
    assert all(old == 0 < new for old, new in found[1].terms().values())
    assert (a.verdict, b.verdict) == (FitVerdict.TIGHT, FitVerdict.FITS)


def test_plans_of_two_models_say_so() -> None:
    a, planner = planned(DENSE, 24)
    b, _ = planned(EXPERTS, 24)
    assert differences(a, b)[0][0] == "model"
    del planner


def test_the_view_fits_into_the_narrow_panel_with_every_column() -> None:
    a, planner = planned(DENSE, 12)
    b = planner.plan(replace(a.setup, target="kvchat"))
    lines = comparison_lines(a, b, 42, "block")
    assert max(map(width_of, lines)) <= 42
    text = [plain(line) for line in lines]
    assert text[0].split() == ["A", "B", "change"]
    kv = next(line for line in text if "KV cache" in line)
    assert kv.endswith("=")
    assert sum(line.startswith(("A ", "B ")) for line in text) == 4


def test_equal_plans_ask_for_a_turn() -> None:
    a, _ = planned(DENSE, 12)
    text = "\n".join(map(plain, comparison_lines(a, a, 60, "block")))
    assert "turn the knobs" in text
