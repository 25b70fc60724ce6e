"""The buffers of the graph on GPUs, where this machine has none to ask."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, TensorOverride
from engine.memory.compute import attention_bytes, layers_bytes, logits_bytes
from engine.memory.estimate import Estimate, TermKind, estimate, shape_for
from engine.memory.graph import f16_copy_bytes
from engine.memory.hardware import Device
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.model.catalog import find_entry

GPU = Device("GPU 0", "gpu", 80 * GIB, 80 * GIB)
SECOND = Device("GPU 1", "gpu", 80 * GIB, 80 * GIB)
CPU = Device("CPU", "cpu", 256 * GIB, 256 * GIB)
BASE = Configuration(Path("m.gguf"), 8192, flash_attention="on")


def compute(found: Estimate, device: Device) -> int:
    return next(d for d in found.devices if d.device == device).term(TermKind.COMPUTE).nbytes


def planned(name: str, *devices: Device, **changes: object) -> Estimate:
    now = replace(BASE, **changes)  # type: ignore[arg-type]  # tests say fields by name
    return estimate(find_entry(name).model(), now, (*devices, CPU))


@pytest.fixture(scope="module")
def llama() -> Model:
    return find_entry("llama-3.1-8b").model()


def test_cuda_copies_one_layer_of_a_quantised_cache_to_f16(llama: Model) -> None:
    shape = shape_for(llama.architecture, replace(BASE, n_ctx=131072), "kvchat", (GPU, CPU))
    assert f16_copy_bytes(llama.architecture, shape) == 0
    both = replace(shape, type_k="q8_0", type_v="q8_0")
    assert f16_copy_bytes(llama.architecture, both) == 512 * MIB
    assert f16_copy_bytes(llama.architecture, replace(both, type_v="f16")) == 256 * MIB
    assert f16_copy_bytes(llama.architecture, replace(both, flash_attention=False)) == 0


def test_the_f16_copy_lives_beside_attention_and_not_beside_the_feed_forward_block() -> None:
    short = {"n_ctx": 4096, "type_k": "q8_0", "type_v": "q8_0"}
    plain = compute(planned("llama-3.1-8b", GPU, n_ctx=4096), GPU)
    assert compute(planned("llama-3.1-8b", GPU, **short), GPU) == plain
    long = {**short, "n_ctx": 131072}
    model = find_entry("llama-3.1-8b").model()
    shape = shape_for(model.architecture, replace(BASE, **long), "kvchat", (GPU, CPU))  # type: ignore[arg-type]
    expected = attention_bytes(model.architecture, shape) + 512 * MIB
    assert compute(planned("llama-3.1-8b", GPU, **long), GPU) == expected


def test_two_gpus_keep_four_copies_of_the_inputs() -> None:
    one = compute(planned("llama-3.1-8b", GPU), GPU)
    two = planned("llama-3.1-8b", GPU, SECOND)
    embedded, mask = 512 * 4096 * 4, 512 * 8192 * 2
    assert compute(two, GPU) - one == 3 * (embedded + mask), "the first has its own already"
    assert compute(two, SECOND) - one == 4 * (embedded + mask)
    alone = planned("llama-3.1-8b", GPU)
    assert compute(two, CPU) - compute(alone, CPU) == 3 * (embedded + mask)
    for changes in ({"offload_kqv": False}, {"n_gpu_layers": 20}, {"split_mode": "none"}):
        other = planned("llama-3.1-8b", GPU, SECOND, **changes)
        assert compute(other, CPU) < compute(two, CPU)


def test_a_cache_in_main_memory_is_copied_for_one_layer(llama: Model) -> None:
    shape = shape_for(llama.architecture, replace(BASE, n_ctx=131072), "kvchat", (GPU, CPU))
    beside = attention_bytes(llama.architecture, shape) + layers_bytes(llama.architecture, shape)
    found = planned("llama-3.1-8b", GPU, n_ctx=131072, offload_kqv=False)
    assert compute(found, GPU) == beside // 2 + 512 * MIB


def test_gpus_that_share_a_cache_across_hold_copies_of_it() -> None:
    split = planned("gemma-3n-e4b", GPU, SECOND, tensor_split=(3.0, 1.0))
    shape = shape_for(find_entry("gemma-3n-e4b").model().architecture, BASE, "kvchat", (GPU, CPU))
    layer = 2 * 2 * 256 * 2 * shape.n_cells
    plain = planned("gemma-3n-e4b", GPU)
    assert compute(split, SECOND) - compute(plain, GPU) > 8 * layer
    ends_before = planned("gemma-3n-e4b", GPU, SECOND, tensor_split=(1.0, 3.0))
    assert compute(ends_before, SECOND) - compute(plain, GPU) < 8 * layer


def test_weights_of_main_memory_visit_the_first_gpu(llama: Model) -> None:
    partial = compute(planned("llama-3.1-8b", GPU, n_gpu_layers=20), GPU)
    whole = compute(planned("llama-3.1-8b", GPU), GPU)
    largest = max(t.nbytes for t in llama.file.tensors if t.name.startswith("blk.0."))
    assert partial - whole == largest
    few = {"n_ubatch": 16, "n_batch": 16}
    assert compute(planned("llama-3.1-8b", GPU, n_gpu_layers=20, **few), GPU) < partial - largest


def test_experts_in_main_memory_visit_the_gpu_one_tensor_at_a_time() -> None:
    on_gpu, moved = planned("gpt-oss-20b", GPU), planned("gpt-oss-20b", GPU, n_cpu_moe=-1)
    experts = [
        t for t in find_entry("gpt-oss-20b").model().file.tensors if "_exps.weight" in t.name
    ]
    assert compute(moved, GPU) - compute(on_gpu, GPU) == max(t.nbytes for t in experts)
    assert compute(moved, CPU) == compute(on_gpu, CPU)
    overridden = TensorOverride("ffn_.*_exps", "CPU")
    same = planned("gpt-oss-20b", GPU, tensor_overrides=(overridden,))
    weights = [d.term(TermKind.WEIGHTS).nbytes for d in same.devices]
    assert weights == [d.term(TermKind.WEIGHTS).nbytes for d in moved.devices]


def test_layers_that_differ_leave_holes_beside_visiting_experts() -> None:
    model = find_entry("qwen3-next-80b-a3b").model()
    experts = max(t.nbytes for t in model.file.tensors if "_exps.weight" in t.name)
    on_gpu = planned("qwen3-next-80b-a3b", GPU)
    moved = planned("qwen3-next-80b-a3b", GPU, n_cpu_moe=-1)
    assert compute(moved, GPU) - compute(on_gpu, GPU) == round(1.85 * experts)


def test_layers_of_main_memory_are_computed_there_for_small_batches_only() -> None:
    small = {"n_ubatch": 16, "n_batch": 16, "n_gpu_layers": 20}
    model = find_entry("llama-3.1-8b").model()
    shape = shape_for(model.architecture, replace(BASE, n_ubatch=16), "kvchat", (GPU, CPU))
    rows = 17 * 128_256 * 4
    found = compute(planned("llama-3.1-8b", GPU, **small), CPU)
    assert found == layers_bytes(model.architecture, shape) + rows
    large = compute(planned("llama-3.1-8b", GPU, n_gpu_layers=20), CPU)
    assert large == 512 * 2 * 4096 * 4 + 512 * 8192 * 2 + rows, "the first GPU computes them"


def test_a_gpu_with_the_output_layer_alone_needs_its_logits(llama: Model) -> None:
    shape = shape_for(llama.architecture, BASE, "llama-server", (CPU,))
    found = estimate(llama, replace(BASE, n_gpu_layers=1, n_ubatch=8), (GPU, CPU))
    at_8 = replace(shape, n_ubatch=8)
    assert compute(found, GPU) == logits_bytes(llama.architecture, at_8, 17)
    assert layers_bytes(llama.architecture, at_8) > 0


def test_estimates_come_with_a_range_and_exact_numbers_without() -> None:
    (gpu, cpu) = planned("qwen3-30b-a3b", GPU).devices
    graph, weights = gpu.term(TermKind.COMPUTE), gpu.term(TermKind.WEIGHTS)
    assert graph.low_bytes == round(0.75 * graph.nbytes)
    assert graph.high_bytes == round(1.25 * graph.nbytes)
    assert (weights.low_bytes, weights.high_bytes) == (None, None)
    assert cpu.term(TermKind.OVERHEAD).low_bytes is not None
