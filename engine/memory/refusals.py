"""What llama.cpp stops on without a word: it is refused here, with the reason.

Assertions of llama.cpp 0c1e57098 that a context or its first batch runs into, read from
`src/llama-context.cpp`, `src/models/t5.cpp`, `ggml/src/ggml-backend.cpp`, `ggml/src/ggml.c`,
`ggml/src/ggml-cpu/ops.cpp` and `ggml/src/ggml-cuda/wkv.cu`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import PresetError
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.memory.placement import Placement
from engine.memory.processor import Instructions
from engine.model.architecture import Architecture, Model
from engine.model.families import MAMBA, RECURRENT

LEAST_NODES, NODES_OF_TENSOR = 1024, 8
"""Room of a graph (`graph_max_nodes`)."""
TABLE_SIZES = (1031, 2053, 4099, 8209, 16411, 32771)
"""Primes that ggml rounds the room of its table up to (`ggml_hash_size`)."""
N_INPUTS = 8
ROTATION_NODES, ROTATED_HEADS = 6, 64
"""A quantised cache is rotated, in each layer, where heads are a multiple of so many elements."""


@dataclass(frozen=True, slots=True)
class GraphNodes:
    """Operations of a graph: in each layer, in it for each expert of a token, and around layers."""

    n_layer: int
    n_expert: int = 2
    n_around: int = 8


CROWDED = {
    "arcee": GraphNodes(31),
    "bailingmoe": GraphNodes(48),
    "chatglm": GraphNodes(29),
    "dbrx": GraphNodes(42),
    "falcon": GraphNodes(27),
    "granitemoe": GraphNodes(45),
    "grovemoe": GraphNodes(69, 4),
    "mpt": GraphNodes(26),
    "olmo": GraphNodes(29),
    "olmoe": GraphNodes(42),
    "phimoe": GraphNodes(50),
    "qwen3moe": GraphNodes(47),
    "qwen3vlmoe": GraphNodes(47, 2, 14),
}
"""Architectures of few tensors and many operations; counted in their graphs (`src/models`)."""
EQUAL_SLOTS = frozenset({"kimi-linear"})
"""Architectures whose graph wants as many tokens of each slot (`build_arch_graph`)."""
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
                f"{layer.n_heads} query heads of a layer do not share {layer.n_kv_heads} key heads "
                "evenly: the header is damaged"
            )
    if architecture.has_position_bias and architecture.layers and shape.n_streams > 1:
        yield (
            f"{architecture.name} biases scores by position, which {shape.n_streams} separate "
            "caches cannot be: use one slot, or let the slots share their cells (kv_unified)"
        )
    if architecture.name in EQUAL_SLOTS and shape.n_graph_tokens % shape.n_slots:
        yield (
            f"a micro-batch of {shape.n_graph_tokens} tokens is no multiple of {shape.n_slots} "
            f"slots, which {architecture.name} wants: take another number of slots"
        )
    n_nodes, room = _n_nodes(model, shape), _room(model)
    if n_nodes > room:
        yield (
            f"the graph has {n_nodes} operations and tensors with a cache of {shape.type_k} and "
            f"{shape.type_v}, and there is room for {room}: use f16 for keys and values"
        )
    for device in where.distinct_devices:
        yield from _odd_rwkv_heads(architecture, device)


def _n_nodes(model: Model, shape: CacheShape) -> int:
    """Give the operations of the largest graph with its weights and caches, 0 if not counted."""
    architecture = model.architecture
    counted = CROWDED.get(architecture.name)
    if counted is None:
        return 0
    n_rotated = sum(
        is_quantized(name) and dims[0] % ROTATED_HEADS == 0
        for name, dims in (
            (shape.type_k, architecture.k_head_dims),
            (shape.type_v, architecture.v_head_dims),
        )
    )
    n_layer = counted.n_layer + counted.n_expert * architecture.n_experts_used
    n_layer += ROTATION_NODES * n_rotated + 2  # its caches
    n_around = counted.n_around + N_INPUTS + len(model.file.tensors)
    return architecture.n_layers * n_layer + n_around


def _room(model: Model) -> int:
    wanted = max(LEAST_NODES, NODES_OF_TENSOR * len(model.file.tensors))
    return next((size for size in TABLE_SIZES if size >= wanted), wanted)


def _odd_rwkv_heads(architecture: Architecture, device: Device) -> Iterator[str]:
    if architecture.name not in RECURRENT - MAMBA:
        return
    head = next(iter(architecture.states.values())).n_state // architecture.d_hidden
    if device.kind == "gpu" and head not in RWKV_CUDA_HEADS:
        yield f"heads of {head} elements have no kernel in CUDA, which has those of 64 and 128"
    step = RWKV_STEPS[device.instructions]
    if device.kind == "cpu" and architecture.name in ("rwkv7", "arwkv7") and head % step:
        yield (
            f"heads of {head} elements are no multiple of the {step} that a CPU with "
            f"{device.instructions} takes at once: it would write beyond them"
        )
