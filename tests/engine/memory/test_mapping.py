"""What a load maps, repacks and may give back, beside what llama.cpp itself reports."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration
from engine.events import BufferSize
from engine.memory.dry_run import measured_bytes
from engine.memory.estimate import estimate
from engine.memory.hardware import Device, find_cpu
from engine.memory.placement import MappedWeights
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model, read_model
from engine.model.ggml import TYPE_NUMBERS
from tests.engine.memory.conftest import WeightsOf
from tests.support.made_models import made_headers, written_model

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB, instructions="avx512")
GPU = Device("GPU 0", "gpu", 24 * GIB, 24 * GIB)
REPACKED, ROUNDING = "CPU_REPACK", MIB // 100


def small_model(folder: Path, name: str, kind: str) -> Model:
    """A model of two layers whose matrices, and those of its experts, are of one type."""
    snapshot = made_headers()[f"short {name}"]
    types = {
        each.name: TYPE_NUMBERS[kind]
        for each in snapshot.tensors()
        if len(each.shape) > 1
        and each.name.endswith(".weight")
        and "norm" not in each.name
        and "ffn_gate_inp" not in each.name
        and each.shape[0] % 256 == 0
    }
    return written_model(folder / "m.gguf", snapshot, types)


def weights_in_ram(model: Model, *devices: Device, **settings: object) -> tuple[MappedWeights, int]:
    """How the weights lie, and what the plan counts for them."""
    now = replace(Configuration(model.file.path, 4096), **settings)  # type: ignore[arg-type]
    found = estimate(model, now, devices).devices[-1]
    return found.mapped[TermKind.WEIGHTS], found.term(TermKind.WEIGHTS).nbytes


@pytest.mark.model
@pytest.mark.parametrize(
    "which", ["starter_path", pytest.param("gemma_path", marks=pytest.mark.slow)]
)
def test_a_load_maps_and_repacks_what_was_planned(
    which: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(which)
    backend = LlamaCppBackend(Configuration(path, 512), NativeLog())
    loaded = [each for each in backend.buffers if each.kind == "model"]
    backend.close()
    lies, needed = weights_in_ram(read_model(path), find_cpu(), n_ctx=512)
    mapped = sum(each.nbytes for each in loaded if each.is_mapped)
    copied = sum(each.nbytes for each in loaded if not each.is_mapped)
    assert abs(mapped - lies.mapped) <= ROUNDING
    assert abs(copied - lies.repacked) <= ROUNDING
    assert abs(mapped + copied - lies.reclaimable - needed) <= 2 * ROUNDING


@pytest.mark.model
@pytest.mark.parametrize("kind", ["q4_0", "q4_K", "q6_K", "q2_K"])
@pytest.mark.parametrize(
    "name",
    [
        "qwen3-0.6b",
        "qwen3-30b-a3b",
        "gemma-3n-e2b",
        "deepseek-v3",
        "qwen3-next-80b-a3b",
        "mamba-2.8b",
        "codeshell-7b",
    ],
)
def test_what_is_repacked_is_what_the_dry_run_repacks(
    name: str, kind: str, tmp_path: Path, laid_out_weights: WeightsOf
) -> None:
    model = small_model(tmp_path, name, kind)
    lies, needed = weights_in_ram(model, find_cpu())
    assert lies.repacked == laid_out_weights(model.file.path).get(REPACKED, 0)
    assert needed == lies.mapped - lies.reclaimable + lies.repacked


def test_weights_that_are_not_mapped_leave_nothing_to_take_back(tmp_path: Path) -> None:
    model = small_model(tmp_path, "qwen3-0.6b", "q4_0")
    mapped, needed = weights_in_ram(model, CPU)
    read, as_much = weights_in_ram(model, CPU, use_mmap=False)
    assert mapped.reclaimable > 0
    assert read == MappedWeights(0, 0, mapped.repacked)
    assert as_much == needed


def test_nothing_is_repacked_where_that_is_off_or_a_gpu_pins_memory(tmp_path: Path) -> None:
    model = small_model(tmp_path, "qwen3-0.6b", "q4_0")
    twice, counted = weights_in_ram(model, CPU)
    for plain, needed in (
        weights_in_ram(model, CPU, use_extra_buffers=False),
        weights_in_ram(model, GPU, CPU, n_gpu_layers=0),
    ):
        assert (plain.repacked, plain.reclaimable) == (0, 0)
        assert needed < counted, "tied embeddings are there once"
        assert plain.mapped >= twice.mapped


def test_a_log_counts_as_the_plan_does(tmp_path: Path) -> None:
    model = small_model(tmp_path, "qwen3-0.6b", "q4_0")
    planned = estimate(model, Configuration(model.file.path, 4096), (CPU,))
    lies = planned.devices[0].mapped[TermKind.WEIGHTS]
    buffers = (
        BufferSize("CPU_Mapped", "model", lies.mapped),
        BufferSize(REPACKED, "model", lies.repacked),
    )
    found = measured_bytes(buffers, planned.devices)
    assert found == {("CPU", TermKind.WEIGHTS): planned.devices[-1].term(TermKind.WEIGHTS).nbytes}
