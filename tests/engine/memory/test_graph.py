"""The buffers of the graph on GPUs, where this machine has none to ask."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, KVTypeName
from engine.memory.compute import attention_bytes
from engine.memory.cuda_kernels import (
    cast_bytes,
    cuda_copy_bytes,
    falls_off_flash_attention,
    has_cuda_kernel,
    scan_width,
)
from engine.memory.estimate import Estimate, estimate, shape_for
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.model.layers import Layer
from tests.support.made_models import shape_named

GPU = Device("GPU 0", "gpu", 80 * GIB, 80 * GIB)
SECOND = Device("GPU 1", "gpu", 80 * GIB, 80 * GIB)
CPU = Device("CPU", "cpu", 256 * GIB, 256 * GIB)
BASE = Configuration(Path("m.gguf"), 8192, flash_attention="on")
FIRST_STAND_IN, SECOND_STAND_IN = (Device(f"GPU {i}", "gpu", 24 * GIB, 24 * GIB) for i in range(2))


def compute(found: Estimate, device: Device) -> int:
    return next(d for d in found.devices if d.device == device).term(TermKind.COMPUTE).nbytes


def planned(name: str, *devices: Device, **changes: object) -> Estimate:
    now = replace(BASE, **changes)  # type: ignore[arg-type]  # tests say fields by name
    return estimate(shape_named(name).model(), now, (*devices, CPU))


@pytest.fixture(scope="module")
def llama() -> Model:
    return shape_named("llama-3.1-8b").model()


@pytest.mark.parametrize(
    ("types", "cast", "copied"),
    [
        (("f16", "f16"), 0, 0),
        (("q8_0", "q8_0"), 0, 512),
        (("q8_0", "f16"), 0, 256),
        (("bf16", "bf16"), 0, 512),
        (("f32", "f32"), 512, 0),
        (("f32", "bf16"), 256, 256),
        (("iq4_nl", "f16"), 0, 0),
    ],
)
def test_flash_attention_copies_one_layer_of_other_caches_to_f16(
    llama: Model, types: tuple[KVTypeName, KVTypeName], cast: int, copied: int
) -> None:
    now = replace(BASE, n_ctx=131072, type_k=types[0], type_v=types[1])
    shape = shape_for(llama.architecture, now, "kvchat", (GPU, CPU))
    assert cast_bytes(llama.architecture, shape) == cast * MIB
    assert cuda_copy_bytes(llama.architecture, shape) == copied * MIB
    off = replace(shape, flash_attention=False)
    assert cast_bytes(llama.architecture, off) == cuda_copy_bytes(llama.architecture, off) == 0


@pytest.mark.parametrize("devices", [(CPU,), (GPU, CPU)])
def test_the_copy_of_an_f32_cache_is_in_the_graph_of_every_device(
    llama: Model, devices: tuple[Device, ...]
) -> None:
    plain = planned("llama-3.1-8b", *devices[:-1], n_ctx=131072)
    cast = planned("llama-3.1-8b", *devices[:-1], n_ctx=131072, type_k="f32", type_v="f32")
    shape = shape_for(llama.architecture, replace(BASE, n_ctx=131072), "kvchat", devices)
    attention = attention_bytes(llama.architecture, shape) + 512 * MIB
    assert compute(cast, devices[0]) - compute(plain, devices[0]) > 400 * MIB
    assert abs(compute(cast, devices[0]) - attention) < 24 * MIB


def test_the_copy_of_latent_keys_in_f32_is_made_once_more_for_the_values_in_them() -> None:
    architecture = shape_named("deepseek-v2-lite").model().architecture
    now = replace(BASE, n_ctx=32768, type_k="f32", type_v="f32")
    shape = shape_for(architecture, now, "kvchat", (CPU,))
    assert cast_bytes(architecture, shape) == 2 * 32768 * (576 + 512)


def test_estimates_come_with_a_range_and_exact_numbers_without() -> None:
    (gpu, cpu) = planned("qwen3-30b-a3b", GPU).devices
    graph, cache = gpu.term(TermKind.COMPUTE), gpu.term(TermKind.KV)
    holes = 3 * 512 * 2048 * 4 + MIB
    assert graph.bounds == (round(0.8 * graph.nbytes) - holes, round(1.2 * graph.nbytes) + holes)
    assert cache.bounds is None
    assert cache.range == (cache.nbytes, cache.nbytes)
    assert cpu.term(TermKind.OVERHEAD).bounds is not None


@pytest.mark.parametrize(
    ("k", "v", "n_heads", "n_kv_heads", "is_there"),
    [
        (128, 128, 8, 8, True),
        (192, 128, 16, 2, True),
        (192, 128, 12, 1, False),
        (192, 128, 128, 128, False),
        (320, 256, 64, 2, True),
        (320, 256, 48, 3, False),
        (512, 512, 8, 8, False),
        (576, 512, 6, 2, True),
        (100, 100, 8, 8, False),
    ],
)
def test_kernels_of_cuda_want_groups_of_query_heads(
    llama: Model, k: int, v: int, n_heads: int, n_kv_heads: int, is_there: bool
) -> None:
    layer = Layer(n_kv_heads, k, v, n_heads)
    assert has_cuda_kernel(replace(llama.architecture, layers={0: layer})) == is_there


def test_attention_without_a_kernel_has_a_copy_of_the_cache_in_main_memory() -> None:
    there = planned("llama-3.1-8b", GPU, n_ctx=131072, type_k="q4_0", type_v="q4_0")
    gone = planned("llama-3.1-8b", GPU, n_ctx=131072, type_k="iq4_nl", type_v="iq4_nl")
    queries = 512 * 4096 * 4
    assert compute(gone, CPU) - compute(there, CPU) == 131072 * 2 * 1024 * 18 // 32 + queries


def test_a_gpu_without_layers_computes_large_batches_all_the_same() -> None:
    found = planned("gemma-3-12b", GPU, n_ctx=32768, n_gpu_layers=0)
    assert 319 * MIB < compute(found, GPU) < 400 * MIB, "llama.cpp's dry run says 319 MiB"
    small = planned("gemma-3-12b", GPU, n_ctx=32768, n_gpu_layers=0, n_batch=16, n_ubatch=16)
    assert compute(small, GPU) == 0


def test_a_scan_without_a_kernel_ends_flash_attention_where_layers_lie_apart() -> None:
    def scores(n_gpu_layers: int) -> bool:
        found = planned(
            "plamo-2-8b", GPU, n_ctx=32768, n_gpu_layers=n_gpu_layers, flash_attention="auto"
        )
        return compute(found, GPU) > GIB

    assert [scores(n) for n in (-1, 33, 7, 0)] == [False, False, True, False]


def test_scans_that_the_cpu_runs_for_two_gpus_lie_on_both_sides_four_times() -> None:
    changes = {"n_ctx": 62720, "type_k": "bf16", "type_v": "bf16", "tensor_split": (22.0, 11.0)}
    found = planned("plamo-2-8b", GPU, SECOND, **changes)
    said = {GPU: 1224, SECOND: 824, CPU: 1471}
    for device, mib in said.items():
        assert abs(compute(found, device) / MIB - mib) < 0.15 * mib, "llama.cpp's dry run"


def test_masks_of_chosen_tokens_cross_to_every_layer_of_the_second_gpu() -> None:
    found = planned("minimax-m3", GPU, SECOND, n_ctx=65536, tensor_split=(1.0, 1.0))
    for device, mib in {GPU: 1613, SECOND: 16140}.items():
        assert abs(compute(found, device) / MIB - mib) < 0.1 * mib, "llama.cpp's dry run"


def test_a_gpu_has_the_masks_of_its_own_layers() -> None:
    short, long = (
        planned("gemma-3-12b", GPU, SECOND, n_ctx=n_ctx, tensor_split=(5.0, 44.0))
        for n_ctx in (32768, 131072)
    )
    assert compute(long, GPU) == compute(short, GPU), "its five layers have windows"
    assert compute(long, SECOND) - compute(short, SECOND) == 4 * 512 * 98304 * 2


def test_layers_of_a_next_token_head_compute_nothing() -> None:
    model = shape_named("glm-4.5-air").model()
    assert model.architecture.n_blocks == model.architecture.n_layers + 1
    found = planned("glm-4.5-air", GPU, SECOND, n_gpu_layers=48, tensor_split=(46.0, 2.0))
    assert compute(found, SECOND) < 20 * MIB < compute(found, GPU)


def test_each_sparse_layer_of_glm_has_a_copy_of_the_mask_from_the_start() -> None:
    changes = {"n_ctx": 1048576, "type_k": "bf16", "type_v": "bf16", "tensor_split": (1.0, 1.0)}
    found = planned("glm-5.3-flash", GPU, SECOND, **changes)
    for device, mib in {GPU: 28376, SECOND: 24463}.items():
        assert abs(compute(found, device) / MIB - mib) < 0.03 * mib, "llama.cpp's dry run"


@pytest.mark.parametrize(
    ("name", "state", "inner", "heads", "has_kernel"),
    [
        ("mamba2", 128, 4096, 64, True),
        ("mamba2", 64, 4096, 64, False),
        ("mamba2", 128, 4096, 512, False),
        ("mamba", 16, 5120, 0, True),
        ("mamba", 16, 5000, 0, False),
        ("mamba", 32, 5120, 0, False),
    ],
)
def test_cuda_scans_states_and_heads_of_some_sizes_alone(
    name: str, state: int, inner: int, heads: int, has_kernel: bool
) -> None:
    model = shape_named("codestral-mamba-7b" if name == "mamba2" else "mamba-2.8b").model()
    values = {"state_size": state, "inner_size": inner, "time_step_rank": heads}
    file = replace(
        model.file,
        values={**model.file.values, **{f"{name}.ssm.{key}": n for key, n in values.items()}},
    )
    assert scan_width(replace(model, file=file)) == (0 if has_kernel else inner)


@pytest.mark.parametrize(("n_gpu_layers", "falls_off"), [(3, False), (4, True), (5, False)])
def test_attention_before_the_first_states_on_a_gpu_ends_automatic_flash_attention(
    n_gpu_layers: int, *, falls_off: bool
) -> None:
    model = shape_named("lfm2-1.2b").model()  # layer 12 attends, layer 13 keeps a state
    now = replace(BASE, n_gpu_layers=n_gpu_layers, flash_attention="auto")
    assert falls_off_flash_attention(model.architecture, now, (GPU, CPU)) is falls_off


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("llama-3.1-8b", {}, [138770442]),
        ("llama-3.1-8b", {"flash_attention": "off"}, [608528394]),
        ("llama-3.1-8b", {}, [121645184, 33912842]),
        ("llama-3.1-8b", {"n_gpu_layers": 20}, [142084352, 33912842]),
        ("llama-3.1-8b", {"n_gpu_layers": 0}, [142084352, 33912842]),
        ("llama-3.1-8b", {"n_gpu_layers": 20, "n_batch": 16, "n_ubatch": 16}, [8470528, 12798314]),
        ("llama-3.1-8b", {"n_gpu_layers": 1, "n_batch": 8, "n_ubatch": 8}, [4235264, 10766474]),
        ("llama-3.1-8b", {}, [180396032, 213950976, 84281642]),
        ("llama-3.1-8b", {"offload_kqv": False, "n_ctx": 131072}, [704645120, 159741962]),
        (
            "llama-3.1-8b",
            {"n_ctx": 131072, "type_k": "bf16", "type_v": "bf16"},
            [713042048, 159741962],
        ),
        ("llama-3.1-8b", {"type_k": "iq4_nl", "type_v": "iq4_nl"}, [104949760, 51820554]),
        ("llama-3.1-8b", {"offload_kqv": False, "flash_attention": "off"}, [603981824, 46491658]),
        ("gpt-oss-20b", {"n_cpu_moe": -1}, [217561216, 34717964]),
        ("phi-3-mini-4k", {"n_ctx": 2048, "offload_kqv": False}, [73402368, 35681333]),
        ("gpt2", {"n_ctx": 1024}, [12066944, 9166445]),
        ("gemma-3-12b", {"type_k": "q8_0", "type_v": "q8_0"}, [192094208, 223552000, 99303808]),
        ("falcon-h1-7b", {}, [99625216, 29896832]),
        ("jamba-mini", {}, [214251648]),
        ("olmo-2-7b", {}, [116362379]),
        ("qwen3-30b-a3b", {"n_gpu_layers": 24}, [257949952, 27128558]),
        (
            "pythia-1.4b",
            {"n_gpu_layers": 12, "type_k": "f32", "type_v": "f32"},
            [218130432, 32743021],
        ),
        ("command-r-32b", {}, [243974068]),
        ("gemma-3n-e4b", {}, [185620576]),
        ("gemma-3n-e4b", {"tensor_split": (3.0, 1.0)}, [427892736, 580952576, 94986624]),
        ("gemma-3n-e4b", {"tensor_split": (1.0, 3.0)}, [427892736, 467771904, 94986624]),
        ("gemma-4-26b-a4b", {}, [110643328, 39342176]),
        ("qwen3-next-80b-a3b", {"n_cpu_moe": -1}, [910164096, 27128590]),
        ("qwen3.6-35b-a3b", {"n_gpu_layers": 20}, [309329920, 46409443]),
        ("rwkv-6-world-7b", {}, [124061824]),
        ("rwkv-7-world-2.9b", {}, [95899904, 14944384]),
        ("qrwkv6-32b", {}, [193483008, 31312654]),
        ("qwen3-vl-8b", {}, [178129646]),
        ("qwen3-vl-8b", {}, [134234240, 60689134]),
        ("qwen3-vl-8b", {"tensor_split": (1.0, 20.0)}, [201392128, 335413760, 186573838]),
        ("qwen3-vl-30b-a3b", {"n_gpu_layers": 24}, [270532864, 39717614]),
    ],
)
def test_buffers_are_as_large_as_llama_cpp_s_dry_run_says(
    name: str, changes: dict[str, object], expected: list[int]
) -> None:
    """Headers and GPUs: `tests/support/dry_run_process.py`, `benchmarks/stand_in_gpu.cpp`."""
    gpus = (FIRST_STAND_IN, SECOND_STAND_IN)[: len(expected) - 1]
    found = planned(name, *gpus, **changes)
    for device, laid_out in zip(found.devices, expected, strict=True):
        term = device.term(TermKind.COMPUTE)
        assert abs(term.nbytes - laid_out) <= 0.03 * device.total_bytes, device
        assert term.range[0] <= laid_out <= term.range[1], device
