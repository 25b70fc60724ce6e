"""The bound of tokens per second: bytes that a token reads over the bandwidth of where they lie."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.render.lines import plain
from app.render.plan import speed_lines, speed_text
from engine.configuration import Configuration
from engine.memory.bandwidth import Bandwidth
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.model.catalog import find_entry
from engine.model.speeds import ModelSpeed
from engine.model.tensor_table import token_reads
from engine.planning.as_json import plan_json
from engine.planning.machine import PlannedMachine
from engine.planning.models import ModelOption, ranked
from engine.planning.planner import Plan, Planner, Setup, Verdict
from engine.planning.speed import SpeedBound

MAIN, CARD = Bandwidth(5e10, "measured here"), Bandwidth(5e11, "nominal")
HERE = (Device("GPU", "gpu", 100 * GIB, 100 * GIB), Device("CPU", "cpu", 200 * GIB, 200 * GIB))


def bandwidth_of(device: Device) -> Bandwidth | None:
    return MAIN if device.kind == "cpu" else CARD


def plan_of(name: str, **values: object) -> Plan:
    planner = Planner(here=HERE, bandwidths=bandwidth_of)
    path = planner.add(find_entry(name).model())
    return planner.plan(Setup(Configuration(path, 8192, **values)))  # type: ignore[arg-type]


def bound_of(name: str, **values: object) -> SpeedBound:
    bound = plan_of(name, **values).bound
    assert bound is not None
    return bound


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "gemma-3-4b"])
def test_on_one_device_it_is_its_bandwidth_over_what_a_step_reads(name: str) -> None:
    reads = token_reads(find_entry(name).header()).nbytes()
    assert bound_of(name, n_gpu_layers=0).tps == pytest.approx(5e10 / reads)
    assert bound_of(name, n_gpu_layers=-1).tps == pytest.approx(5e11 / reads)


def test_a_token_reads_its_own_experts_only() -> None:
    entry = find_entry("qwen3-30b-a3b")
    reads = token_reads(entry.header())
    found = bound_of("qwen3-30b-a3b", n_gpu_layers=0)
    assert found.weight_bytes == pytest.approx(reads.nbytes(), rel=1e-6)
    assert found.weight_bytes < 0.2 * (reads.dense_bytes + reads.expert_bytes)


def test_experts_in_main_memory_are_read_at_its_speed() -> None:
    found = bound_of("qwen3-30b-a3b", n_gpu_layers=-1, n_cpu_moe=48)
    reads = token_reads(find_entry("qwen3-30b-a3b").header())
    by_device = {each.device: each.weight_bytes for each in found.reads}
    assert by_device["GPU"] == reads.dense_bytes
    assert by_device["CPU"] == pytest.approx(reads.expert_share * reads.expert_bytes)


def test_the_cache_of_one_chat_is_read_too() -> None:
    plan = plan_of("llama-3.1-8b", n_gpu_layers=0)
    bound = plan.bound
    assert bound is not None
    cache = next(each.term(TermKind.KV).nbytes for each in plan.estimate.devices)
    cache = max(each.term(TermKind.KV).nbytes for each in plan.estimate.devices)
    assert bound.full_tps == pytest.approx(5e10 / (bound.weight_bytes + cache))
    assert bound.behind(4096) == pytest.approx(5e10 / (bound.weight_bytes + cache / 2))
    slots = bound_of("llama-3.1-8b", n_gpu_layers=0, n_slots=2)
    assert slots.full_tps > bound.full_tps


def test_a_device_that_is_not_known_leaves_no_bound() -> None:
    planner = Planner(here=HERE, bandwidths=lambda each: MAIN if each.kind == "cpu" else None)
    path = planner.add(find_entry("llama-3.1-8b").model())
    whole = Setup(Configuration(path, 8192, n_gpu_layers=0))
    assert planner.plan(whole).bound is not None
    assert planner.plan(whole.changed(n_gpu_layers=10)).bound is None


def test_main_memory_of_a_typed_size_has_no_known_speed_and_a_mac_one() -> None:
    planner = Planner(here=HERE, bandwidths=bandwidth_of)
    path = planner.add(find_entry("llama-3.1-8b").model())
    setup = Setup(Configuration(path, 8192, n_gpu_layers=0))
    typed = replace(setup, machine=PlannedMachine(ram_bytes=64 * GIB, has_gpu=False))
    assert planner.plan(typed).bound is None
    mac = planner.plan(replace(setup, machine=PlannedMachine(cards=("M4 Max 64GB",))))
    assert mac.bound is not None
    assert {each.bandwidth for each in mac.bound.reads} == {CARD}


@pytest.mark.parametrize(
    ("speed", "said"),
    [
        (None, None),
        (ModelSpeed(74, 60, 1024, 400, "mine", "2026-11-22"), "by kvchat tune  preset mine"),
        (ModelSpeed(74, None, None, None, "", "2026-11-22", by="bench"), "by kvchat bench  usual"),
        (
            ModelSpeed(74, None, None, None, "", "2026-11-22", by="chats", n_replies=3),
            "in the last 3 replies of your chats",
        ),
    ],
)
def test_what_is_said_names_what_it_rests_on(speed: ModelSpeed | None, said: str | None) -> None:
    plan = replace(plan_of("llama-3.1-8b", n_gpu_layers=0), speed=speed)
    lines = [plain(line) for line in speed_lines(plan)]
    assert "speed at most 11 tok/s" in lines[0]
    assert "50 GB/s measured here" in lines[0]
    assert len(lines) == (1 if said is None else 2)
    if said is not None:
        assert lines[1].startswith("measured here 74 tok/s")
        assert said in lines[1]
    listed = speed_text(speed, plan.bound)
    assert listed == ("≤ 11 tok/s" if speed is None else "74 tok/s here")


def test_json_has_bytes_bandwidth_and_basis() -> None:
    planner = Planner(here=HERE, bandwidths=bandwidth_of)
    path = planner.add(find_entry("llama-3.1-8b").model())
    found = plan_json(planner.plan(Setup(Configuration(path, 8192, n_gpu_layers=0))), planner)
    bound = found["speed_bound"]
    assert isinstance(bound, dict)
    assert bound["reads"][0]["bandwidth"] == {"bytes_per_s": 5e10, "basis": "measured here"}


def test_what_fits_and_is_quick_comes_first_the_largest_before_smaller_ones() -> None:
    slow = SpeedBound(bound_of("llama-3.1-70b", n_gpu_layers=0).reads, 8192)
    assert slow.tps < 5

    def option(name: str, verdict: Verdict | None, size: int, **more: object) -> ModelOption:
        return ModelOption(name, name, (), verdict, n_parameters=size, **more)  # type: ignore[arg-type]

    options = [
        option("broken", None, 0, problem="broken"),
        option("huge", Verdict.NO, 90),
        option("large", Verdict.NO, 80),
        option("partly", Verdict.NO, 60, spills=True),
        option("tight", Verdict.TIGHT, 50),
        option("slow", Verdict.FITS, 70, bound=slow),
        option("small", Verdict.FITS, 1),
        option("middle", Verdict.FITS, 8),
    ]
    order = [each.name for each in ranked(options)]
    assert order == ["middle", "small", "slow", "tight", "partly", "large", "huge", "broken"]


def test_a_file_that_is_not_there_has_a_bound_all_the_same() -> None:
    planner = Planner(here=HERE, bandwidths=bandwidth_of)
    path = planner.add(find_entry("qwen3-8b").model("Q8_0"))
    assert not Path(path).exists()
    assert planner.plan(Setup(Configuration(path, 4096))).bound is not None
