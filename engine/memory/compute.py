"""The compute buffer of a graph, by formula.

llama.cpp 0c1e57098 reserves one buffer for the largest graph; tensors that are no longer needed
make space for others (`ggml/src/ggml-alloc.c`). The formulas count what is alive at the widest
place of a graph of `src/models/*.cpp`: attention, a feed-forward block, the experts, a recurrent
block, or the logits. Gaps between tensors are in the range; errors:
`benchmarks/results/accuracy.md`.
"""

from typing import Literal

from engine.configuration import Configuration, KVTypeName
from engine.memory.hardware import Device, Vendor
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.memory.terms import Bounds
from engine.memory.units import FLOAT_BYTES, HALF_BYTES, MIB
from engine.model.architecture import Architecture
from engine.model.layers import Layer

Place = Literal["cpu", "gpu", "mixed gpu", "host", "mixed host"]
"""A GPU, or RAM alone (cpu) or beside GPUs (host). Mixed are the buffers of models of which layers,
experts or caches are in RAM while GPUs compute."""
TOLERANCES: dict[Place, tuple[tuple[float, float], ...]] = {
    "cpu": ((0.1, 0.1), (0.2, 0.2), (0.35, 0.45), (0.7, 3.0)),
    "gpu": ((0.15, 0.15), (0.2, 0.2), (0.4, 0.8), (0.95, 1.9)),
    "mixed gpu": ((0.4, 0.5), (0.5, 0.5), (0.7, 1.2), (0.7, 2.5)),
    "host": ((0.15, 0.2), (0.15, 0.2), (0.4, 0.8), (0.5, 1.5)),
    "mixed host": ((0.5, 0.4), (0.5, 0.4), (0.7, 2.0), (0.7, 8.0)),
}
"""How far buffers of 1,100 shapes of 135 architectures were below and above the formula, as a share
of it: dense models, experts, unusual graphs, rough formulas
(`benchmarks/results/accuracy_shapes.md`)."""
HIDDEN_STATES = 3  # of each token that depend on gaps between tensors
CELL_BYTES = 8  # of a cell's index, an input of the graph
ROTATED_ELEMENTS = 64  # quantised heads of a multiple of this are rotated by a Hadamard matrix
CUDA_HEADS = frozenset({
    (40, 40), (64, 64), (72, 72), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128),
    (256, 256), (320, 256), (512, 512), (576, 512),
})  # fmt: skip
"""Elements of key and value heads that CUDA has flash-attention kernels for. Kernels and copies to
f16 are read from `ggml-cuda/fattn.cu` and `fattn-common.cuh`."""
GROUP_MULTIPLES = {(192, 128): 8, (320, 256): 32}
"""Kernels that need a multiple of this many query heads for each key head."""
GROUPED_HEADS = frozenset({*GROUP_MULTIPLES, (512, 512), (576, 512)})
"""Kernels that need more than one query head for each key head."""
NO_CUDA_TYPES: frozenset[KVTypeName] = frozenset({"iq4_nl"})
COPYING: frozenset[Vendor] = frozenset({"NVIDIA", "AMD"})  # ROCm is built from CUDA's code


def compute_bytes(architecture: Architecture, shape: CacheShape, n_outputs: int) -> int:
    """The compute buffer of a model that runs on the CPU alone, with `n_outputs` rows of logits."""
    embedded = shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES
    logits = embedded + logits_bytes(architecture, shape, n_outputs)
    is_even = architecture.widths.query == architecture.d_hidden
    n_beside = 3 if is_even and has_rotated_keys(architecture, shape) else 4
    return max(layers_bytes(architecture, shape, n_beside), logits)


def logits_bytes(architecture: Architecture, shape: CacheShape, n_outputs: int) -> int:
    """The buffer of the output layer: logits and the hidden states that they are computed from."""
    n_rows = shape.n_graph_tokens
    if not architecture.gives_all_logits:
        n_rows = min(n_rows, n_outputs)
    width = architecture.n_vocab + 2 * architecture.d_hidden
    return n_rows * width * FLOAT_BYTES


def input_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The inputs of a graph besides the tokens: positions, cells, masks, Hadamard matrices."""
    n_tokens = shape.n_graph_tokens
    nbytes = n_tokens * FLOAT_BYTES + mask_bytes(architecture, shape)
    if architecture.attends_in_batch:
        return nbytes
    n_caches = len({layer.window is None for layer in architecture.distinct_layers})
    n_cells = 1 if shape.flash_attention else architecture.v_width_max
    matrices = 0
    if has_rotated_keys(architecture, shape):
        n_dims = max(architecture.k_head_dims, default=0)
        matrices += (n_dims & -n_dims) ** 2
    if _is_rotated(architecture, shape.type_v, max(architecture.v_head_dims, default=1)):
        matrices += ROTATED_ELEMENTS**2
    return nbytes + n_caches * (matrices * FLOAT_BYTES + n_tokens * (1 + n_cells) * CELL_BYTES)


def has_rotated_keys(architecture: Architecture, shape: CacheShape) -> bool:
    """Whether queries and keys are rotated by a Hadamard matrix for a quantised cache."""
    return _is_rotated(architecture, shape.type_k, max(architecture.k_head_dims, default=0))


def _is_rotated(architecture: Architecture, type_name: KVTypeName, head_dim: int) -> bool:
    is_even = head_dim % ROTATED_ELEMENTS == 0
    return is_quantized(type_name) and is_even and architecture.family.rotates_cache


def layers_bytes(architecture: Architecture, shape: CacheShape, n_beside: int = 4) -> int:
    """The buffer of the layers without the output layer.

    `n_beside` hidden states are there with the inner activations of a dense block.
    """
    width = max(feed_forward_width(architecture, n_beside), experts_width(architecture))
    widest = max(shape.n_graph_tokens * width * FLOAT_BYTES, recurrent_bytes(architecture, shape))
    if not shape.flash_attention:
        widest += shape.n_graph_tokens * architecture.widths.key_value * FLOAT_BYTES
    widest += mask_bytes(architecture, shape)
    embedded = architecture.layer_embedding_width
    through = architecture.streams_width + 2 * embedded
    through -= 2 * bool(embedded) * architecture.d_hidden  # two hidden states fit into its gap
    through += 2 * architecture.n_image_rows * architecture.d_hidden  # features of images
    through = shape.n_graph_tokens * through * FLOAT_BYTES
    return through + max(widest, attention_bytes(architecture, shape))


def head_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The buffer of an MTP head: attention over joined states, the rest for rows with logits."""
    width = attention_width(architecture, shape) + 3 * architecture.d_hidden
    return shape.n_graph_tokens * width * FLOAT_BYTES + mask_bytes(architecture, shape)


def attention_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The buffer of attention: activations, masks, and scores if they are stored."""
    width = attention_width(architecture, shape) + scores_width(architecture, shape)
    activations = shape.n_graph_tokens * width * FLOAT_BYTES
    return activations + indexer_bytes(architecture, shape) + mask_bytes(architecture, shape)


def indexer_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Scores and masks of cells in attention that selects them by an indexer.

    MiniMax M3 selects blocks for each key head, one stream after the other, and holds the mask as
    floats; without flash attention, or where slots share a cache, its attention is dense.
    """
    if not architecture.has_indexer:
        return 0
    if architecture.family.indexer != "blocks":
        return shape.n_graph_tokens * shape.n_cells * (FLOAT_BYTES + HALF_BYTES)
    mask = float_mask_bytes(architecture, shape)
    n_heads = max(layer.n_kv_heads for layer in architecture.distinct_layers)
    return mask + 2 * n_heads * mask // shape.n_streams


def float_mask_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The attention mask as floats if attention selects blocks of cells (MiniMax M3), else 0."""
    is_dense = not shape.flash_attention or shape.n_streams < shape.n_slots
    if is_dense or architecture.family.indexer != "blocks":
        return 0
    return shape.n_graph_tokens * shape.n_cells * FLOAT_BYTES


def scores_width(architecture: Architecture, shape: CacheShape) -> int:
    """The scores of one token that are stored; 0 with flash attention.

    Scores that are biased by position (ALiBi, T5) are stored three times, with the distances.
    """
    layers = [layer for layer in architecture.distinct_layers if layer.n_kv_heads]
    width = max((layer.n_heads * shape.attended_cells(layer) for layer in layers), default=0)
    if architecture.attends_in_batch:
        width = architecture.n_heads * shape.n_graph_tokens
    if architecture.has_position_bias:
        return 3 * width + 2 * _mask_span(architecture, shape)
    return 0 if shape.flash_attention else width


def feed_forward_width(architecture: Architecture, n_beside: int = 4) -> int:
    """The elements of one token in a dense block: inner activations and hidden states."""
    widths = architecture.widths
    if widths.is_gated and widths.is_parallel:
        n_beside = 5
    elif widths.is_gated and widths.is_fused:
        n_beside = 3
    n_beside += 5 * architecture.family.keeps_first_values
    return (3 if widths.is_gated else 1) * widths.feed_forward + n_beside * architecture.d_hidden


def inner_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """One inner activation of a gated block, or of the experts of a token."""
    widths = architecture.widths
    width = widths.feed_forward * widths.is_gated
    if architecture.is_moe:
        width = architecture.n_experts_used * widths.expert
    return shape.n_graph_tokens * width * FLOAT_BYTES


def experts_width(architecture: Architecture) -> int:
    """The elements of one token in a block of experts."""
    widths, n_used = architecture.widths, architecture.n_experts_used
    if not widths.expert:
        return 0
    inner, outer = n_used * widths.expert, n_used * widths.expert_output
    n_inner = 3 if widths.is_expert_gated else 1
    if architecture.n_streams:
        n_beside = 3 + architecture.n_streams
        return max(n_inner * inner, 2 * inner + outer) + n_beside * architecture.d_hidden
    above = outer if outer > (n_inner - 1) * inner else 0
    routed = n_inner * inner + above
    n_beside = 4 if widths.shared_expert or not above else 5
    return max(routed, 3 * widths.shared_expert) + n_beside * architecture.d_hidden


def attention_width(architecture: Architecture, shape: CacheShape) -> int:
    """The elements of one token in attention: queries, results, keys and values."""
    widths = architecture.widths
    if architecture.is_latent:
        k_dim, v_dim = max(architecture.k_head_dims), max(architecture.v_head_dims)
        return architecture.n_heads * (k_dim + 2 * v_dim) + architecture.d_hidden
    if any(layer.compress_ratio for layer in architecture.distinct_layers):
        n_streams = 1 + architecture.n_streams
        return 5 * widths.query // 2 + widths.key_value + n_streams * architecture.d_hidden
    if widths.is_fused and architecture.layers:
        layers = architecture.distinct_layers
        split = max(layer.n_heads * layer.k_head_dim for layer in layers)
        split += max(layer.k_width for layer in layers)
        return widths.query + split + 2 * architecture.d_hidden
    n_key_values = 2 if widths.is_decompressed and is_quantized(shape.type_k) else 1
    n_beside = 3 if shape.flash_attention else 2
    return 2 * widths.query + n_key_values * widths.key_value + n_beside * architecture.d_hidden


def recurrent_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The buffer of a recurrent block: its projections."""
    if not architecture.states:
        return 0
    widths, d_hidden = architecture.widths, architecture.d_hidden
    row = next(iter(architecture.states.values())).n_state * shape.n_slots
    if widths.linear_attention:  # MiniMax: the tokens of each slot against each other
        scores = 3 * architecture.n_heads * shape.n_graph_tokens // shape.n_slots
        width, row = 2 * widths.linear_attention + 2 * d_hidden + scores, 0
    elif widths.delta_net:
        width, row = 6 * widths.delta_net + 2 * d_hidden, 2 * row
    elif widths.gated_delta_net:
        width, row = 3 * widths.gated_delta_net + 2 * d_hidden, 2 * row
    elif widths.mixtures:
        n_beside = 7 if architecture.family.keeps_first_values else 4
        width, row = 2 * widths.mixtures + n_beside * d_hidden, 2 * row
    else:
        width = 3 * widths.state_input + d_hidden
    return (shape.n_graph_tokens * width + row) * FLOAT_BYTES


def mask_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The attention masks: one for dense layers, one for sliding ones."""
    size = HALF_BYTES if shape.flash_attention else FLOAT_BYTES
    return shape.n_graph_tokens * _mask_span(architecture, shape) * size


def _mask_span(architecture: Architecture, shape: CacheShape) -> int:
    """The cells that the masks of a token span."""
    if architecture.attends_in_batch:
        return shape.n_graph_tokens
    layers = architecture.distinct_layers
    spans = {layer.window is None: shape.cells(layer) for layer in layers}
    compressed = {layer.compress_ratio: shape.compressed_cells(layer) for layer in layers}
    return sum(spans.values()) + sum(compressed.values())


def compute_bounds(
    architecture: Architecture, shape: CacheShape, nbytes: int, place: Place
) -> Bounds:
    """The smallest and the largest size of a buffer.

    Three hidden states of each token and 1 MiB depend on gaps between tensors; the rest of the
    range is a share of the size.
    """
    dense, experts, unusual, rough = TOLERANCES[place]
    rarity, (below, above) = architecture.family.graph, experts if architecture.is_moe else dense
    is_rare = architecture.is_recurrent or architecture.n_streams or architecture.has_position_bias
    if rarity == "rough" or architecture.has_indexer:
        below, above = rough
    elif is_rare or rarity == "unusual":
        below, above = unusual
    gaps = HIDDEN_STATES * shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES + MIB
    return max(0, round(nbytes * (1 - below)) - gaps), round(nbytes * (1 + above)) + gaps


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
    """Whether `auto` turns flash attention off: CUDA has no kernel for the model's heads.

    llama.cpp probes whether a layer's device has one (`src/llama-context.cpp`). AMD cards may run
    by Vulkan, whose kernels differ.
    """
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
