"""The buffers of the graph on GPUs, where this machine has none to ask."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.cuda_kernels import (
    falls_off_flash_attention,
    has_cuda_kernel,
    scan_width,
)
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.layers import Layer
from tests.support.made_models import shape_named

GPU = Device("GPU 0", "gpu", 80 * GIB, 80 * GIB)
SECOND = Device("GPU 1", "gpu", 80 * GIB, 80 * GIB)
CPU = Device("CPU", "cpu", 256 * GIB, 256 * GIB)
BASE = Configuration(Path("m.gguf"), 8192, flash_attention="on")
FIRST_STAND_IN, SECOND_STAND_IN = (Device(f"GPU {i}", "gpu", 24 * GIB, 24 * GIB) for i in range(2))


BUFFERS = json.loads(Path(__file__).with_name("graph_buffers.json").read_text(encoding="utf-8"))


def compute(found: Estimate, device: Device) -> int:
    return next(d for d in found.devices if d.device == device).term(TermKind.COMPUTE).nbytes


def planned(name: str, *devices: Device, **changes: object) -> Estimate:
    now = replace(BASE, **changes)  # type: ignore[arg-type]  # tests say fields by name
    return estimate(shape_named(name).model(), now, (*devices, CPU))


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
    k: int, v: int, n_heads: int, n_kv_heads: int, is_there: bool
) -> None:
    llama = shape_named("llama-3.1-8b").model().architecture
    layer = Layer(n_kv_heads, k, v, n_heads)
    assert has_cuda_kernel(replace(llama, layers={0: layer})) == is_there


def test_a_scan_without_a_kernel_ends_flash_attention_where_layers_lie_apart() -> None:
    def scores(n_gpu_layers: int) -> bool:
        found = planned(
            "plamo-2-8b", GPU, n_ctx=32768, n_gpu_layers=n_gpu_layers, flash_attention="auto"
        )
        return compute(found, GPU) > GIB

    assert [scores(n) for n in (-1, 33, 7, 0)] == [False, False, True, False]


def test_layers_of_a_next_token_head_compute_nothing() -> None:
    model = shape_named("glm-4.5-air").model()
    assert model.architecture.n_blocks == model.architecture.n_layers + 1
    found = planned("glm-4.5-air", GPU, SECOND, n_gpu_layers=48, tensor_split=(46.0, 2.0))
    assert compute(found, SECOND) < 20 * MIB < compute(found, GPU)


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


@pytest.mark.parametrize(("name", "changes", "expected"), BUFFERS)
def test_buffers_are_as_large_as_llama_cpp_s_dry_run_says(
    name: str, changes: dict[str, object], expected: list[int | None]
) -> None:
    """Headers and GPUs: `tests/support/dry_run_process.py`, `benchmarks/stand_in_gpu.cpp`."""
    gpus = (FIRST_STAND_IN, SECOND_STAND_IN)[: len(expected) - 1]
    fields = {key: tuple(n) if isinstance(n, list) else n for key, n in changes.items()}
    found = planned(name, *gpus, **fields)
    for device, laid_out in zip(found.devices, expected, strict=True):
        if laid_out is None:
            continue  # it was not written down
        term = device.term(TermKind.COMPUTE)
        assert abs(term.nbytes - laid_out) <= 0.03 * device.total_bytes, device
        assert term.range[0] <= laid_out <= term.range[1], device
