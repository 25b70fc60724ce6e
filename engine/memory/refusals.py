"""What llama.cpp stops on without a word: it is refused here, with the reason.

Assertions of llama.cpp 0c1e57098 that a context or its first batch runs into, read from
`src/llama-context.cpp`, `src/models/t5.cpp`, `ggml/src/ggml-cpu/ops.cpp` and
`ggml/src/ggml-cuda/wkv.cu`.
"""

from collections.abc import Iterator

from engine.errors import PresetError
from engine.memory.hardware import Device, Instructions
from engine.memory.kv_cache import CacheShape
from engine.memory.placement import Placement
from engine.model.architecture import Architecture, Model

RWKV_STEPS: dict[Instructions, int] = {"none": 32, "avx2": 32, "avx512": 64, "arm": 16}
"""Elements that the CPU's kernel of RWKV 7 takes at once (`GGML_F32_STEP`)."""
RWKV_CUDA_HEADS = (64, 128)


def check_not_aborted(model: Model, shape: CacheShape, where: Placement) -> None:
    """Refuse what ends llama.cpp instead of giving an error.

    Raises:
        PresetError: it would stop; the message says why, and what to change.
    """
    reason = next(_reasons(model, shape, where), None)
    if reason is not None:
        raise PresetError(f"llama.cpp stops on this: {reason}")


def _reasons(model: Model, shape: CacheShape, where: Placement) -> Iterator[str]:
    architecture = model.architecture
    for layer in architecture.distinct_layers:
        if layer.n_kv_heads and layer.n_heads % layer.n_kv_heads:
            yield (
                f"{layer.n_heads} query heads of a layer cannot be divided evenly among "
                f"{layer.n_kv_heads} "
                "key heads: the header is damaged"
            )
    if architecture.has_position_bias and architecture.layers and shape.n_streams > 1:
        yield (
            f"{architecture.name} biases scores by position (ALiBi), which {shape.n_streams} "
            "separate caches do not support: use one slot, or let the slots share one cache "
            "(kv_unified)"
        )
    if architecture.family.wants_equal_slots and shape.n_batch_tokens % shape.n_streams:
        yield (
            f"a ubatch of {shape.n_batch_tokens} tokens is not a multiple of {shape.n_slots} "
            f"slots, as {architecture.name} requires: use another number of slots, or let "
            "them share one cache (kv_unified)"
        )
    for device in where.distinct_devices:
        yield from _odd_rwkv_heads(architecture, device)


def _odd_rwkv_heads(architecture: Architecture, device: Device) -> Iterator[str]:
    if architecture.family.state != "rwkv":
        return
    head = next(iter(architecture.states.values())).n_state // architecture.d_hidden
    if device.runs_cuda and head not in RWKV_CUDA_HEADS:
        yield f"heads of {head} elements have no CUDA kernel, only 64 and 128 have one"
    step = RWKV_STEPS[device.instructions]
    if device.kind == "cpu" and architecture.family.keeps_first_values and head % step:
        yield (
            f"heads of {head} elements are not a multiple of {step}, the vector width of "
            f"{device.instructions}: llama.cpp would write out of bounds"
        )
