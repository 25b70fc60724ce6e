"""The buffers of the graph, by formula.

Fitted to llama.cpp 0c1e57098 on the CPU (dry runs of dense Llama, Qwen 2 and Gemma 3 models): the
largest of the logits of the flagged rows and of one layer's activations with the attention mask.
They hold for dense models within a few per cent; with experts they are a range.
"""

from engine.memory.kv_cache import CacheShape
from engine.memory.kv_types import is_quantized
from engine.model.architecture import Architecture

FLOAT_BYTES = 4


def compute_bytes(architecture: Architecture, shape: CacheShape, n_outputs: int) -> int:
    """Give the bytes of the largest compute buffer; `n_outputs` is the most rows with logits."""
    n_tokens = min(shape.n_ubatch, shape.n_cells)
    n_rows = min(n_tokens, n_outputs)
    logits = n_rows * (architecture.n_vocab + 2 * architecture.d_hidden) * FLOAT_BYTES
    mask_bytes = _mask_bytes(architecture, shape, n_tokens)
    if not shape.flash_attention:
        scores = architecture.n_heads * shape.n_cells * n_tokens * FLOAT_BYTES
        return max(logits, scores + 2 * mask_bytes + n_tokens * architecture.d_hidden * 8)
    activations = n_tokens * (3 * _feed_forward(architecture) + 4 * architecture.d_hidden)
    rotation = 0
    if is_quantized(shape.type_k) or is_quantized(shape.type_v):
        rotation = n_tokens * architecture.d_hidden * FLOAT_BYTES
    return max(logits, activations * FLOAT_BYTES + mask_bytes + rotation)


def output_bytes(architecture: Architecture, n_outputs: int) -> int:
    """Give the bytes of the rows that logits are copied to, in the memory of the CPU."""
    return n_outputs * architecture.n_vocab * FLOAT_BYTES


def _mask_bytes(architecture: Architecture, shape: CacheShape, n_tokens: int) -> int:
    """Give the bytes of the f16 masks: one for dense layers, one for sliding ones."""
    cells = {shape.cells(layer) for layer in architecture.layers.values()} or {shape.n_cells}
    windows = {layer.window for layer in architecture.layers.values()}
    spans = sum(cells) if len(windows) > 1 else max(cells)
    return n_tokens * spans * 2


def _feed_forward(architecture: Architecture) -> int:
    if architecture.is_moe:
        return max(1, architecture.n_experts_used) * architecture.d_feed_forward
    return architecture.d_feed_forward
