"""Printed ranges compared with dry runs of generated shapes.

Terms that were in their range when recorded stay in it; shares: `benchmarks/results/accuracy.md`.

Each is a model of the catalogue with other keys, written by `benchmarks/accuracy_models.py` and
asked through `tests/support/dry_run_process.py`; GPUs are `benchmarks/stand_in_gpu.cpp`.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from engine.configuration import Configuration, PredictorName, SpeculationSettings, TensorOverride
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.terms import DeviceEstimate, TermKind
from engine.memory.units import GIB
from engine.model.architecture import Model
from tests.support.made_models import made_headers

RECORDS = json.loads(Path(__file__).with_name("recorded_shapes.json").read_text(encoding="utf-8"))
NAMES = sorted({record["base"] for record in RECORDS})
CPU = Device("CPU", "cpu", 4096 * GIB, 4096 * GIB)
PADDING_BYTES = 4096
"""Tensors begin at whole blocks of addresses, which no formula counts."""


@cache
def changed_model(base: str, changes: str, n_vocab: int | None, quantization: str) -> Model:
    """Give a model of the catalogue with other keys."""
    label = json.dumps([base, json.loads(changes), n_vocab])
    return replace(made_headers()[label], name=base).model(quantization)


def configuration_of(record: dict[str, dict[str, object]]) -> Configuration:
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in record["configuration"].items()}
    overrides = tuple(TensorOverride(*rule) for rule in fields.pop("tensor_overrides", ()))  # type: ignore[misc, attr-defined]  # lists of a JSON file
    no_draft = SpeculationSettings(predictor=PredictorName.OFF)
    return Configuration(Path("x"), speculation=no_draft, tensor_overrides=overrides, **fields)  # type: ignore[arg-type]  # values of a JSON file


def is_in_range(device: DeviceEstimate, nbytes: int) -> bool:
    term = device.term(TermKind.COMPUTE)
    low, high = term.range
    return low - PADDING_BYTES <= nbytes <= high + PADDING_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_what_llama_cpp_lays_out_lies_in_the_printed_range(name: str) -> None:
    outside = []
    for record in (record for record in RECORDS if record["base"] == name):
        changes = json.dumps(record["changes"])
        model = changed_model(name, changes, record.get("n_vocab"), record["quantization"])
        n_gpus = record.get("n_gpus", 0)
        gpus = [Device(f"GPU {i}", "gpu", 24 * GIB, 24 * GIB) for i in range(n_gpus)]
        configuration = configuration_of(record)
        found = estimate(model, configuration, (*gpus, CPU), target=record["target"])
        outside += [
            (record, device.device.name, device.term(TermKind.COMPUTE))
            for device in found.devices
            if not is_in_range(device, record["compute"].get(device.device.name, 0))
        ]
    assert not outside
