"""Caches of architectures and keys that no model of the catalogue has, against llama.cpp."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.compute import compute_bytes
from engine.memory.dry_run import DryRun
from engine.memory.estimate import cache_shape, estimate, n_outputs
from engine.memory.hardware import Device
from engine.memory.kv_cache import layer_kv_bytes, layer_state_bytes
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.memory.weights import layer_bytes
from engine.model.architecture import Model
from tests.support.made_models import made_headers, written_model

pytestmark = pytest.mark.model

ROUNDING_BYTES = 2 * 5300
"""The log prints MiB with two decimals, once for each cache."""

GPU = Device("GPU 0", "gpu", 24 * GIB, 24 * GIB)
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
INPUTS = ("token_embd.weight", "position_embd.weight", "token_types.weight")
RARE = [label for label in made_headers() if label.startswith("rare ")]
"""Architectures of llama.cpp that the catalogue has no model of. PLM is not among them: that
llama.cpp stops when it lays out its values."""
ODD = [label for label in made_headers() if label.startswith("odd ")]
"""Catalogue models with rare keys."""


def configurations(model: Model) -> Iterator[Configuration]:
    plain = Configuration(model.file.path, 6000, n_ubatch=512, flash_attention="on")
    yield plain
    yield replace(plain, type_k="q8_0", type_v="q8_0")
    yield replace(plain, flash_attention="off")
    if model.architecture.name != "t5":  # llama.cpp stops: its encoder takes one sequence
        yield replace(plain, n_slots=4)
    yield replace(plain, n_slots=4, kv_unified=True)
    yield replace(plain, n_ctx=20000, n_ubatch=128)


@pytest.mark.parametrize("label", [*RARE, *ODD])
def test_cache_and_state_are_exact(label: str, tmp_path: Path, dry_run: DryRun) -> None:
    model = written_model(tmp_path / "m.gguf", made_headers()[label])
    assert model.architecture.doubts == ()
    for configuration in configurations(model):
        shape = cache_shape(configuration)
        held = sum(layer_kv_bytes(model.architecture, shape).values())
        held += sum(layer_state_bytes(model.architecture, shape).values())
        buffers = dry_run.measure(configuration, "llama-server")
        laid_out = sum(buffer.nbytes for buffer in buffers if buffer.kind in ("KV", "RS"))
        assert abs(held - laid_out) <= ROUNDING_BYTES, configuration


@pytest.mark.parametrize("label", RARE)
def test_a_gpu_that_takes_all_layers_takes_all_but_the_embeddings(
    label: str, tmp_path: Path
) -> None:
    model = written_model(tmp_path / "m.gguf", made_headers()[label])
    configuration = Configuration(model.file.path, 4096)
    on_gpu, on_cpu = estimate(model, configuration, (GPU, CPU), target="llama-server").devices
    assert TermKind.KV not in on_cpu.terms
    inputs = sum(tensor.nbytes for tensor in model.file.tensors if tensor.name in INPUTS)
    assert abs(on_cpu.term(TermKind.WEIGHTS).nbytes - inputs) <= MIB
    assert on_gpu.term(TermKind.WEIGHTS).nbytes == sum(layer_bytes(model.file))


@pytest.mark.parametrize("label", RARE)
def test_graphs_of_rare_architectures_are_close(
    label: str, tmp_path: Path, dry_run: DryRun
) -> None:
    model = written_model(tmp_path / "m.gguf", made_headers()[label])
    for configuration in configurations(model):
        shape, n_rows = cache_shape(configuration), n_outputs(configuration, "llama-server")
        buffers = dry_run.measure(configuration, "llama-server")
        laid_out = sum(buffer.nbytes for buffer in buffers if buffer.kind == "compute")
        formula = compute_bytes(model.architecture, shape, n_rows)
        assert abs(formula - laid_out) <= max(0.25 * laid_out, 8 * MIB), configuration
