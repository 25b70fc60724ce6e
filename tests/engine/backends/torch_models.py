"""Small models of each architecture, and logits of llama.cpp to compare torch's with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Backend
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration
from tests.support.torch_device import N_GPU_LAYERS

Rows = NDArray[np.float32]


def settings(path: Path, **changes: object) -> Configuration:
    base = Configuration(
        path, n_ctx=256, n_batch=64, n_ubatch=64, n_threads=1, type_k="f32", type_v="f32",
        backend="torch", dtype="f32", n_gpu_layers=N_GPU_LAYERS,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by name


def rows_of(backend: Backend, tokens: Sequence[int]) -> Rows:
    """The logits after each token, `[n, n_vocab]`, computed in batches of a draft's rows."""
    sequence = backend.open()
    parts = [
        sequence.verify(tokens[start : start + backend.n_rows]).logits.copy()
        for start in range(0, len(tokens), backend.n_rows)
    ]
    sequence.close()
    return np.concatenate(parts)


def llama_cpp_rows(path: Path, tokens: Sequence[int], log: NativeLog, **changes: object) -> Rows:
    """The logits of llama.cpp with float32 keys and values."""
    backend = LlamaCppBackend(settings(path, flash_attention="off", n_gpu_layers=0, **changes), log)
    try:
        return rows_of(backend, tokens)
    finally:
        backend.close()
