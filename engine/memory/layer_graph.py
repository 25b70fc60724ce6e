"""The graph of a model, tensor by tensor as llama.cpp has it.

`build_qkv`, `build_attn`, `build_ffn` and `build_moe_ffn` of `src/llama-graph.cpp`, in the order of
`src/models/*.cpp` (llama.cpp 0c1e57098). What a layer's tensor table names is there.
"""

from engine.memory.graph_builder import INPUTS, PREFIX, ROWS, GraphBuilder, PlacedModel
from engine.memory.recurrent_graph import recurrent_mixer
from engine.memory.tensor_graph import Kind, Tensor, TensorGraph

FACTORS = ("rope_freqs.weight", "rope_factors_long.weight")
BEFORE_BLOCK = ("ffn_norm", "attn_output_norm", "post_attention_norm")
"""Names of the norm before a block, first found first used."""
EXPERT_BIASES = ("exp_probs_b.bias", "exp_probs_b")
"""Names of what is added to scores to choose experts."""


def model_graph(model: PlacedModel) -> TensorGraph:
    """The graph of a model for one micro-batch."""
    b = GraphBuilder(model)
    hidden = _embeddings(b)
    last = len(model.layers) - 1
    for index in range(last + 1):
        b.begin_layer(index)
        hidden = _layer(b, hidden, is_last=index == last and model.cuts_rows)
    b.index = INPUTS
    if b.owner != ROWS and model.has_rows:
        hidden = b.rows(hidden)
    hidden = b.norm(hidden, "output_norm" if b.has("output_norm.weight") else "token_embd_norm")
    b.expand(b.product("logits", "output", hidden))
    return b.graph


def _embeddings(b: GraphBuilder) -> Tensor:
    table = Tensor(None, kind=Kind.WEIGHT, device=b.cpu)
    hidden = Tensor(b.size("hidden"), (table, b.input("tokens")), device=b.cpu)
    b.expand(hidden)
    b.expand(b.input("embeddings"))
    if b.has("position_embd.weight"):
        positions = Tensor(b.size("hidden"), (table, b.input("positions")), device=b.cpu)
        hidden = b.same(hidden, positions)
    if b.has("token_embd_norm.weight") and b.has("output_norm.weight"):
        hidden = b.norm(b.view(hidden), "token_embd_norm")  # not made in place
    return hidden


def _layer(b: GraphBuilder, hidden: Tensor, *, is_last: bool) -> Tensor:
    kind = b.here.kind
    is_normed_behind = b.has("post_ffw_norm.weight") and not b.has("ffn_norm.weight")
    before = next(n for n in BEFORE_BLOCK if b.has(f"{n}.weight") or n == BEFORE_BLOCK[-1])
    is_parallel = b.has("attn_norm.weight") and not b.has(f"{before}.weight")
    normed = hidden if is_normed_behind else b.norm(hidden, "attn_norm")
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
    block = _norm_of(b, _block(b, normed), "post_ffw_norm")
    return b.same(block, hidden)


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
    query, key, value = _projections(b, normed)
    if kind.is_key_turned:
        query, key = _turned(b, query, "key turn"), _turned(b, key, "key turn")
    if kind.is_value_turned:
        value = _turned(b, value, "value turn")
    in_order = (query, key, value) if kind.is_key_first else (query, value, key)
    for tensor in in_order:
        b.expand(tensor)
    result = _attend(b, query, key, value)
    if kind.is_value_turned:
        result = _turned(b, result, "value turn")
    result = _norm_of(b, result, "attn_sub_norm")
    if b.has("attn_gate.weight"):
        result = _gated(b, result, normed)
    return b.product("hidden", "attn_output", result)


def _gated(b: GraphBuilder, result: Tensor, normed: Tensor) -> Tensor:
    """Results of attention, each element or each head times its gate."""
    name = "head gates" if b.here.kind.gates_heads else "result"
    gate = b.same(b.product(name, "attn_gate", normed))
    gated = b.new("result", b.view(result), gate)
    gated.replaces = () if b.here.kind.gates_heads else (gate,)
    return gated


def _projections(b: GraphBuilder, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, normed and rotated."""
    kind, names = b.here.kind, ("query", "key", "value")
    if b.has("attn_qkv.weight"):
        row = b.product("row", "attn_qkv", normed)
        if b.has("attn_q.bias"):
            row = b.same(row, _joined_biases(b))
        parts = [b.view(row, f"{name} of row") for name in names]
        if kind.is_copied:
            made = zip(names, parts, strict=True)
            parts = [b.new(name, part) for name, part in made]
    else:
        parts = [b.product(name, f"attn_{name[0]}", normed) for name in names]
    query, key, value = parts if kind.is_copied else [b.view(part) for part in parts]
    query = _rotated(b, query, "query", "attn_q_norm")
    return query, _rotated(b, key, "key", "attn_k_norm"), value


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


def _attend(b: GraphBuilder, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    kind = b.here.kind
    mask = b.input(f"mask {kind.span}")
    if kind.is_in_batch:
        keys, values = b.view(key), b.view(value)
    else:
        keys, values = _stored(b, key, "key"), _stored(b, value, "value")
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


def _stored(b: GraphBuilder, tensor: Tensor, name: str) -> Tensor:
    """The cache behind a new row of keys or values; transposed ones are contiguous."""
    kind, here = b.here.kind, b.here
    is_scattered = name == "value" and not (kind.is_flash or kind.is_transposed_late)
    if is_scattered and tensor.size == (b.owner, "value of row"):
        tensor = b.new("value", tensor)
    if is_scattered and kind.is_padded:
        tensor = b.new("stored value", b.view(tensor))
    places = f"{name} places {kind.span}"
    row = b.view(tensor)
    b.expand(Tensor(None, (row, b.input(places)), device=here.cache_device))
    return Tensor((b.owner, f"{name} cache"), kind=Kind.CACHE, device=here.cache_device)


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


def _experts(b: GraphBuilder, normed: Tensor) -> Tensor:
    scores = b.same(b.product("router", "ffn_gate_inp", normed))
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
    return b.same(result, b.product("hidden", "ffn_down_shexp", shared))


def _expert_inner(b: GraphBuilder, normed: Tensor, order: Tensor) -> Tensor:
    name = "inner experts"
    if b.has("ffn_gate_up_exps.weight"):
        both = b.product("both experts", "ffn_gate_up_exps", normed, order)
        return b.new(name, b.view(both))
    inner = b.product(name, "ffn_up_exps", normed, order)
    if not b.has("ffn_gate_exps.weight"):
        return b.same(inner)
    return b.new(name, b.product(name, "ffn_gate_exps", normed, order), inner)
