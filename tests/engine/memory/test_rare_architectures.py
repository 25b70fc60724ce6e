"""Caches of architectures and keys that no model of the catalogue has, against llama.cpp."""

from collections.abc import Iterator, Mapping
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
from engine.memory.weights import weights_of
from engine.model.architecture import Model
from engine.model.gguf_header import Value
from tests.made_models import catalog_keys, made_model
from tests.rare_architectures import RARE, Rare

pytestmark = pytest.mark.model

ROUNDING_BYTES = 2 * 5300
"""The log prints MiB with two decimals, once for each cache."""

GPU = Device("GPU 0", "gpu", 24 * GIB, 24 * GIB)
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
INPUTS = ("token_embd.weight", "position_embd.weight", "token_types.weight")
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
Changes = dict[str, Value | None]

ODD: dict[str, tuple[str, Changes]] = {
    "a gemma 2 that names no window": ("gemma-2-2b", {WINDOW: None}),
    "a window of no tokens": ("gemma-2-2b", {WINDOW: 0}),
    "a gemma 3 without a window": ("gemma-3-1b", {WINDOW: None, PATTERN: None}),
    "a gemma 3 with a window of 0": ("gemma-3-1b", {WINDOW: 0}),
    "another period": ("gemma-3-1b", {WINDOW: 512, PATTERN: 3}),
    "every layer slides": ("gemma-3-1b", {WINDOW: 512, PATTERN: 0}),
    "layers that slide by a list": ("gemma-3-1b", {PATTERN: (1, 1, 0) * 4}),
    "no layers that share a cache": ("gemma-4-e2b", {"attention.shared_kv_layers": 0}),
    "a llama 4 without a window": ("llama-4-scout", {WINDOW: 0}),
    "a llama 4 with another window": ("llama-4-scout", {WINDOW: 512}),
    "exaone 4 of 32 layers": ("exaone-4.0-1.2b", {WINDOW: 4096, "block_count": 32}),
    "exaone 4 of 64 layers": ("exaone-4.0-1.2b", {WINDOW: 1024, "block_count": 64}),
    "a phi 3 with a window": ("phi-4-mini", {WINDOW: 2047}),
    "a qwen 2 with a window": ("qwen2.5-0.5b", {WINDOW: 1024}),
    "an lfm 2 with a window": ("lfm2-1.2b", {WINDOW: 1024}),
    "a window that is not the file's": ("smallthinker-21b-a3b", {WINDOW: 512}),
    "every third layer attends": ("qwen3.5-4b", {"full_attention_interval": 3}),
    "a next-token head that deepseek 4 keeps a window for": (
        "deepseek-v4-flash",
        {"nextn_predict_layers": 1, "attention.compress_ratios": (0, 0, *(4, 128) * 4, 4, 0)},
    ),
    "keys of other states in an lfm 2": (
        "lfm2-1.2b", {"wkv.head_size": 64, "kda.head_dim": 128, "ssm.inner_size": 4096},
    ),
    "keys of other states in a qwen 3.5": (
        "qwen3.5-4b", {"wkv.head_size": 64, "kda.head_dim": 128, "shortconv.l_cache": 3},
    ),
    "keys of other states in a mamba 2": (
        "codestral-mamba-7b", {"wkv.head_size": 64, "kda.head_dim": 64},
    ),
    "groups in a jamba": ("jamba-mini", {"ssm.group_count": 4}),
    "layers that are recurrent by a list": (
        "qwen3.5-4b", {"attention.recurrent_layers": (1, 1, 1, 0) * 3,
                       "full_attention_interval": None},
    ),
}  # fmt: skip
N_LAYERS = 12


@pytest.fixture(scope="module")
def dry_run() -> Iterator[DryRun]:
    with DryRun() as runner:
        yield runner


def configurations(model: Model) -> Iterator[Configuration]:
    plain = Configuration(model.file.path, 6000, n_ubatch=512, flash_attention="on")
    yield plain
    yield replace(plain, type_k="q8_0", type_v="q8_0")
    yield replace(plain, flash_attention="off")
    if model.architecture.name != "t5":  # llama.cpp stops: its encoder takes one sequence
        yield replace(plain, n_slots=4)
    yield replace(plain, n_slots=4, kv_unified=True)
    yield replace(plain, n_ctx=20000, n_ubatch=128)


def shortened(values: Mapping[str, Value]) -> dict[str, Value | None]:
    """Give a model's keys with its first layers alone."""
    n_layers = values["block_count"]
    return {
        key: value[:N_LAYERS] if isinstance(value, tuple) and len(value) == n_layers else value
        for key, value in values.items()
    } | {"block_count": N_LAYERS}


def rare_model(rare: Rare, folder: Path) -> Model:
    return made_model(
        folder / "m.gguf",
        rare.architecture,
        rare.values,
        traits=rare.traits,
        layout=rare.layout,
        n_vocab=rare.n_vocab,
    )


def kept_bytes(model: Model, configuration: Configuration) -> int:
    shape = cache_shape(configuration)
    cache = layer_kv_bytes(model.architecture, shape)
    return sum(cache.values()) + sum(layer_state_bytes(model.architecture, shape).values())


def check_cache(model: Model, dry_run: DryRun) -> None:
    for configuration in configurations(model):
        buffers = dry_run.measure(configuration, "llama-server")
        laid_out = sum(buffer.nbytes for buffer in buffers if buffer.kind in ("KV", "RS"))
        assert abs(kept_bytes(model, configuration) - laid_out) <= ROUNDING_BYTES, configuration


@pytest.mark.parametrize("rare", RARE, ids=lambda rare: rare.architecture)
def test_cache_and_state_of_rare_architectures_are_exact(
    rare: Rare, tmp_path: Path, dry_run: DryRun
) -> None:
    model = rare_model(rare, tmp_path)
    assert model.architecture.doubts == ()
    check_cache(model, dry_run)


@pytest.mark.parametrize(("name", "changes"), ODD.values(), ids=list(ODD))
def test_odd_keys_count_as_llama_cpp_counts_them(
    name: str, changes: Changes, tmp_path: Path, dry_run: DryRun
) -> None:
    entry = catalog_keys(name)
    values = {**shortened(entry.values), **changes}
    values = {key: value for key, value in values.items() if value is not None}
    path = tmp_path / "m.gguf"
    check_cache(made_model(path, entry.architecture, values, traits=entry.traits), dry_run)


@pytest.mark.parametrize("rare", RARE, ids=lambda rare: rare.architecture)
def test_a_gpu_that_takes_all_layers_takes_all_but_the_embeddings(
    rare: Rare, tmp_path: Path
) -> None:
    model = rare_model(rare, tmp_path)
    configuration = Configuration(model.file.path, 4096)
    on_gpu, on_cpu = estimate(model, configuration, (GPU, CPU), target="llama-server").devices
    assert TermKind.KV not in on_cpu.terms
    inputs = sum(tensor.nbytes for tensor in model.file.tensors if tensor.name in INPUTS)
    assert abs(on_cpu.term(TermKind.WEIGHTS).nbytes - inputs) <= MIB
    weights = weights_of(model.file)
    moved = weights.total_bytes - weights.input_bytes + weights.tied_bytes
    assert on_gpu.term(TermKind.WEIGHTS).nbytes == moved


@pytest.mark.parametrize("rare", RARE, ids=lambda rare: rare.architecture)
def test_graphs_of_rare_architectures_are_close(
    rare: Rare, tmp_path: Path, dry_run: DryRun
) -> None:
    model = rare_model(rare, tmp_path)
    for configuration in configurations(model):
        shape, n_rows = cache_shape(configuration), n_outputs(configuration, "llama-server")
        buffers = dry_run.measure(configuration, "llama-server")
        laid_out = sum(buffer.nbytes for buffer in buffers if buffer.kind == "compute")
        formula = compute_bytes(model.architecture, shape, n_rows)
        assert abs(formula - laid_out) <= max(0.25 * laid_out, 8 * MIB), configuration
