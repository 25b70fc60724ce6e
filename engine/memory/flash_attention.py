"""Where llama.cpp can use flash attention, and the copies of a cache that it makes there.

With `auto` llama.cpp 0c1e57098 probes whether a layer's own device can do it
(`src/llama-context.cpp`); what CUDA can do, and when it copies keys and values to f16, is read from
`ggml-cuda/fattn.cu` and `fattn-common.cuh`.
"""

from collections.abc import Callable

from engine.configuration import Configuration, KVTypeName
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.model.architecture import Architecture, Layer

CUDA_HEADS = frozenset(
    {
        (40, 40), (64, 64), (72, 72), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128),
        (256, 256), (320, 256), (512, 512), (576, 512),
    }
)  # fmt: skip
"""Elements of key and value heads that CUDA has kernels for."""
GROUP_MULTIPLES = {(192, 128): 8, (320, 256): 32}
"""Kernels that want so many query heads for each key head, or a multiple."""
GROUPED_HEADS = frozenset({*GROUP_MULTIPLES, (512, 512), (576, 512)})
"""Kernels that want more than one query head for each key head."""
UNSCANNED = frozenset({"plamo2"})
"""Architectures whose scans CUDA has no kernel for (states of 64 elements)."""
NO_CUDA_TYPES: frozenset[KVTypeName] = frozenset({"iq4_nl"})
HALF_BYTES = 2


def has_cuda_kernel(architecture: Architecture) -> bool:
    """Whether CUDA has a flash-attention kernel for the heads of every layer of a model."""
    return not without_cuda_kernel(architecture)


def without_cuda_kernel(architecture: Architecture) -> tuple[Layer, ...]:
    """Give the kinds of layers that CUDA has no flash-attention kernel for."""
    layers = architecture.distinct_layers
    return tuple(layer for layer in layers if not _has_kernel(architecture, layer))


def _has_kernel(architecture: Architecture, layer: Layer) -> bool:
    if not layer.n_kv_heads:
        return True
    heads = (layer.k_head_dim, _value_dim(architecture, layer))
    group = layer.n_heads // layer.n_kv_heads
    return (
        heads in CUDA_HEADS
        and group % GROUP_MULTIPLES.get(heads, 1) == 0
        and (group > 1 or heads not in GROUPED_HEADS)
    )


def _value_dim(architecture: Architecture, layer: Layer) -> int:
    """Give the elements of a value head; where values are views of keys, those of the view."""
    return layer.v_head_dim or max(architecture.v_head_dims, default=0)


def falls_off_flash_attention(
    architecture: Architecture, configuration: Configuration, devices: tuple[Device, ...]
) -> bool:
    """Whether `auto` ends without flash attention: a GPU has no kernel for the model's heads."""
    on_gpu = configuration.n_gpu_layers != 0 and any(device.kind == "gpu" for device in devices)
    is_probed = configuration.flash_attention == "auto" and not is_quantized(configuration.type_v)
    types = (configuration.type_k, configuration.type_v)
    can_run = _can_run(architecture, types) and not strays(architecture, configuration)
    return on_gpu and is_probed and not can_run


def strays(architecture: Architecture, configuration: Configuration) -> bool:
    """Whether attention of layers in main memory is assigned to a GPU, which ends `auto`, too.

    It follows the scan of a GPU's layer that the CPU runs.
    """
    is_whole = not 0 <= configuration.n_gpu_layers <= architecture.n_blocks
    return architecture.name in UNSCANNED and not is_whole


def leaves_gpus(architecture: Architecture, shape: CacheShape) -> bool:
    """Whether flash attention is on although CUDA has no kernel: it runs on the CPU."""
    return shape.flash_attention and not _can_run(architecture, (shape.type_k, shape.type_v))


def _can_run(architecture: Architecture, types: tuple[KVTypeName, KVTypeName]) -> bool:
    return not NO_CUDA_TYPES.intersection(types) and has_cuda_kernel(architecture)


def cast_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the f16 copy of the largest layer's f32 keys and values that the graph itself makes.

    It does so on every device (`build_attn_mha`); values that are views are copied beside the keys.
    """

    def width(layer: Layer) -> int:
        value = layer.n_kv_heads * _value_dim(architecture, layer)
        return (shape.type_k == "f32") * layer.k_width + (shape.type_v == "f32") * value

    return _largest_copy(architecture, shape, width)


def cuda_copy_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the f16 copy of the largest layer's cache that CUDA's prefill makes behind the result.

    Of every type but f16, and f32 that is cast before; views are not copied again (since llama.cpp
    pull request 23907).
    """
    copies_k, copies_v = (name not in ("f16", "f32") for name in (shape.type_k, shape.type_v))
    if leaves_gpus(architecture, shape):
        return 0
    return _largest_copy(
        architecture, shape, lambda layer: copies_k * layer.k_width + copies_v * layer.v_width
    )


def _largest_copy(
    architecture: Architecture, shape: CacheShape, width: Callable[[Layer], int]
) -> int:
    if not shape.flash_attention or architecture.has_position_bias:
        return 0
    layers = architecture.distinct_layers
    sizes = (width(layer) * shape.attended_cells(layer) * shape.streams(layer) for layer in layers)
    return HALF_BYTES * max(sizes, default=0)
