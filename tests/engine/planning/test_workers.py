"""Machines that compute layers for llama-server: their names, what they cost, who is best."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.cards import parse_devices
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.catalog import find_entry
from engine.planning.fit import fit
from engine.planning.machine import PlannedMachine, format_gpus, parse_gpus
from engine.planning.planner import Planner, Setup
from engine.planning.report import plan_json
from engine.planning.request import PlanRequest, setup_of, usual_configuration
from engine.planning.search import Goal
from engine.planning.workers import traffic, workers_of

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)


def test_parts_of_one_machine_are_put_together_and_come_back_as_they_are_typed() -> None:
    found = workers_of(parse_devices("a:24GiB, b:8GiB, a:RTX 3060"))
    assert [worker.n_gpus for worker in found] == [2, 1]
    assert [device.name for device in found[0].devices()] == [
        "a GPU 0",
        "a GPU 1 · GeForce RTX 3060",
    ]
    machine = PlannedMachine(workers=found)
    assert parse_gpus(PlannedMachine(), format_gpus(machine)).workers == found


def machine(*workers: str, **own: object) -> PlannedMachine:
    parsed = workers_of(parse_devices(", ".join(workers)))
    return replace(PlannedMachine(ram_bytes=64 * GIB, workers=parsed), **own)  # type: ignore[arg-type]


def test_a_plan_over_workers_names_them_and_their_layers_for_llama_server() -> None:
    asked = PlanRequest("qwen3-32b", machine=machine("a:24GiB", "b:2x24GiB"))
    planner = Planner()
    plan = planner.plan(setup_of(asked, planner))
    assert plan.setup.target == "llama-server"
    words = plan.arguments
    assert words[words.index("--rpc") + 1] == "a:50052,b:50052"
    split = [int(part) for part in words[words.index("--tensor-split") + 1].split(",")]
    assert len(split) == 3
    assert sum(split) == plan.model.architecture.n_layers + 1
    assert plan.fits
    sent = plan_json(plan, planner)["workers"]
    assert sent["commands"] == {
        f"{host}:50052": "ggml-rpc-server --host 0.0.0.0 --port 50052 --cache" for host in "ab"
    }
    assert sent["net_gbps"] == 1.0
    assert sent["token_s"] == pytest.approx(8 * sent["token_bytes"] / 1e9)
    assert sent["n_waits"] == 3


def test_weights_in_ram_are_sent_to_no_worker() -> None:
    model = find_entry("qwen3-8b").model("Q4_K_M")
    now = Configuration(Path("m.gguf"), 8192, n_gpu_layers=20)
    far = Device("a", "gpu", 24 * GIB, 24 * GIB, worker="a:50052")
    near = Device("a", "gpu", 24 * GIB, 24 * GIB)
    costs = [
        estimate(model, now, (gpu, CPU), target="llama-server").devices[0] for gpu in (far, near)
    ]
    compute = [
        next(t.nbytes for kind, t in each.terms.items() if kind == "compute") for each in costs
    ]
    assert compute[0] < compute[1], "a GPU here holds copies of the largest matrix"


def test_what_crosses_the_net_grows_with_machines_and_not_with_gpus() -> None:
    model = find_entry("qwen3-8b").model("Q4_K_M")
    now = Configuration(Path("m.gguf"), 8192)

    def sent(*endpoints: str) -> int:
        gpus = tuple(
            Device(f"{i}", "gpu", 24 * GIB, 24 * GIB, worker=each)
            for i, each in enumerate(endpoints)
        )
        found = traffic(model, estimate(model, now, (*gpus, CPU), target="llama-server"))
        assert found is not None
        return found.token_bytes

    one, two_gpus, two = sent("a:1"), sent("a:1", "a:1"), sent("a:1", "b:1")
    logits = model.architecture.n_vocab * 4
    assert logits < one < two
    assert two_gpus - one < model.architecture.d_hidden * 4 + 8192 * 2 + 10_000
    assert two - one >= 2 * model.architecture.d_hidden * 4, "hidden states pass twice"
    assert traffic(model, estimate(model, now, (CPU,), target="llama-server")) is None


def test_fit_uses_all_workers_that_are_named() -> None:
    asked = machine("a:24GiB", "b:2x24GiB", has_gpu=False)
    planner = Planner()
    setup = Setup(usual_configuration("llama-3.3-70b", None, planner), "llama-server", asked)
    now = fit(setup, Goal.BALANCED, planner).plan.setup.configuration
    assert now.rpc_workers == ("a:50052", "b:50052")
    assert len(now.tensor_split) == 3
