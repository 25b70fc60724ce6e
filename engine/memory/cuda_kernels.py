"""What CUDA has kernels for: flash attention, with the copies of a cache that it makes, and scans.

What it has none for runs on the CPU. With `auto` llama.cpp 0c1e57098 probes whether a layer's own
device can do it (`src/llama-context.cpp`); what CUDA can do, and when it copies keys and values to
f16, is read from `ggml-cuda/fattn.cu` and `fattn-common.cuh`, the shapes of scans from
`ggml-cuda.cu` (`ggml_backend_cuda_device_supports_op`). It holds for NVIDIA's cards; AMD's may run
by Vulkan, whose kernels are others.
"""

from collections.abc import Callable
from dataclasses import replace

from engine.configuration import Configuration, KVTypeName
from engine.memory.hardware import Device, Vendor
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.memory.units import HALF_BYTES
from engine.model.architecture import Architecture, Model
from engine.model.layers import Layer

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
NO_CUDA_TYPES: frozenset[KVTypeName] = frozenset({"iq4_nl"})
COPYING: frozenset[Vendor] = frozenset({"NVIDIA", "AMD"})
"""Whose caches may be copied to f16: ROCm is built from CUDA's code, and Vulkan needs less."""
GROUPED_STATES = (96, 128, 256)
SINGLE_STATE = 16
SCAN_HEADS, SCAN_CHANNELS = 16, 128
"""What the heads of a scan of Mamba 2 and the channels of one of Mamba 1 are multiples of."""


def scan_width(model: Model) -> int:
    """Elements of a token in a scan that the CPU runs; 0 where a GPU has a kernel, or none is."""
    name, kind = model.architecture.name, model.architecture.family.state
    if kind not in ("mamba", "mamba2") or not model.architecture.states:
        return 0
    state, inner, heads = (
        model.file.integer(f"{name}.ssm.{key}") or 0
        for key in ("state_size", "inner_size", "time_step_rank")
    )
    if kind == "mamba":
        has_kernel = state == SINGLE_STATE and not inner % SCAN_CHANNELS
    else:
        head = inner // heads if heads else 0
        has_kernel = state in GROUPED_STATES and not head % SCAN_HEADS
    return 0 if has_kernel else inner


def has_cuda_kernel(architecture: Architecture) -> bool:
    """Whether CUDA has a flash-attention kernel for the heads of every layer of a model."""
    return not without_cuda_kernel(architecture)


def without_cuda_kernel(architecture: Architecture) -> tuple[Layer, ...]:
    """The kinds of layers that CUDA has no flash-attention kernel for."""
    layers = architecture.distinct_layers
    if architecture.attends_in_batch:
        layers = tuple(dict.fromkeys(attending_layers(architecture)))
    return tuple(layer for layer in layers if not _has_kernel(architecture, layer))


def attending_layers(architecture: Architecture) -> tuple[Layer, ...]:
    """The layers that attend; where they keep no cache, as the widths tell."""
    if not architecture.attends_in_batch:
        return tuple(architecture.layers.values())
    k_dim, v_dim = max(architecture.k_head_dims), max(architecture.v_head_dims)
    widths = architecture.widths
    width = widths.key_value or widths.query - architecture.n_heads * k_dim
    n_kv_heads = width // (k_dim + v_dim) or architecture.n_heads
    return (Layer(n_kv_heads, k_dim, v_dim, architecture.n_heads),) * architecture.n_layers


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
    """The elements of a value head; where values are views of keys, those of the view."""
    return layer.v_head_dim or max(architecture.v_head_dims, default=0)


def falls_off_flash_attention(
    architecture: Architecture, configuration: Configuration, devices: tuple[Device, ...]
) -> bool:
    """Whether `auto` ends without flash attention: CUDA has no kernel for the model's heads."""
    has_layers = configuration.n_gpu_layers not in (0, 1)  # the output layer is the first to go
    on_gpu = has_layers and any(device.runs_cuda for device in devices)
    is_probed = configuration.flash_attention == "auto" and not is_quantized(configuration.type_v)
    types = (configuration.type_k, configuration.type_v)
    can_run = _can_run(architecture, types) and not strays(architecture, configuration)
    return on_gpu and is_probed and not can_run


def strays(architecture: Architecture, configuration: Configuration) -> bool:
    """Whether attention of layers in main memory is assigned to a GPU, which ends `auto`, too.

    It follows the scan of a GPU's layer that the CPU runs, or stands before the states of the first
    layer on a GPU, which are read before the layer before is done.
    """
    is_whole = not 0 <= configuration.n_gpu_layers <= architecture.n_blocks
    first = architecture.n_blocks + 1 - configuration.n_gpu_layers
    is_before = first in architecture.states and first - 1 in architecture.layers
    is_early = architecture.family.reads_states_early and is_before
    return not is_whole and (not architecture.family.has_cuda_scan or is_early)


def leaves_gpus(architecture: Architecture, shape: CacheShape) -> bool:
    """Whether flash attention is on although CUDA has no kernel: it runs on the CPU."""
    if architecture.attends_in_batch:  # over no cache, whatever its type
        return shape.flash_attention and not has_cuda_kernel(architecture)
    return shape.flash_attention and not _can_run(architecture, (shape.type_k, shape.type_v))


def _can_run(architecture: Architecture, types: tuple[KVTypeName, KVTypeName]) -> bool:
    return not NO_CUDA_TYPES.intersection(types) and has_cuda_kernel(architecture)


def cast_shape(shape: CacheShape) -> CacheShape:
    """The cache as kernels read it: the graph casts f32 to f16 before."""
    type_k: KVTypeName = "f16" if shape.type_k == "f32" else shape.type_k
    type_v: KVTypeName = "f16" if shape.type_v == "f32" else shape.type_v
    return replace(shape, type_k=type_k, type_v=type_v)


def cast_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The f16 copy of the largest layer's f32 keys and values that the graph itself makes.

    It does so on every device (`build_attn_mha`); values that are views are copied beside the keys.
    """

    def width(layer: Layer) -> int:
        value = layer.n_kv_heads * _value_dim(architecture, layer)
        return (shape.type_k == "f32") * layer.k_width + (shape.type_v == "f32") * value

    return _largest_copy(architecture, shape, width)


def cuda_copy_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The f16 copy of the largest layer's cache that CUDA's prefill makes behind the result.

    Of every type but f16, and f32 that is cast before; views are not copied again (since llama.cpp
    pull request 23907).
    """
    copies_k, copies_v = (name not in ("f16", "f32") for name in (shape.type_k, shape.type_v))
    if leaves_gpus(architecture, shape) or architecture.attends_in_batch:
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
