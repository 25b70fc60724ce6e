from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.estimate import cache_shape, slot_bytes
from engine.memory.hardware import Device
from engine.memory.kv_cache import layer_kv_bytes, layer_state_bytes
from engine.memory.units import MIB
from engine.model.architecture import Model, read_model
from tests.support.made_models import shape_named

CPU = Device("CPU", "cpu", 64 << 30, 64 << 30)


@pytest.fixture
def model(starter_path: Path) -> Model:
    return read_model(starter_path)


def configuration(n_ctx: int = 4096, **changes: object) -> Configuration:
    return Configuration(Path("m.gguf"), n_ctx, **changes)  # type: ignore[arg-type]


def price(model: Model, now: Configuration) -> int:
    return slot_bytes(model.architecture, cache_shape(now))


def held(model: Model, now: Configuration) -> int:
    shape = cache_shape(now)
    states = layer_state_bytes(model.architecture, shape)
    return sum(layer_kv_bytes(model.architecture, shape).values()) + sum(states.values())


def test_a_further_slot_costs_what_a_context_with_it_has_more(model: Model) -> None:
    now = configuration(n_ctx=2048, n_slots=2)
    more = configuration(n_ctx=3072, n_slots=3)
    assert price(model, now) == held(model, more) - held(model, now) > 0
    assert price(model, replace(now, kv_unified=True)) == 0


def test_windows_and_states_of_a_slot_cost_even_where_cells_are_shared(gemma_path: Path) -> None:
    shared = configuration(n_ctx=8192, n_slots=2, kv_unified=True)
    assert price(read_model(gemma_path), shared) > 0
    hybrid = shape_named("qwen3.6-27b").model()
    assert price(hybrid, shared) == held(hybrid, replace(shared, n_slots=3)) - held(hybrid, shared)
    assert price(hybrid, shared) > MIB
