"""Tied embeddings that llama.cpp repacks for the CPU lie in memory twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.memory.estimate import estimate
from engine.memory.hardware import (
    Device,
    Instructions,
    Processor,
    described_processor,
    find_cpu,
    instructions_of,
)
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.memory.weights import is_repacked
from engine.model.architecture import Model
from engine.model.ggml import TYPE_NUMBERS, TYPES_BY_NAME
from engine.model.gguf import TensorInfo
from tests.engine.memory.conftest import WeightsOf
from tests.support.made_models import made_headers, written_model

GPU = Device("GPU 0", "gpu", 24 * GIB, 24 * GIB)
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
EMBEDDINGS = "token_embd.weight"


def tied_model(folder: Path, kind: str, n_vocab: int = 1024) -> Model:
    short = made_headers()["short qwen3-0.6b"]
    outside = [f"{EMBEDDINGS} f32 1024 {n_vocab}", "output_norm.weight f32 1024"]
    snapshot = replace(short, n_vocab=n_vocab, outside=outside)
    return written_model(folder / "m.gguf", snapshot, {EMBEDDINGS: TYPE_NUMBERS[kind]})


def weights(model: Model, *devices: Device, n_gpu_layers: int = -1) -> int:
    now = Configuration(model.file.path, 4096, n_gpu_layers=n_gpu_layers)
    return estimate(model, now, devices).devices[-1].term(TermKind.WEIGHTS).nbytes


@pytest.mark.parametrize(
    ("kind", "n_rows", "repacked_by"),
    [
        ("q4_0", 1024, {"avx2", "avx512", "arm"}),
        ("q4_0", 1028, {"arm"}),
        ("q4_K", 1028, set()),
        ("q6_K", 1024, {"arm"}),
        ("q5_K", 1024, {"arm"}),
        ("q8_0", 1028, {"arm"}),
        ("q2_K", 1024, {"avx512"}),
        ("iq4_nl", 1024, {"avx2", "avx512", "arm"}),
        ("q5_0", 1024, set()),
        ("f16", 1024, set()),
    ],
)
def test_types_are_repacked_by_what_the_processor_can(
    kind: str, n_rows: int, repacked_by: set[Instructions]
) -> None:
    tensor = TensorInfo(EMBEDDINGS, (256, n_rows), TYPES_BY_NAME[kind], 0, 0)
    every: tuple[Instructions, ...] = ("none", "avx2", "avx512", "arm")
    assert {name for name in every if is_repacked(tensor, name)} == repacked_by


def test_repacked_embeddings_are_counted_twice_on_the_cpu_alone(tmp_path: Path) -> None:
    model = tied_model(tmp_path, "q6_K")
    arm = replace(CPU, instructions="arm")
    own = next(tensor.nbytes for tensor in model.file.tensors if tensor.name == EMBEDDINGS)
    assert weights(model, arm) - weights(model, CPU) == own
    assert weights(model, GPU, arm) == weights(model, GPU, CPU) == own
    pinned = weights(model, GPU, arm, n_gpu_layers=0)
    assert pinned == weights(model, CPU), "beside a GPU with pinned memory nothing is repacked"
    metal = replace(GPU, is_unified=True)
    assert weights(model, metal, arm, n_gpu_layers=0) == weights(model, arm)


@pytest.mark.model
@pytest.mark.parametrize("kind", ["q4_0", "q4_K", "iq4_nl", "q6_K", "q8_0", "q5_0", "f16"])
@pytest.mark.parametrize("n_vocab", [1024, 1028])
def test_tied_embeddings_have_the_size_of_the_dry_run(
    kind: str, n_vocab: int, tmp_path: Path, laid_out_weights: WeightsOf
) -> None:
    model = tied_model(tmp_path, kind, n_vocab)
    assert weights(model, find_cpu()) == sum(laid_out_weights(model.file.path).values())


@pytest.mark.parametrize(
    ("features", "is_arm", "found"),
    [
        ({"sse4_2"}, False, "none"),
        ({"avx2", "fma"}, False, "avx2"),
        ({"avx2", "avx512f"}, False, "avx512"),
        ({"fp", "asimd"}, True, "none"),
        ({"asimd", "asimddp", "i8mm", "sve"}, True, "arm"),
    ],
)
def test_a_processor_is_known_by_its_features(
    features: set[str],
    is_arm: bool,
    found: Instructions,
) -> None:
    assert instructions_of(features, is_arm=is_arm) == found


def test_the_processor_is_named_and_able_as_the_first_one_that_the_system_lists() -> None:
    text = "processor\t: 0\nmodel name\t: AMD EPYC: 7763\nflags\t\t: fpu avx2\n\nmodel name\t: b\n"
    assert described_processor(text) == Processor("AMD EPYC: 7763", frozenset({"fpu", "avx2"}))
    assert described_processor("Features\t: asimd asimddp\n").features == {"asimd", "asimddp"}
