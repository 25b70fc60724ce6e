"""What Gemma 3n and 4 have beside attention and dense blocks, tensor by tensor.

Embeddings of each layer, and the streams of Gemma 3n (AltUp) with their low-rank residual (LAuReL):
`src/models/gemma3n.cpp` and `gemma4.cpp` (llama.cpp 0c1e57098). What is computed in place on a
tensor that nobody else needs is left out: it takes no room.
"""

from engine.memory.graph_builder import GraphBuilder
from engine.memory.scheduler import Kind, Tensor

EMBEDDINGS = "all layer embeddings"


def layer_embeddings(b: GraphBuilder, hidden: Tensor) -> Tensor:
    """The embeddings of tokens for all layers, mixed with a projection of the first ones."""
    table = Tensor(None, kind=Kind.WEIGHT, device=b.cpu)
    rows = Tensor(b.size(EMBEDDINGS), (table, b.input("tokens again")), device=b.cpu)
    scaled = b.expand(b.same(b.view(rows)))
    projected = b.product(EMBEDDINGS, "per_layer_model_proj", hidden)
    projected = b.norm(b.view(projected), "per_layer_proj_norm")
    return b.new(EMBEDDINGS, b.view(b.same(projected, scaled)))


def embedded(b: GraphBuilder, hidden: Tensor, embeddings: Tensor) -> Tensor:
    """What the embeddings of a layer give for its hidden states."""
    own = Tensor(b.size("made by inp_gate"), (embeddings,), Kind.VIEW)
    gate = b.same(b.product("made by inp_gate", "inp_gate", hidden), own)
    return b.norm(b.product("hidden", "proj", gate), "post_norm")


def streams(b: GraphBuilder, hidden: Tensor) -> Tensor:
    """The embeddings and their projections, as the first layer of Gemma 3n takes them."""
    magnitude = _magnitude(b, hidden, "weights sum")
    others = b.product("other streams", "altup_proj", b.new("other streams", hidden))
    return b.new("streams", hidden, _rescaled(b, others, magnitude))


def merged(b: GraphBuilder, stacked: Tensor) -> Tensor:
    """One hidden state of all streams."""
    magnitude = _magnitude(b, _slice(b, stacked), "weights sum")
    others = b.product("other streams", "altup_unembd_proj", _rest(b, stacked))
    others = _rescaled(b, others, magnitude)
    total = b.same(_slice(b, stacked), _slice(b, others))
    return b.same(b.same(total, _slice(b, others)), _slice(b, others))


def predicted(b: GraphBuilder, stacked: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer of Gemma 3n expects of its streams, and the one that it computes."""
    routed = _routed(b, _slice(b, stacked))
    shares = b.product("made by altup_predict_coef", "altup_predict_coef", routed)
    turned = b.new("streams", b.view(stacked))
    mixed = b.new("streams", turned, b.view(shares))
    expected = b.same(b.new("streams", b.view(mixed)), stacked)
    return expected, _slice(b, expected)


def low_rank(b: GraphBuilder, normed: Tensor) -> Tensor:
    """What goes around attention through a narrow pair of matrices (LAuReL)."""
    inner = b.product("made by laurel_l", "laurel_l", normed)
    return b.same(b.norm(b.product("hidden", "laurel_r", inner), "laurel_post_norm"), normed)


def corrected(b: GraphBuilder, expected: Tensor, computed: Tensor, embeddings: Tensor) -> Tensor:
    """The streams behind a layer of Gemma 3n."""
    routed = _routed(b, computed)
    news = b.same(computed, _slice(b, expected))
    shares = b.product("made by altup_router", "altup_correct_coef", routed)
    shares = b.new("made by altup_router", b.view(shares))
    stacked = b.same(b.same(b.new("streams", news), shares), expected)
    first = b.scaled(_slice(b, stacked), "altup_correct_scale")
    added = b.new("other streams", _rest(b, stacked), embedded(b, first, embeddings))
    return b.new("streams", _slice(b, stacked), added)


def sparse_block(b: GraphBuilder, normed: Tensor) -> Tensor:
    """A dense block of Gemma 3n, of which the first layers keep a few activations."""
    inner = b.product("inner", "ffn_up", normed)
    gate = b.product("inner", "ffn_gate", normed)
    if b.here.kind.is_sparse:
        mean = b.new("weights sum", gate)
        spread = b.new("weights sum", b.same(gate, mean))
        gate = b.same(gate, b.same(mean, spread))
    return b.product("hidden", "ffn_down", b.same(inner, gate))


def _routed(b: GraphBuilder, hidden: Tensor) -> Tensor:
    normed = b.norm(hidden, "altup_router_norm")
    return b.product("made by altup_router", "altup_router", normed)


def _magnitude(b: GraphBuilder, tensor: Tensor, name: str) -> Tensor:
    return b.new(name, b.same(tensor))


def _rescaled(b: GraphBuilder, others: Tensor, magnitude: Tensor) -> Tensor:
    """Streams as large as another tensor."""
    return b.same(b.same(others, magnitude), _magnitude(b, others, "other sums"))


def _slice(b: GraphBuilder, stacked: Tensor) -> Tensor:
    return Tensor(b.size("hidden"), (stacked,), Kind.VIEW)


def _rest(b: GraphBuilder, stacked: Tensor) -> Tensor:
    return Tensor(b.size("other streams"), (stacked,), Kind.VIEW)
