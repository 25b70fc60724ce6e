"""What an indexer of sparse attention adds to a graph: scores, choices and masks.

Read off the graphs of llama.cpp 0c1e57098 (`src/models/{deepseek4,deepseek32,glm-dsa,glm5-next,
hy-v4,minimax-m3,qwen4exp}.cpp`, `build_attn` in `src/llama-graph.cpp`): the tensors that are alive
at once where they are widest, for each token and cell, and those that span the cells alone.
"""

from engine.memory.kv_cache import CacheShape, kv_type
from engine.memory.units import FLOAT_BYTES, HALF_BYTES
from engine.model.architecture import Architecture
from engine.model.layers import Indexer


def sparse_attention_bytes(architecture: Architecture, shape: CacheShape, attending: int) -> int:
    """The widest place of attention that looks at chosen tokens, without the masks.

    Args:
        architecture: A model, with an indexer or without.
        shape: The cache.
        attending: Bytes of attention to all tokens: its activations, and scores that are stored.
    """
    indexer = architecture.indexer
    if indexer is None:
        return attending
    match architecture.family.indexer:
        case "blocks":
            return max(attending, _blocks_bytes(architecture, indexer, shape))
        case "pools":
            return attending + _pooled_scores_bytes(indexer, shape)
        case "latent pools":
            return _pooled_latents_bytes(architecture, indexer, shape, attending)
        case "compressed":
            return attending + _compressed_bytes(architecture, shape)
        case _:
            queries = 2 * indexer.n_heads * indexer.head_dim * FLOAT_BYTES
            attending = max(attending, shape.n_graph_tokens * queries)
            return attending + _chosen_cells_bytes(architecture, shape)


def choices_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The zeros that open the mask to chosen tokens: all layers' are there from the start."""
    indexer = architecture.indexer
    kind = architecture.family.indexer
    if indexer is None or kind == "blocks":
        return 0
    n_chosen, size = indexer.n_chosen + indexer.pool - 1, FLOAT_BYTES
    layers = [layer for layer in architecture.layers.values() if layer.window is None]
    n_cells = shape.n_cells
    if kind == "compressed":
        layers = [layer for layer in architecture.layers.values() if layer.indexer_k_width]
        n_cells, size = _compressed_cells(architecture, shape), HALF_BYTES
    n_layers = 1 if kind == "latent pools" else len(layers)
    return shape.n_graph_tokens * n_layers * min(n_chosen, n_cells) * size


def indexer_mask_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The mask that an indexer has of its own, an input of the graph."""
    kind, n_cells = architecture.family.indexer, 0
    if kind == "tokens" and architecture.indexer:
        n_cells = shape.n_cells
    elif kind == "compressed":
        n_cells = _compressed_cells(architecture, shape)
    return shape.n_graph_tokens * n_cells * HALF_BYTES


def _chosen_cells_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The scores, the indexer's own mask (f16), and the mask of what was chosen.

    Without flash attention the latter is filled and added in f32, and values are transposed.
    """
    cell = FLOAT_BYTES + HALF_BYTES
    values = 0
    if not shape.flash_attention:
        cell = HALF_BYTES + 2 * FLOAT_BYTES
        values = transposed_values_bytes(architecture, shape)
    return shape.n_graph_tokens * shape.n_cells * cell + values


def transposed_values_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """The copy of a layer's latent values: attention without kernels needs rows."""
    layers = architecture.distinct_layers
    v_dim = max(architecture.v_head_dims, default=0)
    v_dim = max([v_dim, *(layer.v_width for layer in layers)])
    cells = max(map(shape.attended_cells, layers), default=0)
    return cells * shape.n_streams * kv_type(shape.type_v).row_bytes(v_dim)


def _blocks_bytes(architecture: Architecture, indexer: Indexer, shape: CacheShape) -> int:
    """The masks of chosen blocks for each head of an indexer (MiniMax M3).

    They are expanded from blocks to cells, one stream behind the other, and transposed: twice
    there, beside the causal mask in f32. llama.cpp attends to everything without flash attention,
    and where slots share their cells.
    """
    if not shape.flash_attention or (shape.n_slots > 1 and shape.kv_unified):
        return 0
    n_tokens, n_cells = shape.n_graph_tokens, shape.n_cells
    n_scores = n_tokens // shape.n_streams * n_cells * indexer.n_heads
    expanded = max(2 * n_scores, n_scores + n_cells * indexer.head_dim) * FLOAT_BYTES
    widths = architecture.widths
    width = 3 * architecture.d_hidden + widths.query + 2 * widths.key_value
    return expanded + n_tokens * (n_cells + width) * FLOAT_BYTES


def _pooled_scores_bytes(indexer: Indexer, shape: CacheShape) -> int:
    """The scores of pooled keys, expanded to cells and transposed (Qwen 4).

    Or the keys that are pooled: a row for each cell of all streams, and two of the pooled.
    """
    n_tokens, n_cells = shape.n_graph_tokens, shape.n_cells
    n_pooled = -(-n_cells // indexer.pool)
    expanded = n_tokens * (2 * n_cells * FLOAT_BYTES + shape.flash_attention * 2 * n_cells)
    keys = (n_cells + 2 * n_pooled) * shape.n_streams * indexer.head_dim * FLOAT_BYTES
    scored = 2 * n_tokens * n_pooled * indexer.n_heads * FLOAT_BYTES
    return max(expanded, keys, scored) + n_tokens * n_pooled * FLOAT_BYTES


def _pooled_latents_bytes(
    architecture: Architecture, indexer: Indexer, shape: CacheShape, attending: int
) -> int:
    """Attention to pools of tokens: the cells of chosen pools as a mask (GLM 5.3).

    Or the keys and gates of all cells, of which softmax makes pooled keys.
    """
    n_tokens, n_cells = shape.n_graph_tokens, shape.n_cells
    cell = HALF_BYTES if shape.flash_attention else FLOAT_BYTES
    latent = n_tokens * architecture.n_heads * max(architecture.v_head_dims) * FLOAT_BYTES
    masked = attending + n_tokens * n_cells * cell
    chosen = attending - latent + n_tokens * 2 * n_cells * cell
    if not shape.flash_attention:
        masked += transposed_values_bytes(architecture, shape)
    keys = 4 * n_cells * shape.n_slots * indexer.head_dim * FLOAT_BYTES
    return max(masked, chosen, keys) + n_tokens * (n_cells // indexer.pool) * HALF_BYTES


def _compressed_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """What spans the compressed cache: masks, and keys beside those of the window.

    DeepSeek V4 joins both in one tensor; without flash attention values are transposed too.
    """
    masks = 3 * shape.n_graph_tokens * _compressed_cells(architecture, shape) * HALF_BYTES
    cells = max(map(shape.attended_cells, architecture.distinct_layers), default=0)
    cells *= shape.n_streams
    keys = cells * kv_type(shape.type_k).row_bytes(max(architecture.k_head_dims))
    if not shape.flash_attention:
        keys += transposed_values_bytes(architecture, shape)
    return masks + keys


def _compressed_cells(architecture: Architecture, shape: CacheShape) -> int:
    return max(map(shape.compressed_cells, architecture.distinct_layers), default=0)
