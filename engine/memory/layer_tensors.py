"""The bytes of a graph's tensors: those of each layer, and its inputs.

Read off `build_qkv`, `build_attn`, `build_ffn` and `build_moe_ffn` (`src/llama-graph.cpp` of
llama.cpp 0c1e57098).
"""

from collections.abc import Callable, Mapping

from engine.memory.cuda_kernels import attending_layers
from engine.memory.kv_cache import CacheShape, is_quantized, kv_type
from engine.model.architecture import Architecture
from engine.model.gguf_header import TensorInfo
from engine.model.layers import Layer

FLOAT_BYTES = 4
CELL_BYTES = 8
"""The number of a cell, as an input of the graph."""
SPANS = ("dense", "sliding")
HALF_BYTES = 2
TURNED_ELEMENTS = 64
"""Heads of multiples of so many elements are turned for a quantised cache."""
VALUE_TURN_BYTES = TURNED_ELEMENTS**2 * FLOAT_BYTES
NAMED_PRODUCTS = ("time_mix_", "channel_mix_", "altup_", "laurel_l", "inp_gate")
"""Beginnings of the names of matrices whose products are named after them."""
FOUR_POSITIONS = frozenset(
    {"hunyuan_vl", "paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe"}
)
"""Architectures that know a token's place in text, time, height and width."""
UNTURNED = frozenset({"lfm2", "lfm2moe"})
"""Architectures whose quantised caches are not turned."""


def layer_sizes(
    architecture: Architecture,
    shape: CacheShape,
    layer: Layer,
    weights: Mapping[str, TensorInfo],
    n_tokens: int,
) -> dict[str, int]:
    """The bytes of a layer's tensors, for some tokens of a micro-batch."""

    def width(name: str, side: int) -> int:
        found = weights.get(f"{name}.weight")
        return 0 if found is None or len(found.shape) <= side else found.shape[side]

    row, n_streams = n_tokens * FLOAT_BYTES, width("altup_router", 1)
    n_used, inner = architecture.n_experts_used, width("ffn_down", 0)
    expert = n_used * width("ffn_down_exps", 0)
    return {
        "hidden": row * architecture.d_hidden,
        **_attention_sizes(architecture, shape, layer, width("attn_qkv", 1), n_tokens),
        "inner": row * inner,
        "both inner": 2 * row * inner,
        "router": row * architecture.n_experts,
        "weights": row * n_used,
        "weights sum": row,
        "inner experts": row * expert,
        "both experts": 2 * row * expert,
        "outer": row * n_used * width("ffn_down_exps", 1),
        "shared": row * width("ffn_down_shexp", 0),
        "all layer embeddings": row * architecture.layer_embedding_width,
        "streams": row * architecture.d_hidden * n_streams,
        "other streams": row * architecture.d_hidden * max(0, n_streams - 1),
        "other sums": row * max(0, n_streams - 1),
        "logits": row * architecture.n_vocab,
        **(_state_sizes(architecture, shape, width, n_tokens) if architecture.states else {}),
        **_product_sizes(weights, row),
    }


def _attention_sizes(
    architecture: Architecture, shape: CacheShape, layer: Layer, fused: int, n_tokens: int
) -> dict[str, int]:
    """The bytes of tensors around attention; `fused` is the width of a fused row, 0 for none."""
    row, in_batch = n_tokens * FLOAT_BYTES, architecture.attends_in_batch
    n_attended = n_tokens if in_batch else shape.attended_cells(layer)
    cells = n_tokens if in_batch else n_attended * shape.streams(layer)
    key, value = layer.k_width, layer.v_width
    query, result = (layer.n_heads * dim for dim in (layer.k_head_dim, layer.v_head_dim))
    whole = fused or query + key + value
    caches = ((key, shape.type_k), (value, shape.type_v))
    copied = sum(n for n, name in caches if name not in ("f16", "f32") and not in_batch)
    stored_key, stored_value = (cells * kv_type(name).row_bytes(n) for n, name in caches)
    return {
        "row": row * whole,
        "biases": FLOAT_BYTES * whole,
        "first biases": FLOAT_BYTES * (whole - value),
        "head gates": row * layer.n_heads,
        "query": row * query,
        "gated query": 2 * row * query,
        "key": row * key,
        "value": row * value,
        "gated query of row": row * whole - FLOAT_BYTES * (whole - 2 * query),
        "query of row": row * whole - FLOAT_BYTES * (whole - query),
        "key of row": row * whole - FLOAT_BYTES * (whole - key),
        "value of row": row * whole - FLOAT_BYTES * (whole - value),
        "stored value": row * architecture.v_width_max,
        "key cache": stored_key,
        "value cache": stored_value,
        "cast key": cells * key * HALF_BYTES,
        "cast value": cells * value * HALF_BYTES,
        "transposed": row * value if in_batch else stored_value,
        "scores": row * layer.n_heads * n_attended,
        "result": row * result,
        "kernel result": row * result + cells * copied * HALF_BYTES,
    }


def _product_sizes(weights: Mapping[str, TensorInfo], row: int) -> dict[str, int]:
    """The bytes of what matrices give that no other name is for."""
    found = {}
    for whole, tensor in weights.items():
        name = whole.removesuffix(".weight")
        if name.startswith(NAMED_PRODUCTS) and name != whole and len(tensor.shape) > 1:
            found[f"made by {name}"] = row * tensor.shape[1]
    return found


def _state_sizes(
    architecture: Architecture, shape: CacheShape, width: Callable[[str, int], int], n_tokens: int
) -> dict[str, int]:
    """The bytes of tensors around a state; a matrix has `width` elements on a side."""
    state, row = next(iter(architecture.states.values())), n_tokens * FLOAT_BYTES
    n_slots = max(1, shape.n_slots)
    convolution = "shortconv.conv" if width("shortconv.conv", 0) else "ssm_conv1d"
    n_taps, n_convolved = width(convolution, 0), width(convolution, 1)
    columns = (n_taps - 1) * n_slots + n_tokens
    outward = ("ssm_out", "shortconv.out_proj", "time_mix_output")
    n_inner = next(filter(None, (width(name, 0) for name in outward)), 0)
    n_ranks, n_choices = width("ssm_dt", 0), width("ssm_x", 1)
    n_heads = width("ssm_alpha", 1) or width("ssm_ba", 1) // 2
    states = state.n_state * n_slots * (1 + shape.n_rollback)
    return {
        "projected": row * (width("ssm_in", 1) or width("shortconv.in_proj", 1)),
        "conv states": state.n_convolution * n_slots * FLOAT_BYTES,
        "conv input": columns * n_convolved * FLOAT_BYTES,
        "convolved": row * n_convolved,
        "mixed": row * n_inner,
        "choices": row * n_choices,
        "step inputs": row * n_ranks,
        "gates": row * (n_choices - n_ranks) // 2,
        "steps": row * max(0, width("ssm_in", 1) - n_inner - n_convolved),
        "scanned": row * n_inner + states * FLOAT_BYTES,
        "nothing": 0,
        "delta key": row * max(0, n_convolved - n_inner) // 2,
        "both delta keys": row * max(0, n_convolved - n_inner),
        "delta heads": row * n_heads,
        "both delta heads": 2 * row * n_heads,
        "wkv states": state.n_state * n_slots * FLOAT_BYTES,
        "mixtures": row * n_inner * (width("time_mix_lerp_fused", 3) or 5),
        "heads": row * n_inner * architecture.d_hidden // max(state.n_state, 1),
        "last states": states * FLOAT_BYTES,
        "states": (state.n_state + state.n_convolution) * n_slots * FLOAT_BYTES,
    }


def span_of(layer: Layer) -> str:
    """Which mask and cache a layer takes."""
    return "dense" if layer.window is None else "sliding"


def is_turned(architecture: Architecture, shape: CacheShape) -> bool:
    """Whether queries and keys are turned by a Hadamard matrix, for a quantised cache."""
    is_even = not max(architecture.k_head_dims, default=0) % TURNED_ELEMENTS
    return is_quantized(shape.type_k) and is_even and architecture.name not in UNTURNED


def is_value_turned(architecture: Architecture, shape: CacheShape) -> bool:
    """Whether values are turned by one."""
    is_even = not max(architecture.v_head_dims, default=1) % TURNED_ELEMENTS
    return is_quantized(shape.type_v) and is_even and architecture.name not in UNTURNED


def graph_inputs(
    architecture: Architecture, shape: CacheShape, n_rows: int, *, is_late: bool
) -> dict[str, int]:
    """The bytes of each input of a graph, by its name.

    Args:
        architecture: The model.
        shape: The cache.
        n_rows: The rows with logits.
        is_late: Whether values are transposed after they were read, and not as they are stored.
    """
    n_tokens = shape.n_graph_tokens
    tokens = n_tokens * FLOAT_BYTES
    is_whole = shape.flash_attention or is_late
    embedded = tokens * architecture.d_hidden
    images = embedded * architecture.n_image_rows
    inputs = {
        "tokens": tokens,
        "tokens again": tokens,
        "embeddings": embedded + images,
        "first embeddings": embedded + images - FLOAT_BYTES * images // tokens,
        "positions": tokens * (4 if architecture.name in FOUR_POSITIONS else 1),
        "rows": n_rows * FLOAT_BYTES,
        "all state rows": max(1, shape.n_slots) * FLOAT_BYTES,
        "state rows": max(1, shape.n_slots) * FLOAT_BYTES,
        "other state rows": 0,
    }
    mask = HALF_BYTES if shape.flash_attention else FLOAT_BYTES
    in_batch = architecture.attends_in_batch
    for layer in attending_layers(architecture)[:1] if in_batch else architecture.distinct_layers:
        cells = n_tokens if in_batch else shape.attended_cells(layer)
        inputs[f"mask {span_of(layer)}"] = n_tokens * cells * mask
    places = n_tokens * CELL_BYTES
    for span in SPANS:
        inputs[f"key places {span}"] = places
        inputs[f"value places {span}"] = places * (1 if is_whole else architecture.v_width_max)
        inputs[f"key turn {span}"] = key_turn_bytes(architecture)
        inputs[f"value turn {span}"] = VALUE_TURN_BYTES
    return inputs


def key_turn_bytes(architecture: Architecture) -> int:
    """The Hadamard matrix of queries and keys: as large as the keys' heads divide by."""
    n_dims = max(architecture.k_head_dims, default=0)
    return (n_dims & -n_dims) ** 2 * FLOAT_BYTES
