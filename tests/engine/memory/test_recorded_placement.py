"""Placement compared with recorded loads of llama.cpp (`placements.json`)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, TensorOverride
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from tests.support.made_models import shape_named

RECORDS = json.loads(Path(__file__).with_name("placements.json").read_text(encoding="utf-8"))
DEVICES = (
    *(Device(f"RPC{i}", "gpu", 100 * GIB, 100 * GIB) for i in range(2)),
    Device("Host", "cpu", 500 * GIB, 500 * GIB),
)


@pytest.mark.parametrize("name", sorted({record["model"] for record in RECORDS}))
def test_weights_and_caches_lie_where_llama_cpp_puts_them(name: str) -> None:
    model = shape_named(name).model()
    for record in (record for record in RECORDS if record["model"] == name):
        overrides = tuple(TensorOverride(*override) for override in record["overrides"])
        base = Configuration(model.file.path, 8192, tensor_overrides=overrides)
        changes = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in record["changes"].items()
        }
        found = estimate(model, replace(base, **changes), DEVICES, target="llama-server")
        for device in found.devices:
            weights, cached = record["truth"].get(device.device.name, (0, 0))[:2]
            memory = device.term(TermKind.KV).nbytes + device.term(TermKind.STATE).nbytes
            planned = device.term(TermKind.WEIGHTS).nbytes / MIB
            assert abs(planned - weights) <= max(2, 0.003 * weights), record
            assert int(memory / MIB) == cached, record
