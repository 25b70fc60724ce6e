"""Adapters (LoRA) beside a model: loaded with it, freed with it by llama.cpp."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from engine.backends.llama_cpp.log import NativeLog
from engine.errors import ModelLoadError

SCALE = 1.0


def apply_adapters(model: object, context: object, paths: Sequence[Path], log: NativeLog) -> None:
    """Load adapters and use all of them in a context, at scale 1.

    Raises:
        ModelLoadError: a file is missing, or is no adapter of this model.
    """
    if not paths:
        return
    adapters = [_load(model, path, log) for path in paths]
    handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(adapters))()
    for index, adapter in enumerate(adapters):
        handles[index] = adapter
    scales = (ctypes.c_float * len(adapters))(*[SCALE] * len(adapters))
    if llama_cpp.llama_set_adapters_lora(context, handles, len(adapters), scales):
        raise ModelLoadError(f"llama.cpp could not use the adapters: {log.errors()}")


def _load(model: object, path: Path, log: NativeLog) -> "ctypes._Pointer[ctypes.c_void_p]":
    if not path.is_file():
        raise ModelLoadError(f"the adapter {path} does not exist: check the path")
    adapter: ctypes._Pointer[ctypes.c_void_p] = llama_cpp.llama_adapter_lora_init(
        model, str(path).encode()
    )
    if not adapter:
        raise ModelLoadError(
            f"{path.name} is no adapter of this model: {log.errors() or 'no reason was given'}"
        )
    return adapter
