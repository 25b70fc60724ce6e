"""The largest compute buffer, by formula.

llama.cpp reserves one buffer for the largest graph, and lets tensors that are no longer needed
make room for others. Models whose graph is known are laid out tensor by tensor (`layout.py`). For
the others the formulas here count what is alive at the widest place of the graph (attention, a
feed-forward block, the experts, a recurrent block, or the logits), in tensors of one micro-batch,
as the graphs (`src/models/*.cpp`) and the allocator (`ggml/src/ggml-alloc.c`) of llama.cpp
0c1e57098 leave it. Holes between tensors are in the ranges; errors:
`benchmarks/results/accuracy.md`.
"""

from typing import Literal

from engine.memory.cuda_kernels import cast_bytes
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.memory.sparse_attention import (
    choices_bytes,
    indexer_mask_bytes,
    sparse_attention_bytes,
    transposed_values_bytes,
)
from engine.memory.terms import Bounds
from engine.memory.units import FLOAT_BYTES, HALF_BYTES, MIB
from engine.model.architecture import Architecture

Place = Literal["cpu", "gpu", "visited gpu", "host", "visited host"]
"""Where a buffer is: on a GPU, or in main memory alone or beside GPUs. Visited are those of models
of which layers, experts or caches lie in main memory while GPUs compute."""
Kind = Literal["dense", "experts", "unusual", "rough"]
SPREADS: dict[Place, dict[Kind, tuple[float, float]]] = {
    "cpu": {
        "dense": (0.1, 0.1),
        "experts": (0.2, 0.2),
        "unusual": (0.35, 0.45),
        "rough": (0.7, 2.2),
    },
    "gpu": {
        "dense": (0.15, 0.15),
        "experts": (0.2, 0.2),
        "unusual": (0.4, 0.8),
        "rough": (0.95, 1.9),
    },
    "visited gpu": {
        "dense": (0.4, 0.5),
        "experts": (0.5, 0.5),
        "unusual": (0.7, 1.2),
        "rough": (0.7, 2.5),
    },
    "host": {
        "dense": (0.15, 0.2),
        "experts": (0.15, 0.2),
        "unusual": (0.4, 0.8),
        "rough": (0.5, 1.5),
    },
    "visited host": {
        "dense": (0.5, 0.4),
        "experts": (0.5, 0.4),
        "unusual": (0.7, 2.0),
        "rough": (0.7, 8.0),
    },
}
"""How far a buffer was below and above its formula on 1,100 shapes of 135 architectures, as a part
of it, beside what holes hold (`benchmarks/results/accuracy_shapes.md`)."""
HIDDEN_STATES = 3
CELL_BYTES = 8
"""The number of a cell, as an input of the graph."""
ROTATED_ELEMENTS = 64
"""Heads of multiples of so many elements are rotated by a Hadamard matrix in a quantised cache."""


def compute_bytes(architecture: Architecture, shape: CacheShape, n_outputs: int) -> int:
    """The compute buffer of a model that the CPU runs alone.

    Beside the logits there is still room for embeddings that nobody gave.

    Args:
        architecture: The model.
        shape: The cache.
        n_outputs: The most rows with logits.
    """
    embedded = shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES
    logits = embedded + logits_bytes(architecture, shape, n_outputs)
    is_even = architecture.widths.query == architecture.d_hidden
    n_beside = 3 if is_even and has_rotated_keys(architecture, shape) else 4
    return max(layers_bytes(architecture, shape, n_beside), logits)


def logits_bytes(architecture: Architecture, shape: CacheShape, n_outputs: int) -> int:
    """The buffer of the output layer: logits, and the hidden states they come from."""
    n_rows = shape.n_graph_tokens
    if not architecture.gives_all_logits:
        n_rows = min(n_rows, n_outputs)
    width = architecture.family.n_logit_copies * architecture.n_vocab + 2 * architecture.d_hidden
    return n_rows * width * FLOAT_BYTES


def input_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The inputs of a graph but for its tokens: positions, cells, masks, Hadamard matrices."""
    n_tokens = shape.n_graph_tokens
    n_caches = len({layer.window is None for layer in architecture.distinct_layers})
    nbytes = n_tokens * FLOAT_BYTES + mask_bytes(architecture, shape)
    nbytes += indexer_mask_bytes(architecture, shape)
    if architecture.attends_in_batch:
        return nbytes
    n_cells = 1 if shape.flash_attention else architecture.v_width_max
    nbytes += rotation_bytes(architecture, shape) * n_caches
    return nbytes + n_caches * n_tokens * (1 + n_cells) * CELL_BYTES


def rotation_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The Hadamard matrices of a cache: for keys as large as the size of their heads allows."""
    n_dims = max(architecture.k_head_dims, default=0)
    n_keys = (n_dims & -n_dims) * has_rotated_keys(architecture, shape)
    n_values = ROTATED_ELEMENTS * _has_rotated_values(architecture, shape)
    return (n_keys**2 + n_values**2) * FLOAT_BYTES


def has_rotated_keys(architecture: Architecture, shape: CacheShape) -> bool:
    """Whether queries and keys are rotated by a Hadamard matrix, for a quantised cache."""
    is_even = not max(architecture.k_head_dims, default=0) % ROTATED_ELEMENTS
    return is_quantized(shape.type_k) and is_even and architecture.family.rotates_cache


def _has_rotated_values(architecture: Architecture, shape: CacheShape) -> bool:
    is_even = not max(architecture.v_head_dims, default=1) % ROTATED_ELEMENTS
    return is_quantized(shape.type_v) and is_even and architecture.family.rotates_cache


def layers_bytes(architecture: Architecture, shape: CacheShape, n_beside: int = 4) -> int:
    """The buffer of the layers without the output layer.

    Args:
        architecture: The model.
        shape: The cache.
        n_beside: Hidden states beside the inner activations of a dense block: one less where
            rotated queries and keys left room.
    """
    width = max(feed_forward_width(architecture, n_beside), experts_width(architecture))
    widest = shape.n_graph_tokens * width * FLOAT_BYTES
    widest = max(widest, recurrent_bytes(architecture, shape), streams_bytes(architecture, shape))
    if not shape.flash_attention:
        widest += shape.n_graph_tokens * architecture.widths.key_value * FLOAT_BYTES
    widest += mask_bytes(architecture, shape)
    beside = shape.n_graph_tokens * _held_width(architecture) * FLOAT_BYTES
    beside += choices_bytes(architecture, shape)
    beside += 2 * image_bytes(architecture, shape)
    return beside + max(widest, attention_bytes(architecture, shape))


def image_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The rows of an image's features beside the embeddings of tokens (DeepStack)."""
    return shape.n_graph_tokens * architecture.n_image_rows * architecture.d_hidden * FLOAT_BYTES


def _held_width(architecture: Architecture) -> int:
    """The elements of one token that stay through all layers.

    Embeddings of the layers leave room behind, as large as they are, that two hidden states fit.
    """
    embedded = architecture.layer_embedding_width
    return architecture.streams_width + 2 * embedded - 2 * bool(embedded) * architecture.d_hidden


def streams_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """What hyper-connections hold beside their streams while they mix them.

    Fused, the normed streams and the mixed ones; unfused (HY 4) a copy more. Qwen 4 adds n-grams.
    """
    if not architecture.n_streams:
        return 0
    n_copies = architecture.family.n_stream_copies
    width = (n_copies * architecture.n_streams + 4) * architecture.d_hidden
    return shape.n_graph_tokens * width * FLOAT_BYTES


def head_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The buffer of a next-token head: attention over joined states.

    The rest of its block runs for the rows alone that give logits.
    """
    width = attention_width(architecture, shape) + 3 * architecture.d_hidden
    return shape.n_graph_tokens * width * FLOAT_BYTES + mask_bytes(architecture, shape)


def attention_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The buffer of attention: its activations, masks, and scores where they are stored.

    Without flash attention there is a score for every head and cell of the widest span; with it
    there is an f16 copy of a layer's f32 cache.
    """
    width = attention_width(architecture, shape) + scores_width(architecture, shape)
    activations = shape.n_graph_tokens * width * FLOAT_BYTES
    activations = sparse_attention_bytes(architecture, shape, activations)
    if cast := cast_bytes(architecture, shape):
        activations = max(activations, cast + kernel_bytes(architecture, shape))
    if architecture.has_position_bias and not architecture.attends_in_batch:
        activations += encoded_bytes(architecture, shape)
        activations += transposed_values_bytes(architecture, shape)
    return activations + mask_bytes(architecture, shape)


def encoded_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """What T5's encoder hands to the decoder: as many tokens as the header's context has.

    Without flash attention keys, values and transposed values of all of them are there too.
    """
    n_copies = 1 if shape.flash_attention else 4
    return n_copies * architecture.n_ctx_train * architecture.d_hidden * FLOAT_BYTES


def kernel_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """What is there while a kernel attends: queries, results, and hidden states."""
    layers = architecture.distinct_layers
    heads = max((layer.n_heads * layer.k_head_dim for layer in layers), default=0)
    return shape.n_graph_tokens * (2 * heads + 2 * architecture.d_hidden) * FLOAT_BYTES


def scores_width(architecture: Architecture, shape: CacheShape) -> int:
    """The scores of one token that are stored; 0 with flash attention.

    Biased by position they are stored three times, beside the distances that the biases are for.
    """
    layers = [layer for layer in architecture.distinct_layers if layer.n_kv_heads]
    width = max((layer.n_heads * shape.attended_cells(layer) for layer in layers), default=0)
    if architecture.attends_in_batch:
        width = architecture.n_heads * shape.n_graph_tokens
    if architecture.has_position_bias:
        crossed = 0 if shape.flash_attention else architecture.n_heads * architecture.n_ctx_train
        return max(3 * width + 2 * _mask_span(architecture, shape), crossed)
    return 0 if shape.flash_attention else width


def feed_forward_width(architecture: Architecture, n_beside: int = 4) -> int:
    """The elements of one token in a dense block: inner activations and hidden states.

    The row of fused queries, keys and values leaves room for one of them, too. A block beside
    attention waits for its result.
    """
    widths = architecture.widths
    if widths.is_gated and widths.is_parallel:
        n_beside = 5
    elif widths.is_gated and widths.is_fused:
        n_beside = 3
    n_beside += 5 * (architecture.family.keeps_first_values)
    return (3 if widths.is_gated else 1) * widths.feed_forward + n_beside * architecture.d_hidden


def inner_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """One of the activations of a gated block, or of the experts of a token.

    While a matrix that visits a GPU is there, not all of them are.
    """
    widths = architecture.widths
    width = widths.feed_forward * widths.is_gated
    if architecture.is_moe:
        width = architecture.n_experts_used * widths.expert
    return shape.n_graph_tokens * width * FLOAT_BYTES


def experts_width(architecture: Architecture) -> int:
    """The elements of one token in a block of experts.

    The experts' outputs fit where gate and up projections were, unless they are wider than both.
    """
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
    """The elements of one token in attention: queries, their results, keys and values.

    Latent attention takes queries into the latent space and results out of it.
    """
    widths = architecture.widths
    if architecture.is_latent:
        k_dim, v_dim = max(architecture.k_head_dims), max(architecture.v_head_dims)
        return architecture.n_heads * (k_dim + 2 * v_dim) + architecture.d_hidden
    is_compressed = any(layer.compress_ratio for layer in architecture.distinct_layers)
    if is_compressed:
        n_streams = 1 + architecture.n_streams
        return 5 * widths.query // 2 + widths.key_value + n_streams * architecture.d_hidden
    if widths.is_fused and architecture.layers:
        return widths.query + _split_width(architecture, shape) + 2 * architecture.d_hidden
    n_key_values = 2 if widths.is_decompressed and is_quantized(shape.type_k) else 1
    n_beside = 3 if shape.flash_attention else 2
    return 2 * widths.query + n_key_values * widths.key_value + n_beside * architecture.d_hidden


def _split_width(architecture: Architecture, shape: CacheShape) -> int:
    """What is there beside fused queries, keys and values.

    Rotated queries and keys, or the normed hidden states that they come from. For a quantised
    cache queries and values are rotated by a Hadamard matrix.
    """
    is_packed = is_quantized(shape.type_k) or is_quantized(shape.type_v)
    is_packed = is_packed and not max(architecture.k_head_dims) % ROTATED_ELEMENTS
    query = max(layer.n_heads * layer.k_head_dim for layer in architecture.distinct_layers)
    keys = max(layer.k_width for layer in architecture.distinct_layers)
    return query + max(keys, is_packed * (query + architecture.d_hidden))


def recurrent_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The buffer of a recurrent block: its projections."""
    if not architecture.states:
        return 0
    widths, d_hidden = architecture.widths, architecture.d_hidden
    if widths.linear_attention:
        return _linear_attention_bytes(architecture, shape)
    row = next(iter(architecture.states.values())).n_state * max(1, shape.n_slots)
    if widths.delta_net:
        width, n_states = 6 * widths.delta_net + 2 * d_hidden, 2
    elif widths.gated_delta_net:
        width, n_states = 3 * widths.gated_delta_net + 2 * d_hidden, 2
    elif widths.mixtures:
        n_beside = 7 if architecture.family.keeps_first_values else 4
        width, n_states = 2 * widths.mixtures + n_beside * d_hidden, 2
    else:
        width, n_states = 3 * widths.state_input + d_hidden, 1
    return (shape.n_graph_tokens * width + n_states * row) * FLOAT_BYTES


def _linear_attention_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The buffer of MiniMax's lightning attention: each slot's tokens against each other."""
    n_tokens = shape.n_graph_tokens
    width = 2 * architecture.widths.linear_attention + 2 * architecture.d_hidden
    scores = 3 * architecture.n_heads * n_tokens // max(1, shape.n_slots)
    return n_tokens * (width + scores) * FLOAT_BYTES


def decay_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The decay between the tokens of each slot, an input of MiniMax's lightning attention."""
    if not architecture.widths.linear_attention or not architecture.states:
        return 0
    n_tokens = shape.n_graph_tokens
    return n_tokens * architecture.n_heads * (n_tokens // max(1, shape.n_slots)) * FLOAT_BYTES


def mask_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The attention masks: one for dense layers, one for sliding ones."""
    size = HALF_BYTES if shape.flash_attention else FLOAT_BYTES
    return shape.n_graph_tokens * _mask_span(architecture, shape) * size


def compute_bounds(
    architecture: Architecture, shape: CacheShape, nbytes: int, place: Place
) -> Bounds:
    """The least and the most that a buffer may be.

    Whether tensors lie in holes that others left depends on the order of the graph: three hidden
    states of each token and 1 MiB may come or go. What goes beyond them is a part of the number.
    """
    below, above = SPREADS[place][_kind(architecture)]
    holes = HIDDEN_STATES * shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES + MIB
    return max(0, round(nbytes * (1 - below)) - holes), round(nbytes * (1 + above)) + holes


def _kind(architecture: Architecture) -> Kind:
    rarity = architecture.family.graph
    if rarity == "rough":
        return "rough"
    is_rare = architecture.is_recurrent or architecture.indexer or architecture.n_streams
    is_rare = is_rare or architecture.has_position_bias or rarity == "unusual"
    if is_rare:
        return "unusual"
    return "experts" if architecture.is_moe else "dense"


def output_bytes(architecture: Architecture, n_outputs: int) -> int:
    """The bytes of the rows that logits are copied to, in the memory of the CPU."""
    return n_outputs * architecture.n_vocab * FLOAT_BYTES


def _mask_span(architecture: Architecture, shape: CacheShape) -> int:
    """The cells that a token's masks span."""
    if architecture.attends_in_batch:
        return shape.n_graph_tokens
    layers = architecture.distinct_layers
    spans = {layer.window is None: shape.cells(layer) for layer in layers}
    compressed = {layer.compress_ratio: shape.compressed_cells(layer) for layer in layers}
    return sum(spans.values()) + sum(compressed.values())
