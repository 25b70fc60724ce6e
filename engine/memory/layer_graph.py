"""The graph of a model, tensor by tensor as llama.cpp has it.

`build_qkv`, `build_attn`, `build_ffn` and `build_moe_ffn` of `src/llama-graph.cpp`, in the order of
`src/models/*.cpp` (llama.cpp 0c1e57098). What a layer's tensor table names is there.
"""

from engine.memory.gemma_graph import (
    EMBEDDINGS,
    corrected,
    embedded,
    layer_embeddings,
    low_rank,
    merged,
    predicted,
    sparse_block,
    streams,
)
from engine.memory.graph_builder import INPUTS, PREFIX, ROWS, GraphBuilder, PlacedModel
from engine.memory.recurrent_graph import recurrent_mixer
from engine.memory.rwkv_graph import token_mixed
from engine.memory.scheduler import Kind, Tensor, TensorGraph

CACHED = ("key", "value")
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight")
BEFORE_BLOCK = ("ffn_norm", "attn_output_norm", "post_attention_norm")
"""Names of the norm before a block, first found first used."""
IMAGE_ROWS, FIRST_EMBEDDINGS = "image rows", "first embeddings"
OUTPUT_SCALE = "layer_output_scale"
EXPERT_BIASES = ("exp_probs_b.bias", "exp_probs_b")
"""Names of what is added to scores to choose experts."""


def model_graph(model: PlacedModel) -> TensorGraph:
    """The graph of a model for one micro-batch."""
    b = GraphBuilder(model)
    hidden = _embeddings(b)
    states = _Looped(b, hidden)
    last = len(model.layers) - 1
    for index in range(last + 1):
        b.begin_layer(index)
        is_last = index == last and model.cuts_rows
        hidden = _with_image(b, states.before(hidden), "before")
        hidden = states.behind(_layer(b, hidden, is_last=is_last))
        hidden = _with_image(b, hidden, "behind")
    b.index = INPUTS
    if b.has("altup_unembd_proj.weight"):
        hidden = merged(b, hidden)
    norm = "output_norm" if b.has("output_norm.weight") else "token_embd_norm"
    hidden = b.norm(hidden, norm) if model.norms_all else hidden
    if b.owner != ROWS and model.has_rows:
        hidden = b.rows(hidden)
    hidden = hidden if model.norms_all else b.norm(hidden, norm)
    b.expand(b.product("logits", "output", hidden))
    return b.graph


def _embeddings(b: GraphBuilder) -> Tensor:
    table = Tensor(None, kind=Kind.WEIGHT, device=b.cpu)
    hidden = Tensor(b.size("hidden"), (table, b.input("tokens")), device=b.cpu)
    b.expand(hidden)
    if b.model.has_image_rows:
        hidden = _padded(b, hidden)
    else:
        b.expand(b.input("embeddings"))
    if b.has("position_embd.weight"):
        positions = Tensor(b.size("hidden"), (table, b.input("positions")), device=b.cpu)
        hidden = b.same(hidden, positions)
    if b.has("token_embd_norm.weight") and b.has("output_norm.weight"):
        hidden = b.norm(b.view(hidden), "token_embd_norm")  # not made in place
    if b.has("per_layer_model_proj.weight"):
        b.shared[EMBEDDINGS] = layer_embeddings(b, hidden)
    return streams(b, hidden) if b.has("altup_proj.weight") else hidden


def _padded(b: GraphBuilder, hidden: Tensor) -> Tensor:
    """Embeddings of tokens, in rows with room for the features of an image (`build_inp_embd`).

    Granite scales them, which copies them out of these rows.
    """
    padded = b.shared[IMAGE_ROWS] = b.expand(Tensor((INPUTS, "embeddings"), (hidden,)))
    b.expand(b.input("embeddings"))
    first = Tensor((INPUTS, FIRST_EMBEDDINGS), (padded,), Kind.VIEW)
    is_scaled = any(layer.kind.image_row == "before" for layer in b.model.layers)
    return b.expand(b.new("hidden", first) if is_scaled else first)


def _with_image(b: GraphBuilder, hidden: Tensor, place: str) -> Tensor:
    """Hidden states with the row of an image's features that a layer adds there."""
    if b.here.kind.image_row != place:
        return hidden
    row = Tensor((INPUTS, FIRST_EMBEDDINGS), (b.shared[IMAGE_ROWS],), Kind.VIEW)
    return b.same(hidden, row)


class _Looped:
    """Hidden states of a model that runs its layers several times."""

    def __init__(self, b: GraphBuilder, hidden: Tensor) -> None:
        self._b = b
        self._states = {"high": hidden}

    def before(self, hidden: Tensor) -> Tensor:
        """What a layer takes."""
        loop = self._b.here.kind.loop
        if loop is None or not loop.begins:
            return hidden
        if low := self._states.get("low"):
            return self._b.same(self._states["high"], low)
        with self._b.beside():
            return self._b.scaled(hidden, "hrm.z_l_init", "")

    def behind(self, hidden: Tensor) -> Tensor:
        """What follows takes."""
        loop = self._b.here.kind.loop
        if loop is None or not loop.ends:
            return hidden
        with self._b.beside():
            hidden = self._b.norm(hidden, "output_norm")
        self._states[loop.ends] = hidden
        return hidden


def _layer(b: GraphBuilder, hidden: Tensor, *, is_last: bool) -> Tensor:
    kind = b.here.kind
    if b.has("altup_router.weight"):
        return _stream_layer(b, hidden)
    if b.has("time_mix_output.weight"):
        mixed = token_mixed(b, hidden, is_last=is_last)
        has_block = b.has("ffn_norm.weight")
        return b.same(_dense(b, b.norm(mixed, "ffn_norm")), mixed) if has_block else mixed
    is_normed_behind = b.has("post_ffw_norm.weight") and not b.has("ffn_norm.weight")
    before = next(n for n in BEFORE_BLOCK if b.has(f"{n}.weight") or n == BEFORE_BLOCK[-1])
    is_parallel = b.has("attn_norm.weight") and not b.has(f"{before}.weight")
    normed = hidden if is_normed_behind else b.norm(hidden, "attn_norm", "hidden")
    result = _mixed(b, normed, hidden)
    has_block = b.has("ffn_down.weight") or b.has("ffn_down_exps.weight")
    if result is None or not has_block:
        result = _block(b, normed) if result is None else result
        result, hidden = (b.rows(result), b.rows(hidden)) if is_last else (result, hidden)
        return b.same(result, hidden)
    if is_last:
        result, hidden = b.rows(result), b.rows(hidden)
        normed = b.rows(normed) if is_parallel else normed
    if kind.is_parallel_residual:
        block = _block(b, b.norm(hidden, before))
        return b.same(b.same(block, hidden), result)
    if is_parallel:
        return _beside(b, result, normed, hidden)
    if before == "ffn_norm" or is_normed_behind:
        result = _norm_of(b, result, "post_attention_norm")
    if b.has("ffn_norm_exps.weight"):
        return _both_blocks(b, b.same(result, hidden), hidden)
    hidden = b.same(hidden, result) if kind.is_hidden_first else b.same(result, hidden)
    normed = hidden if is_normed_behind else b.norm(hidden, before)
    block = _two_blocks(b, hidden) if b.has("pre_ffw_norm_2.weight") else _block(b, normed)
    hidden = b.same(_norm_of(b, block, "post_ffw_norm"), hidden)
    if EMBEDDINGS in b.shared:
        hidden = b.same(hidden, embedded(b, hidden, b.shared[EMBEDDINGS]))
    return b.scaled(hidden, OUTPUT_SCALE) if b.has(f"{OUTPUT_SCALE}.weight") else hidden


def _stream_layer(b: GraphBuilder, stacked: Tensor) -> Tensor:
    """A layer of Gemma 3n, over several streams of hidden states."""
    expected, hidden = predicted(b, stacked)
    normed = b.norm(hidden, "attn_norm")
    beside = low_rank(b, normed)
    result = b.same(b.norm(_attention(b, normed), "post_attention_norm"), hidden)
    total = b.same(result, beside)
    block = b.norm(sparse_block(b, b.norm(total, "ffn_norm")), "post_ffw_norm")
    return corrected(b, expected, b.same(block, total), b.shared[EMBEDDINGS])


def _two_blocks(b: GraphBuilder, hidden: Tensor) -> Tensor:
    """A dense block and experts beside each other, each normed (Gemma 4)."""
    dense = b.norm(_dense(b, b.norm(hidden, "ffn_norm")), "post_ffw_norm_1")
    routed = b.scaled(b.norm(hidden, ""), "ffn_gate_inp", ".scale")
    experts = _experts(b, b.norm(hidden, "pre_ffw_norm_2"), routed)
    return b.same(dense, b.norm(experts, "post_ffw_norm_2"))


def _mixed(b: GraphBuilder, normed: Tensor, hidden: Tensor) -> Tensor | None:
    """What a layer takes from other tokens, by attention, by a state or by both."""
    has_attention = b.has("attn_output.weight")
    attended = _attention(b, normed) if has_attention else None
    if attended is None:
        return recurrent_mixer(b, normed)
    recurrent = recurrent_mixer(b, b.norm(hidden, "attn_norm"))
    return attended if recurrent is None else b.same(attended, recurrent)


def _both_blocks(b: GraphBuilder, hidden: Tensor, before: Tensor) -> Tensor:
    """A dense block, and experts beside attention and it (Arctic)."""
    dense = b.same(_dense(b, b.norm(hidden, "ffn_norm")), hidden)
    return b.same(_experts(b, b.norm(before, "ffn_norm_exps")), dense)


def _block(b: GraphBuilder, normed: Tensor) -> Tensor:
    has_experts = b.has("ffn_gate_inp.weight") and b.has("ffn_down_exps.weight")
    runs_experts = has_experts and b.here.kind.runs_experts
    return _experts(b, normed) if runs_experts else _dense(b, normed)


def _norm_of(b: GraphBuilder, tensor: Tensor, weight: str) -> Tensor:
    return b.norm(tensor, weight) if b.has(f"{weight}.weight") else tensor


def _beside(b: GraphBuilder, result: Tensor, normed: Tensor, hidden: Tensor) -> Tensor:
    """Attention and a dense block beside each other, and the sum of both."""
    kind = b.here.kind
    block = _block(b, normed)
    if kind.is_projected_first:
        return b.same(b.same(result, block), hidden)
    if kind.is_hidden_last:
        return b.same(b.same(block, result), hidden)
    return b.same(b.same(block, hidden), result)


def _attention(b: GraphBuilder, normed: Tensor) -> Tensor:
    kind = b.here.kind
    parts = _parts(b, normed)
    made = _projections(b, parts)
    if kind.is_key_turned:
        made[:2] = (_turned(b, tensor, "key turn") for tensor in made[:2])
    if kind.is_value_turned and not kind.shares_cache:
        made[2] = _turned(b, made[2], "value turn")
    for tensor in made if kind.is_key_first or kind.shares_cache else (made[0], made[2], made[1]):
        b.expand(tensor)
    result = _attend(b, *made)
    if kind.is_value_turned:
        result = _turned(b, result, "value turn")
    result = _norm_of(b, result, "attn_sub_norm")
    if b.has("attn_gate.weight"):
        result = _gated(b, result, normed)
    if kind.gates_queries:
        result = b.same(result, b.new("result", b.view(parts[0])))
    return b.product("hidden", "attn_output", result)


def _gated(b: GraphBuilder, result: Tensor, normed: Tensor) -> Tensor:
    """Results of attention, each element or each head times its gate."""
    name = "head gates" if b.here.kind.gates_heads else "result"
    gate = b.same(b.product(name, "attn_gate", normed))
    gated = b.new("result", b.view(result), gate)
    gated.replaces = () if b.here.kind.gates_heads else (gate,)
    return gated


def _parts(b: GraphBuilder, normed: Tensor) -> list[Tensor]:
    """Queries, keys and values as their matrices give them; queries may have gates beside them.

    Queries alone where the cache is another layer's.
    """
    kind = b.here.kind
    names = ["gated query" if kind.gates_queries else "query", "key", "value"]
    names = names[:1] if kind.shares_cache else names
    if not b.has("attn_qkv.weight"):
        made = [
            b.product(name, f"attn_{letter}", normed)
            for name, letter in zip(names, "qkv", strict=False)
            if b.has(f"attn_{letter}.weight")
        ]
        return made if len(made) == len(names) else [*made, made[-1]]  # keys are values, too
    row = b.product("row", "attn_qkv", normed)
    if b.has("attn_q.bias"):
        row = b.same(row, _joined_biases(b))
    views = [b.view(row, f"{name} of row") for name in names]
    if kind.is_copied or kind.copies_parts or kind.shares_cache:
        return list(map(b.new, names, views))
    return views


def _projections(b: GraphBuilder, parts: list[Tensor]) -> list[Tensor]:
    """Queries, keys and values, normed and rotated."""
    kind = b.here.kind
    query, *others = parts if kind.is_copied else map(b.view, parts)
    found = [_rotated(b, query, "query", "attn_q_norm")]
    if not others:
        return found
    value = b.same(others[1]) if kind.norms_values else others[1]
    return [*found, _rotated(b, others[0], "key", "attn_k_norm"), value]


def _joined_biases(b: GraphBuilder) -> Tensor:
    """Biases of a row that are apart in the file: one row is never worth a visit to a GPU."""
    query, key, value = (b.weight(f"attn_{name}.bias") for name in "qkv")
    first = Tensor((b.owner, "first biases"), (query, key), device=query.device)
    return Tensor((b.owner, "biases"), (first, value), device=query.device)


def _rotated(b: GraphBuilder, tensor: Tensor, name: str, norm: str) -> Tensor:
    kind = b.here.kind
    if b.has(f"{norm}.weight"):
        tensor = b.norm(tensor, norm, name)
        tensor = b.view(tensor) if kind.is_copied else tensor
    if not kind.is_rotated:
        return tensor
    rotated = b.new(name, tensor, b.input("positions"), *_factors(b))
    rotated.replaces = (tensor,) if tensor.kind is Kind.COMPUTED else ()
    return rotated


def _factors(b: GraphBuilder) -> tuple[Tensor, ...]:
    """Factors of the rotation: each device has its own copy for all layers."""
    device, names = b.here.device, b.model.beside.weights
    for name in FACTORS:
        if b.here.kind.has_factors and name in names and device not in b.rotating:
            size = (INPUTS, PREFIX + name)
            b.rotating[device] = Tensor(size, kind=Kind.WEIGHT, device=device)
    return (b.rotating[device],) if device in b.rotating else ()


def _turned(b: GraphBuilder, tensor: Tensor, matrix: str) -> Tensor:
    """A tensor times a Hadamard matrix; a part of a row is copied before."""
    assert tensor.size is not None
    name = tensor.size[1].removesuffix(" of row")
    if name != tensor.size[1]:
        tensor = b.new(name, tensor)
    turn = b.input(f"{matrix} {b.here.kind.span}")
    turned = b.new(name, turn, b.view(tensor))
    return b.view(turned)


def _attend(b: GraphBuilder, query: Tensor, *made: Tensor) -> Tensor:
    kind = b.here.kind
    mask = b.input(f"mask {kind.span}")
    if kind.is_in_batch:
        keys, values = map(b.view, made)
    else:
        for tensor, name in zip(made, CACHED, strict=False):
            _store(b, tensor, name)
        keys, values = (_cache(b, name) for name in CACHED)
    if kind.is_flash:
        keys, values = _cast(b, keys, "key"), _cast(b, values, "value")
        result = b.new("result", b.view(query), keys, values, mask)
        result.gpu_size = (b.owner, "kernel result")
        result.is_cpu_only = b.model.attends_on_cpu
        b.expand(result)
        return b.view(result)
    scores = b.new("scores", keys, b.view(query))
    if b.has("attn_sinks.weight"):
        sinks = b.weight("attn_sinks.weight")
        scores = b.with_weight(b.same(scores, mask, sinks), sinks)
    else:
        scores = b.same(scores, mask)
    if kind.is_transposed_late:
        values = b.new("transposed", values)
    summed = b.new("result", values, scores)
    return b.expand(b.new("result", b.view(summed)))


def _cache(b: GraphBuilder, name: str) -> Tensor:
    return Tensor((b.owner, f"{name} cache"), kind=Kind.CACHE, device=b.here.cache_device)


def _store(b: GraphBuilder, tensor: Tensor, name: str) -> None:
    """Write new rows of keys or values to the cache; transposed ones are contiguous."""
    kind, here = b.here.kind, b.here
    is_scattered = name == "value" and not (kind.is_flash or kind.is_transposed_late)
    if is_scattered and tensor.size == (b.owner, "value of row"):
        tensor = b.new("value", tensor)
    if is_scattered and kind.is_padded:
        tensor = b.new("stored value", b.view(tensor))
    places = f"{name} places {kind.span}"
    row = b.view(tensor)
    b.expand(Tensor(None, (row, b.input(places)), device=here.cache_device))


def _cast(b: GraphBuilder, tensor: Tensor, name: str) -> Tensor:
    """The f16 copy of keys or values in f32."""
    kind = b.here.kind
    is_cast = kind.casts_keys if name == "key" else kind.casts_values
    return b.new(f"cast {name}", tensor) if is_cast else tensor


def _dense(b: GraphBuilder, normed: Tensor) -> Tensor:
    inner = _inner(b, normed, "inner", "ffn_up", "ffn_gate")
    return b.product("hidden", "ffn_down", _norm_of(b, inner, "ffn_sub_norm"))


def _inner(b: GraphBuilder, normed: Tensor, name: str, up: str, gate: str) -> Tensor:
    """The activations of a block: both products multiplied, or one in place."""
    if b.has(f"{gate}.weight"):
        gates = b.product(name, gate, normed)
        return b.new(name, gates, b.product(name, up, normed))
    if b.here.kind.is_gated_at_once and name == "inner":
        return b.new(name, b.product("both inner", up, normed))
    return b.same(b.product(name, up, normed))


def _experts(b: GraphBuilder, normed: Tensor, routed: Tensor | None = None) -> Tensor:
    """The chosen experts of each token, chosen by what they take or by another tensor."""
    scores = b.same(b.product("router", "ffn_gate_inp", routed or normed))
    chosen_by = scores
    if biases := [b.weight(name) for name in EXPERT_BIASES if b.has(name)]:
        chosen_by = b.with_weight(b.new("router", scores, *biases), biases[0])
    order = b.view(b.new("router", chosen_by))
    weights = b.new("weights", b.view(scores), order)
    if b.here.kind.norms_weights:
        total = b.same(b.new("weights sum", b.view(weights)))
        weights = b.new("weights", b.view(weights), total)
    b.expand(weights)
    inner = _expert_inner(b, b.view(normed), order)
    outer = b.product("outer", "ffn_down_exps", inner, order)
    outer = b.expand(b.same(outer, weights))
    parts = [b.expand(Tensor(b.size("hidden"), (outer,), Kind.VIEW)) for _ in range(2)]
    result = b.expand(b.new("hidden", *parts))
    if not b.has("ffn_down_shexp.weight"):
        return result
    shared = _inner(b, normed, "shared", "ffn_up_shexp", "ffn_gate_shexp")
    shared = b.product("hidden", "ffn_down_shexp", shared)
    if b.has("ffn_gate_inp_shexp.weight"):
        shared = b.same(shared, b.product("weights sum", "ffn_gate_inp_shexp", normed))
    return b.same(result, shared)


def _expert_inner(b: GraphBuilder, normed: Tensor, order: Tensor) -> Tensor:
    name = "inner experts"
    if b.has("ffn_gate_up_exps.weight"):
        both = b.product("both experts", "ffn_gate_up_exps", normed, order)
        return b.new(name, b.view(both))
    inner = b.product(name, "ffn_up_exps", normed, order)
    if not b.has("ffn_gate_exps.weight"):
        return b.same(inner)
    return b.new(name, b.product(name, "ffn_gate_exps", normed, order), inner)
