"""Where torch computes, in which type, and what fits there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from engine.configuration import Configuration
from engine.errors import ModelLoadError
from engine.memory.units import GIB

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_NATIVE_ROWS = 2
"""Rows of bfloat16 that torch's own product takes less time for than oneDNN's."""


def choose_device(configuration: Configuration) -> torch.device:
    """A GPU if there is one and layers may go there, else the processor.

    Apple's `mps` is chosen by the same rule and has not been tried.
    """
    if configuration.n_gpu_layers != 0:
        if torch.cuda.is_available():
            # cuDNN's attention makes a plan for each length that it meets, and each token of a
            # reply is another: 2.4 ms a layer (torch 2.11, H100).
            torch.backends.cuda.enable_cudnn_sdp(False)
            return torch.device("cuda", configuration.main_gpu)
        if torch.backends.mps.is_available():
            return torch.device("mps")
    return torch.device("cpu")


def choose_dtype(configuration: Configuration, device: torch.device) -> torch.dtype:
    """The type that was asked for, else the shortest that the device multiplies by itself."""
    if configuration.dtype != "auto":
        return DTYPES[configuration.dtype]
    match device.type:
        case "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        case "mps":
            return torch.float16
    return torch.bfloat16 if has_bf16() else torch.float32


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 by itself (AVX512-BF16 or AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@contextmanager
def quickest_products(n_rows: int) -> Iterator[None]:
    """Products of so many rows by the library that is quickest on a processor.

    One row times bfloat16 matrices that lie in memory reads 13 GB/s with torch's own product and 7
    with oneDNN's; from four rows on oneDNN's is ahead (torch 2.13, one thread of an EPYC with
    AVX512-BF16 beside other programs). Other types have one product only. The choice is the whole
    process's, and oneDNN's is what stands outside, whoever else chooses meanwhile.
    """
    torch.backends.mkldnn.set_flags(n_rows > MOST_NATIVE_ROWS, _fp32_precision=None)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True, _fp32_precision=None)


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a model is to take."""

    n_weights: int
    n_joined: int
    """Of matrices that are held twice for a moment, while they become one."""
    dtype: torch.dtype
    """Of the weights."""
    kv_bytes: int
    """Of the cache, for `n_ctx` tokens."""
    n_ctx: int


def check_fits(name: str, need: MemoryNeed, free: int, device: torch.device) -> None:
    """Raise `ModelLoadError`, which says what would fit, where a model needs more than is free.

    Args:
        name: The file, for the message.
        need: What it takes.
        free: Bytes on the device.
        device: Where it is to lie.
    """
    weights = (need.n_weights + need.n_joined) * need.dtype.itemsize
    if weights + need.kv_bytes <= free:
        return
    ways = []
    short = (need.n_weights + need.n_joined) * torch.bfloat16.itemsize
    if short < weights and short + need.kv_bytes <= free:
        ways.append(f'dtype = "bf16" ({_gib(short + need.kv_bytes)})')
    n_fitting = (free - weights) * need.n_ctx // need.kv_bytes if need.kv_bytes else 0
    if 0 < n_fitting < need.n_ctx:
        ways.append(f"a context of {n_fitting} tokens")
    ways.append("the backend llama.cpp, which keeps weights as they are in the file")
    raise ModelLoadError(
        f"{name} takes {_gib(weights)} while it is loaded as {TYPE_NAMES[need.dtype]} and "
        f"{_gib(need.kv_bytes)} of cache, and {_gib(free)} are free on {device}: what fits is "
        f"{', or '.join(ways)}"
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"
