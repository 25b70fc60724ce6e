"""The tensors of each layer that take room in a compute buffer, in bytes for a micro-batch.

Read off `build_qkv`, `build_attn`, `build_ffn` and `build_moe_ffn` (`src/llama-graph.cpp` of
llama.cpp 0c1e57098). What is computed in place takes no room of its own: norms of heads, rotation,
biases, activations without a gate, residual sums.
"""

from dataclasses import dataclass, replace

from engine.memory.cuda_kernels import attending_layers
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.model.architecture import Architecture
from engine.model.layers import Layer

FLOAT_BYTES = 4
HALF_BYTES = 2
TURNED_ELEMENTS = 64
"""Heads of multiples of so many elements are turned for a quantised cache."""
UNROTATED = frozenset({"bloom", "gpt2", "jais", "mpt", "refact", "starcoder"})
"""Architectures that know positions by other means than rotation."""
UNROTATED_DENSE = frozenset(
    {"afmoe", "cohere2", "cohere2moe", "exaone4", "exaone-moe", "llama4", "muse-glimmer"}
)
"""Architectures that rotate in sliding layers alone."""
COPIED_ROWS = frozenset({"minimax-m2", "olmo2", "olmoe"})
"""Architectures that copy queries, keys and values out of one row (`build_qkv`)."""
NORMED_RESULTS = frozenset({"bitnet"})
"""Architectures that norm the result of attention before its projection."""
PROJECTED_FIRST = frozenset({"phi2"})
"""Architectures that project attention before the block beside it."""
HIDDEN_LAST = frozenset({"falcon", "plamo"})
"""Architectures that add hidden states behind attention and the block beside it."""
UNROTATED_EVERY = {"smollm3": 4}
"""Architectures that leave every n-th layer as it is."""
DENSE = frozenset({"refact"})
"""Architectures that load experts and run none."""
UNWALKED = frozenset(
    {
        "arctic", "deci", "dots1", "gemma4", "grok", "laguna", "mimo2", "openelm",
        "smallthinker", "spark2_5", "step35", "talkie",
    }
)  # fmt: skip
"""Architectures whose layers hold more than attention and one block behind it, or differ."""


@dataclass(frozen=True, slots=True)
class AttentionTensors:
    """Bytes of the tensors of one kind of attention, for all tokens of a micro-batch."""

    query: int
    key: int
    value: int
    result: int
    kernel_copies: int = 0
    """Copies of a cache that a kernel makes behind its result."""
    scores: int = 0
    """0 with flash attention."""
    stored_value: int = 0
    """Values padded to the widest layer, for a cache that holds them transposed."""
    copied: tuple[int, ...] = ()
    """Copies of keys and values: f16 ones of f32 caches, or transposed values."""
    is_key_first: bool = False
    """Whether keys are made before values: so where some layers slide."""
    is_in_batch: bool = False
    """Whether keys and values are read as they were made, and no cache."""
    is_fused: bool = False
    """Whether one matrix gives queries, keys and values."""
    is_copied: bool = False
    """Whether the three are copied out of that row."""
    is_remade: bool = True
    """Whether queries and keys are rotated or normed head by head: tensors of their own."""
    is_normed: bool = False
    """Whether the result is normed before its projection."""
    is_key_turned: bool = False
    """Whether queries and keys are turned by a Hadamard matrix, for a quantised cache."""
    is_value_turned: bool = False


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """Bytes of the tensors of a block of experts."""

    router: int
    """A number for each expert."""
    weights: int
    """A number for each expert that is used."""
    inner: int
    outer: int
    is_gated: bool = True
    is_biased: bool = False
    """Whether experts are chosen by other numbers than those they are weighted with."""
    is_single: bool = False
    shared: int = 0
    """Inner elements of the experts that every token passes through."""


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Bytes of the tensors of one kind of layer."""

    hidden: int
    attention: AttentionTensors | None
    inner: int = 0
    """Inner elements of a dense block."""
    is_gated: bool = True
    experts: ExpertTensors | None = None
    is_normed_behind: bool = False
    """Whether results are normed, and not what attention and the dense block take."""
    is_parallel: bool = False
    """Whether the dense block takes what attention took, and runs before its projection."""
    is_projected_first: bool = False
    """Whether attention is projected before that block, and not behind it."""
    is_hidden_last: bool = False
    """Whether hidden states are added behind both."""


def walked_layers(
    architecture: Architecture, shape: CacheShape, *, on_gpu: bool
) -> tuple[LayerTensors, ...]:
    """The tensors of each layer; empty where their order is not known."""
    if not _is_walked(architecture):
        return ()
    layers = architecture.layers
    if architecture.attends_in_batch:
        layers = dict(enumerate(attending_layers(architecture)))
    n_dense = architecture.n_layers if architecture.name in DENSE else architecture.widths.n_dense
    period = UNROTATED_EVERY.get(architecture.name, architecture.n_layers + 1)
    kinds: dict[tuple[int, bool, bool], LayerTensors] = {}  # equal layers are one object
    found = []
    for index, layer in layers.items():
        is_dense, may_rotate = index < n_dense, (index + 1) % period > 0
        kind = (id(layer), is_dense, may_rotate)
        if kind not in kinds:
            tensors = (layer, is_dense, may_rotate)
            kinds[kind] = _layer_tensors(architecture, shape, tensors, on_gpu=on_gpu)
        found.append(kinds[kind])
    return tuple(found)


def _is_walked(architecture: Architecture) -> bool:
    return bool(architecture.layers or architecture.attends_in_batch) and not (
        architecture.is_latent
        or architecture.indexer
        or architecture.n_streams
        or architecture.side_width
        or architecture.has_position_bias
        or architecture.states
        or architecture.n_sharing
        or architecture.name in UNWALKED
    )


def _is_rotated(architecture: Architecture, layer: Layer) -> bool:
    if architecture.name in UNROTATED_DENSE and layer.window is None:
        return all(other.window is None for other in architecture.distinct_layers)
    return architecture.name not in UNROTATED


def _attention_tensors(
    architecture: Architecture, layer: Layer, shape: CacheShape, *, on_gpu: bool
) -> AttentionTensors:
    row = shape.n_graph_tokens * FLOAT_BYTES
    cells = shape.attended_cells(layer) * shape.streams(layer)
    key, value = layer.k_width, layer.v_width
    n_attended = shape.attended_cells(layer)
    if architecture.attends_in_batch:
        n_attended = shape.n_graph_tokens
    copied: tuple[int, ...] = ()
    behind = 0
    if shape.flash_attention and not architecture.attends_in_batch:
        copied = tuple(
            cells * width * HALF_BYTES * (name == "f32")
            for width, name in ((key, shape.type_k), (value, shape.type_v))
        )
        if on_gpu:
            behind = sum(
                cells * width * HALF_BYTES
                for width, name in ((key, shape.type_k), (value, shape.type_v))
                if name not in ("f16", "f32")
            )
    return AttentionTensors(
        query=row * layer.n_heads * layer.k_head_dim,
        key=row * key,
        value=row * value,
        result=row * layer.n_heads * layer.v_head_dim,
        kernel_copies=behind,
        scores=0 if shape.flash_attention else row * layer.n_heads * n_attended,
        stored_value=0 if shape.flash_attention else row * architecture.v_width_max,
        is_key_first=any(other.window is not None for other in architecture.distinct_layers),
        is_in_batch=architecture.attends_in_batch,
        copied=copied,
        is_fused=architecture.widths.is_fused,
        is_copied=architecture.name in COPIED_ROWS,
        is_remade=architecture.widths.is_query_normed or _is_rotated(architecture, layer),
        is_normed=architecture.name in NORMED_RESULTS,
        is_key_turned=is_turned(architecture, shape) and not architecture.attends_in_batch,
        is_value_turned=is_quantized(shape.type_v)
        and not architecture.attends_in_batch
        and not max(architecture.v_head_dims, default=1) % TURNED_ELEMENTS,
    )


def _layer_tensors(
    architecture: Architecture, shape: CacheShape, kind: tuple[Layer, bool, bool], *, on_gpu: bool
) -> LayerTensors:
    layer, is_dense, may_rotate = kind
    widths, row = architecture.widths, shape.n_graph_tokens * FLOAT_BYTES
    hidden = row * architecture.d_hidden
    attention = _attention_tensors(architecture, layer, shape, on_gpu=on_gpu)
    if not may_rotate:
        attention = replace(attention, is_remade=widths.is_query_normed)
    if is_dense:
        return LayerTensors(
            hidden, attention, row * widths.feed_forward, widths.is_gated,
            is_normed_behind=widths.is_normed_behind, is_parallel=widths.is_parallel,
            is_projected_first=architecture.name in PROJECTED_FIRST,
            is_hidden_last=architecture.name in HIDDEN_LAST,
        )  # fmt: skip
    n_used = architecture.n_experts_used
    experts = ExpertTensors(
        router=row * architecture.n_experts,
        weights=row * n_used,
        inner=row * n_used * widths.expert,
        outer=row * n_used * widths.expert_output,
        is_gated=widths.is_expert_gated,
        is_biased=widths.has_expert_bias,
        shared=row * widths.shared_expert,
    )
    return LayerTensors(hidden, attention, experts=experts)


def is_turned(architecture: Architecture, shape: CacheShape) -> bool:
    """Whether queries and keys are turned by a Hadamard matrix, for a quantised cache."""
    is_even = not max(architecture.k_head_dims, default=0) % TURNED_ELEMENTS
    return is_quantized(shape.type_k) and is_even
