"""Where llama.cpp turns flash attention off although it was not told to.

With `auto` llama.cpp 0c1e57098 probes whether a layer's own device can do it
(`src/llama-context.cpp`); CUDA can for the head sizes below (`ggml-cuda/fattn.cu`).
"""

from engine.configuration import Configuration
from engine.memory.hardware import Device
from engine.memory.kv_types import is_quantized
from engine.model.architecture import Architecture

CUDA_HEADS = frozenset(
    {
        (40, 40), (64, 64), (72, 72), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128),
        (256, 256), (320, 256), (512, 512), (576, 512),
    }
)  # fmt: skip
"""Elements of key and value heads that CUDA has kernels for."""


def has_cuda_kernel(architecture: Architecture) -> bool:
    """Whether CUDA has a flash-attention kernel for every head size of a model."""
    heads = zip(architecture.k_head_dims, architecture.v_head_dims, strict=False)
    return not architecture.layers or all(head in CUDA_HEADS for head in heads)


def falls_off_flash_attention(
    architecture: Architecture, configuration: Configuration, devices: tuple[Device, ...]
) -> bool:
    """Whether `auto` ends without flash attention: a GPU has no kernel for the model's heads."""
    on_gpu = configuration.n_gpu_layers != 0 and any(device.kind == "gpu" for device in devices)
    is_probed = configuration.flash_attention == "auto" and not is_quantized(configuration.type_v)
    return on_gpu and is_probed and not has_cuda_kernel(architecture)
