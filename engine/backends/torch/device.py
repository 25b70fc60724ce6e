"""Device and compute type of the torch backend, and whether a model fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import psutil
import torch

from engine.configuration import Configuration
from engine.errors import ModelLoadError, PresetError
from engine.memory.torch_caches import held_bytes
from engine.memory.units import GIB
from engine.model.architecture import Model

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_NATIVE_ROWS = 2
"""Rows of bfloat16 for which torch's own product is faster than oneDNN's."""


def choose_device(configuration: Configuration) -> torch.device:
    """A GPU if there is one and layers may use it, else the CPU; `mps` is untested."""
    if configuration.n_gpu_layers != 0:
        if torch.cuda.is_available():
            # cuDNN's attention makes a plan for each new length: 2.4 ms a layer (torch 2.11, H100).
            torch.backends.cuda.enable_cudnn_sdp(False)
            return torch.device("cuda", configuration.main_gpu)
        if torch.backends.mps.is_available():
            return torch.device("mps")
    return torch.device("cpu")


def choose_dtype(configuration: Configuration, device: torch.device) -> torch.dtype:
    """The requested type, else the shortest type that the device multiplies natively."""
    if configuration.dtype != "auto":
        return DTYPES[configuration.dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "mps":
        return torch.float16
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


@contextmanager
def fast_products(n_rows: int) -> Iterator[None]:
    """Multiply `n_rows` rows with the library that is fastest on a CPU.

    One row times bfloat16 matrices reads 13 GB/s with torch's own product and 7 with oneDNN's; from
    four rows on oneDNN's is faster (torch 2.13, one thread of an EPYC with AVX512-BF16). Other
    types have one product only. The flag is global; oneDNN is on outside of this block.
    """
    torch.backends.mkldnn.set_flags(n_rows > MAX_NATIVE_ROWS, _fp32_precision=None)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True, _fp32_precision=None)


def free_bytes(device: torch.device) -> int:
    """Free memory of a device in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def check_fits(
    model: Model, configuration: Configuration, device: torch.device, *, has_weights: bool
) -> None:
    """Raise `ModelLoadError`, with what would fit, if a model needs more than the free memory.

    Args:
        model: The model to load.
        configuration: Settings of its cache.
        device: The device.
        has_weights: Whether the weights are on the device already.
    """
    dtype = choose_dtype(configuration, device)
    try:
        kv_bytes = sum(held_bytes(model, configuration, TYPE_NAMES[dtype]))
    except PresetError as error:
        raise ModelLoadError(str(error)) from error
    sizes = {each.name: prod(each.shape) for each in model.file.tensors if not has_weights}
    merged = (size for name, size in sizes.items() if name.startswith("blk."))
    n_weights = sum(sizes.values()) + 2 * max(merged, default=0)  # merged ones are held twice
    weights, free = n_weights * dtype.itemsize, free_bytes(device)
    if weights + kv_bytes <= free:
        return
    ways = []
    short = n_weights * torch.bfloat16.itemsize
    if short < weights and short + kv_bytes <= free:
        ways.append(f'dtype = "bf16" ({_gib(short + kv_bytes)})')
    n_fitting = (free - weights) * configuration.n_ctx // kv_bytes if kv_bytes else 0
    if 0 < n_fitting < configuration.n_ctx:
        ways.append(f"a context of {n_fitting} tokens")
    ways.append("the llama.cpp backend, which keeps the weights quantised")
    raise ModelLoadError(
        f"{model.file.path.name} needs {_gib(weights)} to load as {TYPE_NAMES[dtype]} and "
        f"{_gib(kv_bytes)} for the cache, but {device} has only {_gib(free)} free: use "
        f"{', or '.join(ways)}"
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"
