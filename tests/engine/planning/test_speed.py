"""The bound of tokens per second: bytes that a token reads over the bandwidth of where they lie."""

from dataclasses import replace

import pytest

from app.render.lines import plain
from app.render.plan import speed_lines, speed_text
from app.render.plan_lists import LEGEND
from engine.configuration import Configuration
from engine.memory.bandwidth import Bandwidth
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.model.catalog import entries, find_entry
from engine.model.speeds import ModelSpeed
from engine.model.tensor_table import token_reads
from engine.planning.machine import PlannedMachine
from engine.planning.models import ModelOption, fit_context, rank_options, with_verdict
from engine.planning.planner import Plan, Planner, Setup
from engine.planning.report import plan_json
from engine.planning.resolve import resolve
from engine.planning.speed import SpeedBound
from engine.planning.verdict import FitVerdict

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


def tps_of(plan: Plan) -> float | None:
    return None if plan.bound is None else plan.bound.tps


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "gemma-3-4b"])
def test_on_one_device_it_is_its_bandwidth_over_what_a_step_reads(name: str) -> None:
    reads = token_reads(find_entry(name).header()).nbytes()
    assert bound_of(name, n_gpu_layers=0).tps == pytest.approx(5e10 / reads)
    assert bound_of(name, n_gpu_layers=-1).tps == pytest.approx(5e11 / reads)


def test_a_token_reads_no_more_of_a_device_than_lies_there() -> None:
    for entry in entries():
        plan = plan_of(entry.name, n_gpu_layers=12)
        assert plan.bound is not None
        held = {each.device.name: each.term(TermKind.WEIGHTS) for each in plan.estimate.devices}
        for each in plan.bound.reads:
            assert each.weight_bytes <= held[each.device].range[1], (entry.name, each.device)


@pytest.mark.parametrize("name", ["gemma-3n-e4b", "gemma-4-e4b", "qwen3.8-flash-next"])
def test_a_token_reads_one_row_of_the_embeddings_of_each_layer(name: str) -> None:
    header = find_entry(name).header()
    table = next(each for each in header.tensors if each.name.startswith("per_layer_token_embd"))
    held = sum(each.nbytes for each in header.tensors)
    assert token_reads(header).nbytes() <= held - table.nbytes
    assert bound_of(name, n_gpu_layers=-1).weight_bytes <= held - table.nbytes


def test_a_token_reads_its_own_experts_only() -> None:
    entry = find_entry("qwen3-30b-a3b")
    reads = token_reads(entry.header())
    found = bound_of("qwen3-30b-a3b", n_gpu_layers=0)
    assert found.weight_bytes == pytest.approx(reads.nbytes(), rel=1e-6)
    assert found.weight_bytes < 0.2 * (reads.dense_bytes + reads.expert_bytes)


def test_the_cache_of_one_chat_is_read_too() -> None:
    plan = plan_of("llama-3.1-8b", n_gpu_layers=0)
    bound = plan.bound
    assert bound is not None
    cache = max(each.term(TermKind.KV).nbytes for each in plan.estimate.devices)
    assert bound.full_tps == pytest.approx(5e10 / (bound.weight_bytes + cache))
    assert bound.at_depth(4096) == pytest.approx(5e10 / (bound.weight_bytes + cache / 2))
    slots = bound_of("llama-3.1-8b", n_gpu_layers=0, n_slots=2)
    assert slots.full_tps is not None
    assert bound.full_tps is not None
    assert slots.full_tps > bound.full_tps


def test_an_unknown_device_leaves_no_bound_with_the_reason() -> None:
    planner = Planner(here=HERE, bandwidths=lambda each: MAIN if each.kind == "cpu" else None)
    path = planner.add(find_entry("llama-3.1-8b").model())
    whole = Setup(Configuration(path, 8192, n_gpu_layers=0))
    assert tps_of(planner.plan(whole)) is not None
    unknown = planner.plan(whole.with_values(n_gpu_layers=10))
    assert tps_of(unknown) is None
    data = plan_json(unknown, planner)
    assert data["speed_bound"] is None
    assert "GPU" in str(data["speed_unknown"])


def test_a_bound_of_a_busy_machine_is_marked_as_an_estimate() -> None:
    busy = Bandwidth(1e9, "measured while busy")
    planner = Planner(here=HERE, bandwidths=lambda _: busy)
    path = planner.add(find_entry("llama-3.1-8b").model())
    plan = planner.plan(Setup(Configuration(path, 8192, n_gpu_layers=0)))
    [line] = speed_lines(plan)
    assert "speed about 0.2" in plain(line)
    assert speed_text(None, plan.bound) == "~ 0.2 tok/s"
    assert "~ about" in LEGEND
    data = plan_json(plan, planner)
    assert data["speed_bound"]["reads"][0]["bandwidth"]["basis"] == "measured while busy"  # type: ignore[index]


def test_a_list_of_models_has_the_speed_of_the_plan() -> None:
    here = (replace(HERE[0], free_bytes=24 * GIB), HERE[1])
    planner = Planner(here=here, bandwidths=bandwidth_of)
    model = find_entry("llama-3.1-70b").model()
    path = planner.add(model)
    context = fit_context(Setup(Configuration(path, 8192)), planner)
    listed = with_verdict(ModelOption("", "", ()), model, context)
    assert listed.spills
    assert listed.bound is not None
    placed = resolve(None, model, here)
    plan = planner.plan(Setup(replace(placed, n_ctx=8192)))
    assert listed.bound.tps == tps_of(plan)
    small = tuple(replace(each, free_bytes=2 * GIB) for each in here)
    nowhere = with_verdict(ModelOption("", "", ()), model, replace(context, devices=small))
    assert (nowhere.spills, nowhere.bound) == (False, None), "what does not fit has no speed"


def test_models_that_fit_and_are_fast_come_first_the_largest_before_smaller_ones() -> None:
    slow = SpeedBound(bound_of("llama-3.1-70b", n_gpu_layers=0).reads, 8192)
    assert slow.tps is not None
    assert slow.tps < 5

    def option(name: str, verdict: FitVerdict | None, size: int, **more: object) -> ModelOption:
        return ModelOption(name, name, (), verdict, n_parameters=size, **more)  # type: ignore[arg-type]

    options = [
        option("broken", None, 0, problem="broken"),
        option("huge", FitVerdict.NO, 90),
        option("large", FitVerdict.NO, 80),
        option("partly", FitVerdict.NO, 60, spills=True),
        option("tight", FitVerdict.TIGHT, 50),
        option("slow", FitVerdict.FITS, 70, bound=slow),
        option("small", FitVerdict.FITS, 1),
        option("middle", FitVerdict.FITS, 8),
    ]
    order = [each.name for each in rank_options(options)]
    assert order == ["middle", "small", "slow", "tight", "partly", "large", "huge", "broken"]


def test_experts_in_ram_are_read_at_its_speed() -> None:
    found = bound_of("qwen3-30b-a3b", n_gpu_layers=-1, n_cpu_moe=48)
    reads = token_reads(find_entry("qwen3-30b-a3b").header())
    by_device = {each.device: each.weight_bytes for each in found.reads}
    assert by_device["GPU"] == reads.dense_bytes
    assert by_device["CPU"] == pytest.approx(reads.expert_share * reads.expert_bytes)


def test_a_bound_is_never_below_what_was_measured_without_a_gpu() -> None:
    measured = ModelSpeed(74, None, None, None, "", "2026-11-22", by="bench")
    planner = Planner(here=HERE[-1:], bandwidths=bandwidth_of, speeds=lambda _: measured)
    path = planner.add(find_entry("llama-3.1-8b").model())
    assert tps_of(planner.plan(Setup(Configuration(path, 8192)))) == 74


def test_ram_of_a_typed_size_has_a_typical_bandwidth() -> None:
    planner = Planner(here=HERE, bandwidths=bandwidth_of)
    path = planner.add(find_entry("llama-3.1-8b").model())
    elsewhere = PlannedMachine(ram_bytes=64 * GIB)
    plan = planner.plan(Setup(Configuration(path, 8192, n_gpu_layers=0), machine=elsewhere))
    assert plan.bound is not None
    assert plan.bound.is_estimate
    assert plan.bound.tps == pytest.approx(bound_of("llama-3.1-8b", n_gpu_layers=0).tps)
