from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, DraftConfiguration
from engine.errors import HardwareError, PresetError
from engine.memory.estimate import estimate, estimator, max_n_ctx
from engine.memory.hardware import Device, devices
from engine.memory.kv_cache import CacheShape, layer_kv_bytes
from engine.memory.terms import TARGETS, Source, Target, TermKind, cuda_overhead_bytes
from engine.memory.units import GIB, MIB, format_bytes, parse_bytes
from engine.memory.weights import weights_of
from engine.model.architecture import Model, read_model
from tests.support.gguf_files import header, llama_values, write

CPU = Device("CPU", "cpu", 8 * GIB, 8 * GIB)
GPU = Device("GPU 0", "gpu", GIB, GIB)
EMBEDDING, LAYER = 64 * 96 * 4, 64 * 32 * 4


@pytest.fixture
def model(tmp_path: Path) -> Model:
    tensors = [
        ("token_embd.weight", (64, 96), 0, 0),
        ("blk.0.attn_k.weight", (64, 32), 0, EMBEDDING),
        ("blk.1.attn_k.weight", (64, 32), 0, EMBEDDING + LAYER),
        ("output_norm.weight", (64,), 0, EMBEDDING + 2 * LAYER),
    ]
    data_bytes = EMBEDDING + 2 * LAYER + 256
    return read_model(
        write(tmp_path / "m.gguf", header(llama_values(), tensors), data_bytes=data_bytes)
    )


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
    with pytest.raises(PresetError, match="heads have 40 elements"):
        kv(other, type_k="q4_0")


def test_weights_are_the_tensor_table(model: Model) -> None:
    weights = weights_of(model.file)
    assert weights.total_bytes == EMBEDDING + 2 * LAYER + 256
    assert weights.tied_bytes == EMBEDDING


def test_tied_embeddings_are_on_both_sides_when_the_output_is_offloaded(model: Model) -> None:
    gpu, cpu = estimate(model, configuration(model), (GPU, CPU)).devices
    assert gpu.term(TermKind.WEIGHTS).nbytes == 2 * LAYER + 256 + EMBEDDING
    assert cpu.term(TermKind.WEIGHTS).nbytes == EMBEDDING


def test_the_output_is_the_first_layer_to_be_offloaded(model: Model) -> None:
    gpu, cpu = estimate(model, configuration(model, n_gpu_layers=1), (GPU, CPU)).devices
    assert gpu.term(TermKind.WEIGHTS).nbytes == EMBEDDING + 256
    assert gpu.term(TermKind.KV).nbytes == 0
    gpu, cpu = estimate(model, configuration(model, n_gpu_layers=2), (GPU, CPU)).devices
    assert gpu.term(TermKind.KV).nbytes == cpu.term(TermKind.KV).nbytes == kv(model) // 2
    gpu, _ = estimate(model, configuration(model, n_gpu_layers=0), (GPU, CPU)).devices
    assert set(gpu.terms) == {TermKind.COMPUTE, TermKind.OVERHEAD}, "it computes large batches"


def test_the_cache_stays_on_the_cpu_when_it_is_told_to(model: Model) -> None:
    gpu, cpu = estimate(model, configuration(model, offload_kqv=False), (GPU, CPU)).devices
    assert (gpu.term(TermKind.KV).nbytes, cpu.term(TermKind.KV).nbytes) == (0, kv(model))


def test_two_cards_share_the_layers(model: Model) -> None:
    twin = Device("GPU 1", "gpu", GIB, GIB)
    first, second, _ = estimate(model, configuration(model), (GPU, twin, CPU)).devices
    assert first.term(TermKind.KV).nbytes > 0
    assert second.term(TermKind.WEIGHTS).nbytes > 0


def test_each_number_has_its_source(model: Model) -> None:
    (cpu,) = estimate(model, configuration(model), (CPU,)).devices
    assert cpu.term(TermKind.KV).source is Source.EXACT
    assert cpu.term(TermKind.WEIGHTS).source is Source.EXACT
    assert cpu.term(TermKind.COMPUTE).source is Source.ESTIMATED
    assert cpu.term(TermKind.STATE).nbytes == 0
    assert cpu.total_bytes == sum(term.nbytes for term in cpu.terms.values())


@pytest.mark.parametrize("target", TARGETS)
def test_every_program_opens_the_slots_that_it_is_told(model: Model, target: Target) -> None:
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


def test_a_draft_model_is_counted_with_its_context(model: Model) -> None:
    alone = estimate(model, configuration(model), (CPU,)).devices[0]
    draft = DraftConfiguration(model.file.path, n_ctx=512)
    both = estimate(model, configuration(model, draft=draft), (CPU,), draft=model).devices[0]
    added = both.term(TermKind.DRAFT).nbytes
    assert both.term(TermKind.KV).nbytes == kv(model)
    assert added > kv(model, n_ctx=512) + alone.term(TermKind.WEIGHTS).nbytes
    assert both.total_bytes == alone.total_bytes + added


def test_the_largest_context_fits_and_the_next_does_not(model: Model) -> None:
    small = Device("CPU", "cpu", 150 * MIB, 150 * MIB)
    cost = estimator(model, (small,))
    found = max_n_ctx(configuration(model), cost, n_ctx_limit=1 << 20)
    assert found is not None
    assert cost(configuration(model, n_ctx=found)).fits()
    assert not cost(configuration(model, n_ctx=found + 256)).fits()
    assert max_n_ctx(configuration(model), cost, n_ctx_limit=512) == 512
    nothing = Device("CPU", "cpu", MIB, MIB)
    assert max_n_ctx(configuration(model), estimator(model, (nothing,)), n_ctx_limit=4096) is None


def test_a_context_beyond_training_and_slow_cuda_pairs_are_warned_of(model: Model) -> None:
    beyond = estimate(model, configuration(model, n_ctx=8192), (CPU,))
    assert "4096" in beyond.warnings[0]
    mixed = estimate(model, configuration(model, type_k="q8_0", type_v="q4_0"), (GPU, CPU))
    assert any("no kernel" in warning for warning in mixed.warnings)
    assert estimate(model, configuration(model), (CPU,)).warnings == ()


def test_sizes_are_read_and_written() -> None:
    assert parse_bytes("8GiB") == parse_bytes("8 g") == parse_bytes("8192MiB") == 8 * GIB
    assert parse_bytes("1,5 GB") == 1_500_000_000
    assert parse_bytes("8") == parse_bytes("8.0 ") == 8 * GIB
    assert parse_bytes("8589934592B") == 8 * GIB
    assert [format_bytes(n) for n in (900, 27 * MIB, 3 * GIB // 2, -2 * MIB, 5011 * MIB)] == [
        "900 B", "27 MiB", "1.5 GiB", "-2 MiB", "4.89 GiB",
    ]  # fmt: skip
    for wrong in ("", "eight", "-3GiB", "0", "5XB", "8589934592", f"{10**400}GiB"):
        with pytest.raises(HardwareError):
            parse_bytes(wrong)


def test_named_memory_stands_for_cards_that_are_not_there() -> None:
    found = devices(vram_bytes=(GIB, 2 * GIB))
    assert [(d.name, d.kind, d.free_bytes) for d in found[:2]] == [
        ("GPU 0", "gpu", GIB),
        ("GPU 1", "gpu", 2 * GIB),
    ]
    assert found[-1].kind == "cpu"


def test_a_next_token_head_weighs_nothing(tmp_path: Path) -> None:
    tensors = [
        ("token_embd.weight", (64, 96), 0, 0),
        ("blk.1.nextn.weight", (64, 32), 0, EMBEDDING),
    ]
    values = llama_values(**{"llama.nextn_predict_layers": 1})
    path = write(tmp_path / "n.gguf", header(values, tensors), data_bytes=EMBEDDING + LAYER)
    assert weights_of(read_model(path).file).total_bytes == EMBEDDING


def test_odd_heads_are_refused_with_flash_attention_only(tmp_path: Path) -> None:
    odd = llama_values(**{"llama.attention.key_length": 40})
    model = read_model(write(tmp_path / "odd.gguf", header(odd)))
    assert kv(model, type_k="q8_0", flash_attention=False) > 0


@pytest.mark.parametrize(
    ("gib", "mib"), [(8, 300), (24, 300), (52, 450), (79.6, 598), (80, 600), (141, 600)]
)
def test_the_context_of_a_larger_card_takes_more(gib: float, mib: int) -> None:
    """598 MiB is what an H100 of 79.6 GiB was measured to take (516 to 636)."""
    card = Device("card", "gpu", round(gib * GIB), round(gib * GIB))
    assert cuda_overhead_bytes(card) == mib * MIB
