"""The buffers of the graph on GPUs, where this machine has none to ask."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.compute import without_cuda_kernel
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
    now = replace(BASE, **changes)  # type: ignore[arg-type]  # fields by name
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
def test_cuda_kernels_need_groups_of_query_heads(
    k: int, v: int, n_heads: int, n_kv_heads: int, is_there: bool
) -> None:
    llama = shape_named("llama-3.1-8b").model().architecture
    layer = Layer(n_kv_heads, k, v, n_heads)
    assert (not without_cuda_kernel(replace(llama, layers={0: layer}))) == is_there


@pytest.mark.parametrize(
    ("name", "changes", "like"),
    [
        ("llama-3.1-8b", {}, "on"),
        ("llama-3.1-8b", {"type_k": "iq4_nl"}, "off"),
        ("minicpm3-4b", {}, "off"),
    ],
)
def test_auto_uses_flash_attention_where_cuda_has_a_kernel(
    name: str, changes: dict[str, object], like: str
) -> None:
    changes |= {"n_gpu_layers": 99}
    auto, on, off = (
        compute(planned(name, GPU, flash_attention=mode, **changes), GPU)
        for mode in ("auto", "on", "off")
    )
    assert on != off
    assert auto == {"on": on, "off": off}[like]


def test_layers_of_an_mtp_head_compute_nothing() -> None:
    model = shape_named("glm-4.5-air").model()
    assert model.architecture.n_blocks == model.architecture.n_layers + 1
    found = planned("glm-4.5-air", GPU, SECOND, n_gpu_layers=48, tensor_split=(46.0, 2.0))
    assert compute(found, SECOND) < 20 * MIB < compute(found, GPU)


@pytest.mark.parametrize(("name", "changes", "expected"), BUFFERS)
def test_buffers_are_those_of_llama_cpp_s_dry_run(
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
