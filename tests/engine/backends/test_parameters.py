"""A configuration as llama.cpp's parameters, and adapters and overrides on a real model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.parameters import (
    LOAD_AUTO,
    LOAD_UNMAPPED,
    ModelParameters,
    context_parameters,
)
from engine.configuration import Adapter, Configuration, TensorOverride
from engine.errors import AdapterError, ModelLoadError
from tests.engine.backends.opened import settings
from tests.support.gguf_files import header

pytestmark = pytest.mark.model
RANK, WIDTH = 2, 576


@contextmanager
def opened(path: Path, **changes: object) -> Iterator[LlamaCppBackend]:
    backend = LlamaCppBackend(settings(path, **changes), NativeLog())
    try:
        yield backend
    finally:
        backend.close()


def logits(backend: LlamaCppBackend) -> np.ndarray:
    sequence = backend.open()
    sequence.prefill([1, 5, 9])
    return sequence.decode(20).logits[0].copy()


def write_adapter(path: Path, scale: float, architecture: str = "llama") -> Path:
    """An adapter of rank 2 for the queries of the first layer."""
    values = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 2.0,
    }
    nbytes = RANK * WIDTH * 4
    name = "blk.0.attn_q.weight.lora_"
    tensors = [(f"{name}a", (WIDTH, RANK), 0, 0), (f"{name}b", (RANK, WIDTH), 0, nbytes)]
    data = header(values, tensors)
    data += bytes(-len(data) % 32)
    weights = np.random.default_rng(7).normal(0, scale, 2 * RANK * WIDTH).astype("<f4")
    path.write_bytes(data + weights.tobytes())
    return path


def test_an_adapter_changes_the_text(starter_path: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "strong.gguf", scale=1.0)
    silent = write_adapter(tmp_path / "silent.gguf", scale=0.0)
    with opened(starter_path) as backend:
        plain = logits(backend)
    with opened(starter_path, adapters=(Adapter(silent),)) as backend:
        assert np.allclose(logits(backend), plain, atol=1e-3)
    with opened(starter_path, adapters=(Adapter(silent), Adapter(adapter))) as backend:
        assert np.abs(logits(backend) - plain).max() > 0.1


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_is_no_adapter_is_refused_by_name_and_leaves_no_memory_taken(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    freed: list[str] = []

    def counted(name: str) -> None:
        free = getattr(llama_cpp, name)
        monkeypatch.setattr(llama_cpp, name, lambda each: (freed.append(name), free(each)))

    counted("llama_free")
    counted("llama_model_free")
    adapter = starter_path if is_there else starter_path.with_name("none.gguf")
    with (
        pytest.raises(ModelLoadError, match=adapter.name),
        opened(starter_path, adapters=(Adapter(adapter),)),
    ):
        pass
    assert freed == ["llama_free", "llama_model_free"]


def test_tensors_can_be_moved_to_ram_and_nothing_else_changes(starter_path: Path) -> None:
    override = TensorOverride(r"ffn_(up|down)", "CPU")
    with opened(starter_path) as backend:
        plain = logits(backend)
    with opened(starter_path, tensor_overrides=(override,), n_cpu_moe=-1) as backend:
        assert np.allclose(logits(backend), plain, atol=0.5)


def test_every_setting_of_a_configuration_reaches_llama_cpp(starter_path: Path) -> None:
    odd = Configuration(
        starter_path,
        768,
        n_batch=96,
        n_ubatch=48,
        n_slots=3,
        type_k="q8_0",
        type_v="bf16",
        flash_attention="off",
        kv_unified=True,
        swa_full=True,
        offload_kqv=False,
        n_gpu_layers=7,
        split_mode="none",
        use_extra_buffers=False,
        use_mmap=False,
    )
    context = context_parameters(odd, n_rows=20, n_rollback=4)
    assert (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max) == (768, 96, 48, 3)
    assert (context.n_outputs_max, context.n_rs_seq) == (20, 4)
    assert (context.type_k, context.type_v, context.flash_attn_type) == (8, 30, 0)
    assert (context.kv_unified, context.swa_full, context.offload_kqv) == (True, True, False)
    model = ModelParameters(odd).params
    assert (model.n_gpu_layers, model.split_mode, model.use_extra_bufts) == (7, 0, False)
    assert model.load_mode == LOAD_UNMAPPED
    whole = ModelParameters(Configuration(starter_path, 256)).params
    assert (whole.split_mode, whole.use_extra_bufts) == (1, True)
    assert whole.load_mode == LOAD_AUTO
    assert whole.n_gpu_layers >= 1000


def test_adapters_change_between_replies_with_their_scale(
    starter_path: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "strong.gguf", scale=1.0)
    foreign = write_adapter(tmp_path / "foreign.gguf", scale=1.0, architecture="gemma3")
    with opened(starter_path) as backend:
        plain = logits(backend)
        backend.use_adapters([Adapter(adapter)])
        whole = logits(backend)
        backend.use_adapters([Adapter(adapter, 0.25)])
        quarter = logits(backend)
        with pytest.raises(AdapterError, match=r"foreign\.gguf"):
            backend.use_adapters([Adapter(foreign)])
        assert np.array_equal(logits(backend), quarter)
        backend.use_adapters(None)
        assert np.array_equal(logits(backend), plain)
    changes = [float(np.abs(each - plain).max()) for each in (quarter, whole)]
    assert 0.01 < changes[0] < changes[1]
