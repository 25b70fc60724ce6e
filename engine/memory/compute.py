"""The buffers of the graph, by formula.

Fitted to llama.cpp 0c1e57098 on the CPU (dry runs of dense Llama, Qwen 2 and Gemma 3 models): the
largest of the logits of the flagged rows and of one layer's activations with the attention mask.
They hold for dense models within a few per cent; with experts they are a range.
"""

from engine.memory.kv_cache import CacheShape
from engine.model.architecture import Architecture

FLOAT_BYTES = 4


def compute_bytes(architecture: Architecture, shape: CacheShape, n_outputs: int) -> int:
    """Give the bytes of the largest compute buffer; `n_outputs` is the most rows with logits."""
    n_tokens = shape.n_graph_tokens
    n_rows = min(n_tokens, n_outputs)
    logits = n_rows * (architecture.n_vocab + 2 * architecture.d_hidden) * FLOAT_BYTES
    n_masked = n_tokens * _mask_span(architecture, shape)
    mask_bytes = n_masked * (2 if shape.flash_attention else FLOAT_BYTES)
    width = 3 * _feed_forward(architecture) + 4 * architecture.d_hidden
    if shape.flash_attention:
        return max(logits, n_tokens * width * FLOAT_BYTES + mask_bytes)
    attention_width = _attention_width(architecture)
    feed_forward = n_tokens * (width + attention_width) * FLOAT_BYTES + mask_bytes
    scores = architecture.n_heads * shape.n_cells * n_tokens
    width = 3 * architecture.d_hidden + 2 * attention_width
    attention = (scores + n_tokens * width) * FLOAT_BYTES + mask_bytes
    return max(logits, feed_forward, attention)


def layers_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the buffer without the output layer."""
    return compute_bytes(architecture, shape, 0)


def mask_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the attention masks: one for dense layers, one for sliding ones."""
    return (
        shape.n_graph_tokens
        * _mask_span(architecture, shape)
        * (2 if shape.flash_attention else FLOAT_BYTES)
    )


def relative_spread(architecture: Architecture) -> float:
    """Give how far the formula may be off, as a part of its number."""
    return 0.25 if architecture.is_moe or architecture.is_recurrent else 0.15


def output_bytes(architecture: Architecture, n_outputs: int) -> int:
    """Give the bytes of the rows that logits are copied to, in the memory of the CPU."""
    return n_outputs * architecture.n_vocab * FLOAT_BYTES


def _mask_span(architecture: Architecture, shape: CacheShape) -> int:
    """Give the cells that a token's masks span: one mask for dense layers, one for sliding ones."""
    spans = {layer.window is None: shape.cells(layer) for layer in architecture.layers.values()}
    return sum(spans.values()) if spans else shape.n_cells


def _attention_width(architecture: Architecture) -> int:
    """Give the elements of one token's queries, keys and values in the widest layer."""
    layers = architecture.layers.values()
    query = max((architecture.n_heads * layer.k_head_dim for layer in layers), default=0)
    kv = max((layer.k_width + layer.v_width for layer in layers), default=0)
    return query + kv


def _feed_forward(architecture: Architecture) -> int:
    if architecture.is_moe:
        return max(1, architecture.n_experts_used) * architecture.d_feed_forward
    return architecture.d_feed_forward
