"""CUDA's flash-attention kernels, and the copies of a cache that they make.

With `auto` llama.cpp 0c1e57098 probes whether a layer's device has a kernel
(`src/llama-context.cpp`). Kernels and copies to f16 are read from `ggml-cuda/fattn.cu` and
`fattn-common.cuh`. AMD cards may run by Vulkan, whose kernels differ.
"""

from engine.configuration import Configuration, KVTypeName
from engine.memory.hardware import Device, Vendor
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.memory.units import HALF_BYTES
from engine.model.architecture import Architecture
from engine.model.layers import Layer

CUDA_HEADS = frozenset({
    (40, 40), (64, 64), (72, 72), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128),
    (256, 256), (320, 256), (512, 512), (576, 512),
})  # fmt: skip
"""Elements of key and value heads that CUDA has kernels for."""
GROUP_MULTIPLES = {(192, 128): 8, (320, 256): 32}
"""Kernels that need a multiple of this many query heads for each key head."""
GROUPED_HEADS = frozenset({*GROUP_MULTIPLES, (512, 512), (576, 512)})
"""Kernels that need more than one query head for each key head."""
NO_CUDA_TYPES: frozenset[KVTypeName] = frozenset({"iq4_nl"})
COPYING: frozenset[Vendor] = frozenset({"NVIDIA", "AMD"})  # ROCm is built from CUDA's code


def without_cuda_kernel(architecture: Architecture) -> tuple[Layer, ...]:
    """The distinct layers for whose heads CUDA has no flash-attention kernel."""
    layers = architecture.distinct_layers
    return tuple(layer for layer in layers if not _has_kernel(architecture, layer))


def _has_kernel(architecture: Architecture, layer: Layer) -> bool:
    if not layer.n_kv_heads:
        return True
    v_head_dim = layer.v_head_dim or max(architecture.v_head_dims, default=0)  # a view of keys
    heads, group = (layer.k_head_dim, v_head_dim), layer.n_heads // layer.n_kv_heads
    return (
        heads in CUDA_HEADS
        and group % GROUP_MULTIPLES.get(heads, 1) == 0
        and (group > 1 or heads not in GROUPED_HEADS)
    )


def falls_off_flash_attention(
    architecture: Architecture, configuration: Configuration, devices: tuple[Device, ...]
) -> bool:
    """Whether `auto` turns flash attention off: CUDA has no kernel for the model's heads."""
    has_layers = configuration.n_gpu_layers not in (0, 1)  # the output layer moves first
    on_gpu = has_layers and any(device.runs_cuda for device in devices)
    is_probed = configuration.flash_attention == "auto" and not is_quantized(configuration.type_v)
    types = {configuration.type_k, configuration.type_v}
    can_run = not without_cuda_kernel(architecture) and not NO_CUDA_TYPES & types
    return on_gpu and is_probed and not can_run


def cuda_copy_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The f16 copy of the largest layer's cache that CUDA makes in a prefill.

    Caches in f16 and f32 are not copied, nor are views (since llama.cpp pull request 23907).
    """
    copies_k, copies_v = (name not in ("f16", "f32") for name in (shape.type_k, shape.type_v))
    if not shape.flash_attention or architecture.has_position_bias:
        return 0
    sizes = [0]
    for layer in architecture.distinct_layers:
        width = copies_k * layer.k_width + copies_v * layer.v_width
        sizes.append(width * shape.attended_cells(layer) * shape.streams(layer))
    return HALF_BYTES * max(sizes)
