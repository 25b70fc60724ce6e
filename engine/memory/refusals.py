"""What llama.cpp stops on without a word: it is refused here, with the reason.

Assertions of llama.cpp 0c1e57098 that a context or its first batch runs into, read from
`src/llama-context.cpp`, `src/models/t5.cpp`, `ggml/src/ggml-backend.cpp`, `ggml/src/ggml.c`,
`ggml/src/ggml-cpu/ops.cpp` and `ggml/src/ggml-cuda/wkv.cu`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import PresetError
from engine.memory.hardware import Device, Instructions
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.memory.placement import Placement
from engine.model.architecture import Architecture, Model
from engine.model.families import MAMBA, RECURRENT
from engine.model.gguf import GgufFile, cached_by_header

LEAST_NODES, NODES_OF_TENSOR = 1024, 8
"""Operations that a graph has room for (`graph_max_nodes`)."""
TABLE_SIZES = (1031, 2053, 4099, 8209, 16411, 32771)
"""Primes that ggml rounds the room of its table up to (`ggml_hash_size`); it holds operations,
weights, caches and inputs."""
N_INPUTS = 8
ROTATION_NODES, ROTATED_HEADS = 6, 64
"""A quantised cache is rotated, in each layer, where heads are a multiple of so many elements."""
GROUP_NODES, SHARED_NODES = 14, 5
"""Operations of a layer that chooses groups of experts first, and of shared experts."""
PLAIN_ATTENTION_NODES = 5
"""Operations of a layer without flash attention, beside those that it has with it."""


@dataclass(frozen=True, slots=True)
class GraphNodes:
    """Operations of a graph: in each layer, in it for each expert of a token, and around layers.

    A layer without biases, shared experts and clamps, of separate queries, keys and values.
    """

    n_layer: int
    n_expert: int = 2
    n_around: int = 8
    n_fused: int = -2
    """More operations in a layer where one matrix gives queries, keys and values."""


CROWDED = {
    "arcee": GraphNodes(31),
    "bailingmoe": GraphNodes(43),
    "chatglm": GraphNodes(30),
    "dbrx": GraphNodes(43),
    "falcon": GraphNodes(28),
    "granitemoe": GraphNodes(45),
    "grovemoe": GraphNodes(69, 4),
    "minicpm": GraphNodes(45),
    "mpt": GraphNodes(28),
    "olmo": GraphNodes(29),
    "olmoe": GraphNodes(42, n_fused=4),
    "phi3": GraphNodes(31),
    "phimoe": GraphNodes(44),
    "qwen3moe": GraphNodes(47),
    "qwen3vlmoe": GraphNodes(47, 2, 14),
}
"""Architectures of few tensors and many operations; counted in their graphs (`src/models`), that of
MiniCPM with experts: without them it has room."""
EQUAL_SLOTS = frozenset({"kimi-linear", "minimax-01"})
"""Architectures whose graph is laid out once more for one slot (`sched_reserve`), which then has to
have as many tokens for each separate cache."""
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
    if architecture.name in EQUAL_SLOTS and shape.n_batch_tokens % shape.n_streams:
        yield (
            f"a micro-batch of {shape.n_batch_tokens} tokens is no multiple of {shape.n_slots} "
            f"slots, which {architecture.name} wants: take another number of slots, or let them "
            "share their cells (kv_unified)"
        )
    yield from _crowded_graph(model, shape)
    for device in where.distinct_devices:
        yield from _odd_rwkv_heads(architecture, device)


def _crowded_graph(model: Model, shape: CacheShape) -> Iterator[str]:
    architecture = model.architecture
    counted = CROWDED.get(architecture.name)
    if counted is None:
        return
    n_tensors = len(model.file.tensors)
    n_most = max(LEAST_NODES, NODES_OF_TENSOR * n_tensors)
    n_layer = _layer_nodes(model, counted) + _cache_nodes(architecture, shape)
    n_nodes = architecture.n_layers * n_layer + counted.n_around + N_INPUTS
    n_held = n_nodes + n_tensors + 2 * architecture.n_layers  # keys and values
    room = next((size for size in TABLE_SIZES if size >= n_most), n_most)
    if n_nodes > n_most or n_held > room:
        found, most = (n_nodes, n_most) if n_nodes > n_most else (n_held, room)
        what = "operations" if n_nodes > n_most else "operations and tensors"
        yield (
            f"the graph has {found} {what} with a cache of {shape.type_k} and {shape.type_v}, and "
            f"there is room for {most}: use f16 for keys and values"
        )


@cached_by_header(1)
def _first_layer_tensors(file: GgufFile) -> frozenset[str]:
    prefix = "blk.0."
    return frozenset(t.name.removeprefix(prefix) for t in file.tensors if t.name.startswith(prefix))


def _layer_nodes(model: Model, counted: GraphNodes) -> int:
    """Operations of a layer, by the tensors that the first one has."""
    file, architecture = model.file, model.architecture
    names = _first_layer_tensors(file)
    is_fused = "attn_qkv.weight" in names
    n_nodes = counted.n_layer + sum(name.endswith(".bias") for name in names)
    n_nodes += counted.n_fused * is_fused + 2 * ("attn_norm_2.weight" in names)
    if file.values.get(f"{architecture.name}.attention.clamp_kqv"):
        n_nodes += 1 if is_fused else 3
    if not architecture.is_moe:
        return n_nodes
    n_used = architecture.n_experts_used
    n_groups = file.integer(f"{architecture.name}.expert_group_count") or 0
    n_mixtures = counted.n_expert // 2  # each copies what a single expert gives
    n_nodes += counted.n_expert * n_used + n_mixtures * (n_used == 1)
    n_nodes -= not architecture.widths.is_expert_gated
    n_nodes += SHARED_NODES * ("ffn_up_shexp.weight" in names)
    return n_nodes + GROUP_NODES * (n_groups > 1)


def _cache_nodes(architecture: Architecture, shape: CacheShape) -> int:
    """Operations of a layer by its cache: rotations of quantised types, slots apart, attention."""
    caches = (shape.type_k, architecture.k_head_dims), (shape.type_v, architecture.v_head_dims)
    n_rotated = sum(is_quantized(name) and dims[0] % ROTATED_HEADS == 0 for name, dims in caches)
    n_apart = 0 if shape.n_streams == 1 else 2 if shape.flash_attention else 1
    n_plain = 0 if shape.flash_attention else PLAIN_ATTENTION_NODES
    return ROTATION_NODES * n_rotated + n_apart + n_plain


def _odd_rwkv_heads(architecture: Architecture, device: Device) -> Iterator[str]:
    if architecture.name not in RECURRENT - MAMBA:
        return
    head = next(iter(architecture.states.values())).n_state // architecture.d_hidden
    if device.runs_cuda and head not in RWKV_CUDA_HEADS:
        yield f"heads of {head} elements have no kernel in CUDA, which has those of 64 and 128"
    step = RWKV_STEPS[device.instructions]
    if device.kind == "cpu" and architecture.name in ("rwkv7", "arwkv7") and head % step:
        yield (
            f"heads of {head} elements are no multiple of the {step} that a CPU with "
            f"{device.instructions} takes at once: it would write beyond them"
        )
