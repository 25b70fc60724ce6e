from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, DraftConfiguration
from engine.errors import HardwareError, PresetError
from engine.memory.estimate import cache_shape, estimate, slot_bytes
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, layer_kv_bytes, layer_state_bytes
from engine.memory.terms import TARGETS, Target, TermKind, gpu_overhead
from engine.memory.units import GIB, MIB, format_bytes, parse_bytes
from engine.model.architecture import Model, read_model
from tests.support.gguf_files import header, llama_values, write
from tests.support.made_models import shape_named

CPU = Device("CPU", "cpu", 8 * GIB, 8 * GIB)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return read_model(write(tmp_path / "m.gguf", header(llama_values())))


def configuration(model: Model, **changes: object) -> Configuration:
    return replace(Configuration(model_path=model.file.path, n_ctx=1024), **changes)  # type: ignore[arg-type]


def kv(model: Model, **changes: object) -> int:
    shape = CacheShape(n_ctx=1024, n_ubatch=512, type_k="f16", type_v="f16")
    return sum(layer_kv_bytes(model.architecture, replace(shape, **changes)).values())  # type: ignore[arg-type]


def test_the_cache_is_rows_times_cells_times_layers(model: Model) -> None:
    assert kv(model) == 2 * 1024 * (64 + 64) * 2
    assert kv(model, type_k="q8_0") == 2 * 1024 * (68 + 128)
    assert kv(model, n_ctx=1000) == kv(model)


def test_the_batch_does_not_multiply_the_cache_but_slots_do(model: Model) -> None:
    assert kv(model, n_ubatch=64) == kv(model)
    assert kv(model, n_slots=4) == kv(model)
    assert kv(model, n_ctx=1200, n_slots=3) == 3 * kv(model, n_ctx=512)
    assert kv(model, n_ctx=1200, n_slots=3, kv_unified=True) == kv(model, n_ctx=1280)


def test_what_llama_cpp_refuses_is_refused_with_the_reason(model: Model, tmp_path: Path) -> None:
    with pytest.raises(PresetError, match="V type q8_0 needs flash attention"):
        kv(model, type_v="q8_0", flash_attention=False)
    odd = llama_values(**{"llama.attention.key_length": 40})
    other = read_model(write(tmp_path / "odd.gguf", header(odd)))
    with pytest.raises(PresetError, match="heads have 40"):
        kv(other, type_k="q4_0")
    assert kv(other, type_k="q8_0", flash_attention=False) > 0


@pytest.mark.parametrize("target", TARGETS)
def test_every_program_opens_the_configured_slots(model: Model, target: Target) -> None:
    slots = configuration(model, n_slots=4, n_ctx=2100)
    assert estimate(model, slots, (CPU,), target=target).n_ctx == 3072
    shared = replace(slots, kv_unified=True)
    assert estimate(model, shared, (CPU,), target=target).n_ctx == 2304


def test_kvchats_draft_has_one_slot_of_its_own_context(model: Model) -> None:
    draft = DraftConfiguration(model.file.path, n_ctx=512)
    one, four = (
        estimate(model, configuration(model, draft=draft, n_slots=n), (CPU,), draft=model)
        for n in (1, 4)
    )
    added = [found.devices[0].term(TermKind.DRAFT).nbytes for found in (one, four)]
    assert added[0] == added[1]


def test_sizes_are_read_and_written() -> None:
    assert parse_bytes("8GiB") == parse_bytes("8 g") == parse_bytes("8192MiB") == 8 * GIB
    assert parse_bytes("1,5 GB") == 1_500_000_000
    assert parse_bytes("12,288 MiB") == 12 * GIB
    assert parse_bytes("1,024.5KiB") == 1049088
    assert parse_bytes("8") == parse_bytes("8.0 ") == 8 * GIB
    assert parse_bytes("8589934592B") == 8 * GIB
    assert [format_bytes(n) for n in (900, 27 * MIB, 3 * GIB // 2, -2 * MIB, 5011 * MIB)] == [
        "900 B", "27 MiB", "1.5 GiB", "-2 MiB", "4.89 GiB",
    ]  # fmt: skip
    for wrong in ("", "eight", "-3GiB", "0", "5XB", "8589934592", f"{10**400}GiB"):
        with pytest.raises(HardwareError):
            parse_bytes(wrong)


@pytest.mark.parametrize(
    ("gib", "mib"), [(8, 300), (24, 300), (52, 450), (79.6, 598), (80, 600), (141, 600)]
)
def test_the_context_of_a_larger_card_takes_more(gib: float, mib: int) -> None:
    """598 MiB is what an H100 of 79.6 GiB was measured to take (516 to 636)."""
    card = Device("card", "gpu", round(gib * GIB), round(gib * GIB))
    assert gpu_overhead(card)[0] == mib * MIB


def price(model: Model, now: Configuration) -> int:
    return slot_bytes(model.architecture, cache_shape(now))


def held(model: Model, now: Configuration) -> int:
    shape = cache_shape(now)
    states = layer_state_bytes(model.architecture, shape)
    return sum(layer_kv_bytes(model.architecture, shape).values()) + sum(states.values())


def test_a_further_slot_costs_what_a_context_with_it_has_more(model: Model) -> None:
    now = configuration(model, n_ctx=2048, n_slots=2)
    more = configuration(model, n_ctx=3072, n_slots=3)
    assert price(model, now) == held(model, more) - held(model, now) > 0
    assert price(model, replace(now, kv_unified=True)) == 0


def test_windows_and_states_of_a_slot_cost_even_where_cells_are_shared(
    model: Model, gemma_path: Path
) -> None:
    shared = configuration(model, n_ctx=8192, n_slots=2, kv_unified=True)
    assert price(read_model(gemma_path), shared) > 0
    hybrid = shape_named("qwen3.6-27b").model()
    assert price(hybrid, shared) == held(hybrid, replace(shared, n_slots=3)) - held(hybrid, shared)
    assert price(hybrid, shared) > MIB
