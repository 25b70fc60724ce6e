"""Formulas and recorded dry runs of llama.cpp, by `benchmarks/record_dry_runs.py`."""

import json
from functools import cache
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.compute import compute_bounds, compute_bytes
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, layer_kv_bytes, layer_state_bytes
from engine.memory.placement import place
from engine.memory.units import MIB
from engine.model.architecture import Model
from tests.support.made_models import shape_named

CPU = Device("CPU", "cpu", 1, 1, instructions="none")
READ = Configuration(Path("m.gguf"), 0, use_mmap=False)
RECORDS = json.loads(Path(__file__).with_name("dry_runs.json").read_text(encoding="utf-8"))
MODELS = sorted({record[0] for record in RECORDS})
LOOSE = {"deepseek-moe-16b": 0.14}
"""Models whose graphs the formulas match less closely than those of all others."""


@cache
def model_named(name: str) -> Model:
    return shape_named(name).model()


def shape_of(model: Model, context: list[object]) -> tuple[CacheShape, int]:
    n_ctx, n_batch, n_ubatch, n_slots, n_outputs, k, v, flash, is_unified, swa_full = context
    shape = CacheShape(
        n_ctx=n_ctx,  # type: ignore[arg-type]  # plain values of a JSON file
        n_ubatch=min(n_batch, n_ubatch),  # type: ignore[type-var]
        type_k=k,  # type: ignore[arg-type]
        type_v=v,  # type: ignore[arg-type]
        flash_attention=flash != "off" and model.architecture.has_flash_attention,
        n_slots=n_slots,  # type: ignore[arg-type]
        kv_unified=bool(is_unified) and n_slots != 1,
        swa_full=bool(swa_full),
    )
    return shape, n_outputs  # type: ignore[return-value]


@pytest.mark.parametrize("name", MODELS)
def test_formulas_give_what_llama_cpp_lays_out(name: str) -> None:
    model = model_named(name)
    architecture = model.architecture
    tolerance = LOOSE.get(name, 0.055)
    held = place(model.file, READ, (CPU,)).weight_bytes[CPU]
    for _, context, recorded, weights, graph in (record for record in RECORDS if record[0] == name):
        shape, n_outputs = shape_of(model, context)
        mine = sum(layer_kv_bytes(architecture, shape).values())
        mine += sum(layer_state_bytes(architecture, shape).values())
        if not architecture.doubts:
            assert mine == recorded, context
        assert abs(held / weights - 1) <= 0.031, context
        found = compute_bytes(architecture, shape, n_outputs)
        low, high = compute_bounds(architecture, shape, found, "cpu")
        if not architecture.doubts:
            assert low <= graph <= high, context
        if not (architecture.doubts or architecture.has_indexer or architecture.n_streams):
            assert abs(found - graph) <= max(tolerance * graph, 42 * MIB), context


def test_buffers_of_most_models_are_within_some_hundredths() -> None:
    errors = []
    for name, context, _, _, graph in RECORDS:
        architecture = model_named(name).architecture
        shape, n_outputs = shape_of(model_named(name), context)
        errors.append(abs(compute_bytes(architecture, shape, n_outputs) - graph) / graph)
    errors.sort()
    assert errors[len(errors) // 2] < 0.01
    assert errors[len(errors) * 9 // 10] < 0.08


def test_most_architectures_of_llama_cpp_are_recorded() -> None:
    assert len({model_named(name).architecture.name for name in MODELS}) >= 100
