"""Convert a configuration to llama.cpp's parameters of model and context."""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import llama_cpp

from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration, FlashAttention, SplitMode
from engine.errors import ModelLoadError
from engine.memory.weights import expert_pattern
from engine.model.ggml import TYPE_NUMBERS

ALL_LAYERS = 10_000
SPLIT_MODES: dict[SplitMode, int] = {"none": 0, "layer": 1}
FLASH_ATTENTION: dict[FlashAttention, int] = {"auto": -1, "off": 0, "on": 1}
LOAD_AUTO, LOAD_UNMAPPED = -1, 0
"""`llama_load_mode`: `auto` maps the file unless a device does not support that."""
DEVICE_TYPE_CPU, DEVICE_TYPE_GPU = 0, 1


class ModelParameters:
    """llama.cpp's parameters of a model; owns the memory that `params` points to.

    Raises:
        ModelLoadError: the file or a device does not exist.
    """

    def __init__(self, configuration: Configuration) -> None:
        path, n_layers = configuration.model_path, configuration.n_gpu_layers
        if not path.is_file():
            raise ModelLoadError(f"{path} does not exist: check the path")
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = ALL_LAYERS if n_layers < 0 else n_layers
        params.split_mode = SPLIT_MODES[configuration.split_mode]
        params.main_gpu = configuration.main_gpu if _devices(DEVICE_TYPE_GPU) else 0
        params.use_extra_bufts = configuration.use_extra_buffers
        params.load_mode = LOAD_AUTO if configuration.use_mmap else LOAD_UNMAPPED
        self._split = _shares(configuration.tensor_split)
        if self._split is not None:
            params.tensor_split = ctypes.cast(self._split, ctypes.POINTER(ctypes.c_float))
        self._overrides = _overrides(configuration)
        if self._overrides is not None:
            params.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        self.params = params


def context_parameters(configuration: Configuration, n_rows: int, n_rollback: int = 0) -> Any:
    """llama.cpp's parameters of a context.

    Args:
        configuration: Settings of the context.
        n_rows: Maximum rows of logits of a batch.
        n_rollback: Rows per slot that a recurrent state stores to roll back drafted tokens.
    """
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = configuration.n_ctx
    params.n_batch = configuration.n_batch
    params.n_ubatch = configuration.n_ubatch
    params.n_seq_max = configuration.n_slots
    params.n_outputs_max = n_rows
    params.n_rs_seq = n_rollback
    params.type_k = TYPE_NUMBERS[configuration.type_k]
    params.type_v = TYPE_NUMBERS[configuration.type_v]
    params.flash_attn_type = FLASH_ATTENTION[configuration.flash_attention]
    params.kv_unified = configuration.kv_unified
    params.swa_full = configuration.swa_full
    params.offload_kqv = configuration.offload_kqv
    return params


def open_context(
    model: object, configuration: Configuration, n_rows: int, log: NativeLog
) -> object:
    """Create a context of a loaded model for batches of up to `n_rows` rows of logits.

    Raises:
        ModelLoadError: llama.cpp failed; the message has the reason that it logged.
    """
    batched = replace(
        configuration,
        n_batch=max(n_rows, configuration.n_batch_of_kvchat),
        kv_unified=False,  # only llama-server shares cells: slots are separate here
    )
    params = context_parameters(batched, n_rows)
    params.n_threads = configuration.n_threads
    params.n_threads_batch = configuration.n_threads_batch or configuration.n_threads
    context = llama_cpp.llama_init_from_model(model, params)
    if context is None:
        raise ModelLoadError(
            f"llama.cpp refused a context of {configuration.n_ctx} tokens with K "
            f"{configuration.type_k}, V {configuration.type_v}, flash attention "
            f"{configuration.flash_attention}: "
            f"{log.errors() or 'it gave no reason; try a smaller context'}"
        )
    return context


class _Override(ctypes.Structure):
    """`llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _shares(split: Sequence[float]) -> "ctypes.Array[ctypes.c_float] | None":
    if not split:
        return None
    n_devices = max(int(llama_cpp.llama_max_devices()), len(split))
    return (ctypes.c_float * n_devices)(*split)


def _overrides(configuration: Configuration) -> "ctypes.Array[_Override] | None":
    rules = configuration.tensor_overrides
    pairs = [(rule.pattern, _buffer_type(rule.device)) for rule in rules]
    experts = expert_pattern(configuration.n_cpu_moe)
    if experts is not None:
        pairs.append((experts, _buffer_type("CPU")))
    if not pairs:
        return None
    rows = [_Override(pattern.encode(), buffer_type) for pattern, buffer_type in pairs]
    return (_Override * (len(rows) + 1))(*rows, _Override(None, None))


def _buffer_type(name: str) -> int:
    """Handle of the buffer type of a device such as `CPU` or `GPU1`."""
    number = re.search(r"\d+", name)
    gpus = _devices(DEVICE_TYPE_GPU)
    if number is None or not gpus:
        device = _devices(DEVICE_TYPE_CPU)[0]
    elif int(number[0]) < len(gpus):
        device = gpus[int(number[0])]
    else:
        raise ModelLoadError(
            f"a tensor override uses {name}: write a GPU number from 0 to {len(gpus) - 1}"
        )
    return _ggml("ggml_backend_dev_buffer_type", device)


def _devices(device_type: int) -> list[int]:
    """Handles of ggml's devices of a type."""
    devices = (_ggml("ggml_backend_dev_get", n) for n in range(_ggml("ggml_backend_dev_count")))
    return [each for each in devices if _ggml("ggml_backend_dev_type", each) == device_type]


def _ggml(name: str, *arguments: int) -> int:
    """Call a function of the ggml library that llama.cpp has loaded; handles are integers."""
    function = getattr(llama_cpp.llama_cpp._lib, name)
    function.argtypes = [ctypes.c_size_t] * len(arguments)
    function.restype = ctypes.c_int if name == "ggml_backend_dev_type" else ctypes.c_size_t
    return int(function(*arguments))
