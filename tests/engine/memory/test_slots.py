from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.estimate import cache_shape, slot_bytes, slots_text
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


@pytest.mark.parametrize("n_slots", [1, 2, 4])
def test_a_further_slot_costs_what_a_context_with_it_has_more(model: Model, n_slots: int) -> None:
    now = configuration(n_ctx=1024 * n_slots, n_slots=n_slots)
    more = configuration(n_ctx=1024 * (n_slots + 1), n_slots=n_slots + 1)
    assert price(model, now) == held(model, more) - held(model, now) > 0


def test_a_slot_of_shared_cells_costs_nothing_in_full_attention(model: Model) -> None:
    assert price(model, configuration(n_slots=2, kv_unified=True)) == 0


def test_windows_and_states_of_a_slot_cost_even_where_cells_are_shared(gemma_path: Path) -> None:
    shared = configuration(n_ctx=8192, n_slots=2, kv_unified=True)
    assert price(read_model(gemma_path), shared) > 0
    hybrid = shape_named("qwen3.6-27b").model()
    assert price(hybrid, shared) == held(hybrid, replace(shared, n_slots=3)) - held(hybrid, shared)
    assert price(hybrid, shared) > MIB


def test_the_price_and_the_caveat_are_said(model: Model) -> None:
    apart = slots_text(model.architecture, configuration(n_slots=4), (CPU,))
    assert apart == (
        "4 slots have 1,024 tokens of context each, a further one as long takes 22.5 MiB"
    )
    shared = slots_text(model.architecture, configuration(n_slots=4, kv_unified=True), (CPU,))
    assert "hold a common start once" in shared
    assert "takes no more memory" in shared
    assert "a reply may differ from one that was made alone" in shared
