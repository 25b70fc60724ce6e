"""Layers of RWKV 6 and 7, tensor by tensor.

`src/models/rwkv6-base.cpp`, `rwkv6.cpp`, `rwkv6qwen2.cpp`, `rwkv7-base.cpp`, `rwkv7.cpp` and
`arwkv7.cpp` (llama.cpp 0c1e57098). What is computed in place on a tensor that nobody else needs
(activations, exponents) is left out: it takes no room.
"""

from engine.memory.graph_builder import GraphBuilder
from engine.memory.recurrent_graph import keep, states
from engine.memory.scheduler import Kind, Tensor

MIXED6 = "wkvrg"
"""What is made of the mixtures of RWKV 6: decay, key, value, receptance, gate."""
MIXED7 = "rwkvag"
FIRST_VALUE = "value of the first layer"


def token_mixed(b: GraphBuilder, hidden: Tensor, *, is_last: bool) -> Tensor:
    """Hidden states behind the mixing of tokens: of the rows with logits in the last layer.

    RWKV's own layers go on with the mixing of channels, those made of Qwen's with a dense block.
    """
    hidden = b.view(hidden)
    shifts = states(b, "conv states")
    normed = b.norm(hidden, "attn_norm")
    before = _shifted(b, shifts, normed)
    mix = _mixed6 if b.has("time_mix_decay_w1.weight") else _mixed7
    mixed = b.view(b.product("hidden", "time_mix_output", mix(b, normed, before)))
    if not b.has("channel_mix_key.weight"):
        keep(b, normed, "conv states")
        total = b.view(b.new("hidden", mixed, hidden))
        return b.rows(total) if is_last else total
    total = b.new("hidden", mixed, hidden)
    normed_again = b.norm(total, "attn_norm_2")
    before = b.view(_shifted(b, shifts, normed_again))
    keep(b, b.new("conv states", b.view(normed), b.view(normed_again)), "conv states")
    parts = [b.view(total), b.view(normed_again), before]
    total, normed_again, before = (b.rows(part) for part in parts) if is_last else parts
    return b.same(_channels(b, normed_again, before), total)


def _shifted(b: GraphBuilder, shifts: Tensor, normed: Tensor) -> Tensor:
    """The states of the tokens before."""
    return b.new("hidden", b.view(shifts), b.view(normed))


def _channels(b: GraphBuilder, normed: Tensor, before: Tensor) -> Tensor:
    delta = b.same(before, normed)
    receptance = None
    if b.has("channel_mix_receptance.weight"):
        received = b.same(b.scaled(delta, "channel_mix_lerp_r"), normed)
        receptance = b.product("hidden", "channel_mix_receptance", received)
    keys = b.same(b.scaled(delta, "channel_mix_lerp_k"), normed)
    inner = b.product("made by channel_mix_key", "channel_mix_key", keys)
    value = b.product("hidden", "channel_mix_value", inner)
    return value if receptance is None else b.same(receptance, value)


def _mixed6(b: GraphBuilder, normed: Tensor, before: Tensor) -> Tensor:
    delta, current = b.view(b.same(before, normed)), b.view(normed)
    is_linear = not b.has("time_mix_first.weight")
    mixed = _mixtures6(b, delta, current)
    receptance = b.product("hidden", "time_mix_receptance", mixed["r"])
    repeats = b.here.kind.repeats_keys
    made = [f"made by time_mix_{name}" if repeats else "hidden" for name in ("key", "value")]
    key = b.product(made[0], "time_mix_key", mixed["k"])
    value = b.product(made[1], "time_mix_value", mixed["v"])
    if repeats:
        key, value = b.new("hidden", b.view(key)), b.new("hidden", b.view(value))
    gate = b.product("hidden", "time_mix_gate", mixed["g"])
    decay = b.product("made by time_mix_decay_w1", "time_mix_decay_w1", mixed["w"])
    decay = b.scaled(b.product("hidden", "time_mix_decay_w2", decay), "time_mix_decay")
    key, value, receptance, decay = (b.view(each) for each in (key, value, receptance, decay))
    if is_linear:
        key = b.same(key, b.new("hidden", key, decay))
    state = b.view(states(b, "wkv states"))
    if is_linear:
        scanned = b.new("scanned", key, value, receptance, decay, state)
    else:
        first = b.weight("time_mix_first.weight")
        sources = key, value, receptance, first, decay, state
        scanned = b.with_weight(b.new("scanned", *sources), first)
    keep(b, b.expand(scanned), "wkv states")
    return b.same(_normed_groups(b, b.view(scanned, "hidden")), gate)


def _mixtures6(b: GraphBuilder, delta: Tensor, current: Tensor) -> dict[str, Tensor]:
    mixed = b.same(b.scaled(delta, "time_mix_lerp_x"), current)
    ranks = b.product("made by time_mix_w1", "time_mix_w1", mixed)
    ranks = b.new("made by time_mix_w1", b.view(ranks))
    mixed = b.new("mixtures", _reshaped(b, "time_mix_w2"), ranks)
    if b.has("time_mix_lerp_fused.weight"):
        mixed = b.same(b.same(b.scaled(mixed, "time_mix_lerp_fused"), delta), current)
        return dict(zip(MIXED6, _parts(b, mixed, len(MIXED6)), strict=True))
    parts = zip(MIXED6, _parts(b, mixed, len(MIXED6)), strict=True)
    return {
        name: b.same(b.same(b.scaled(part, f"time_mix_lerp_{name}"), delta), current)
        for name, part in parts
    }


def _mixed7(b: GraphBuilder, normed: Tensor, before: Tensor) -> Tensor:
    delta = b.new("mixtures", b.same(before, normed))
    whole = b.same(b.scaled(delta, "time_mix_lerp_fused"), normed)
    mixed = dict(zip(MIXED7, _parts(b, whole, len(MIXED7)), strict=True))
    receptance = b.product("hidden", "time_mix_receptance", mixed["r"])
    decay = b.scaled(_low_rank(b, "w", mixed["w"]), "time_mix_w0")
    key = b.product("hidden", "time_mix_key", mixed["k"])
    value = _value7(b, b.product("hidden", "time_mix_value", mixed["v"]), mixed["v"])
    gate = _low_rank(b, "g", mixed["g"]) if b.has("time_mix_g1.weight") else None
    rate = b.scaled(_low_rank(b, "a", mixed["a"]), "time_mix_a0")
    removed = b.new("hidden", b.view(b.scaled(key, "time_mix_k_k")))
    replaced = b.scaled(key, "time_mix_k_a")
    key = b.same(key, b.same(b.same(rate, replaced), replaced))
    receptance, decay, key, value, rate = (
        b.view(each) for each in (receptance, decay, key, value, rate)
    )
    state = b.view(states(b, "wkv states"))
    sources = receptance, decay, key, value, b.same(removed), b.same(removed, rate), state
    scanned = b.expand(b.new("scanned", *sources))
    keep(b, scanned, "wkv states")
    mixed_back = _normed_groups(b, b.view(scanned, "hidden"))
    bonus = b.same(b.new("hidden", key, receptance), _reshaped(b, "time_mix_r_k"))
    bonus = b.new("hidden", value, b.new("heads", bonus))
    mixed_back = b.same(mixed_back, b.view(bonus))
    return mixed_back if gate is None else b.same(mixed_back, gate)


def _value7(b: GraphBuilder, value: Tensor, mixed: Tensor) -> Tensor:
    """Values, mixed with those of the first layer behind it."""
    first = b.shared.setdefault(FIRST_VALUE, value)
    if first is value:
        return value
    share = b.scaled(_low_rank(b, "v", mixed), "time_mix_v0")
    return b.same(value, b.same(b.same(first, value), share))


def _low_rank(b: GraphBuilder, name: str, mixed: Tensor) -> Tensor:
    inner = b.product(f"made by time_mix_{name}1", f"time_mix_{name}1", mixed)
    return b.product("hidden", f"time_mix_{name}2", inner)


def _normed_groups(b: GraphBuilder, scanned: Tensor) -> Tensor:
    """What was scanned, normed head by head where the layer does so."""
    if not b.has("time_mix_ln.weight"):
        return scanned
    normed = b.view(b.new("hidden", scanned))
    return b.biased(b.scaled(normed, "time_mix_ln"), "time_mix_ln")


def _parts(b: GraphBuilder, mixed: Tensor, n_parts: int) -> list[Tensor]:
    return [Tensor(b.size("hidden"), (mixed,), Kind.VIEW) for _ in range(n_parts)]


def _reshaped(b: GraphBuilder, name: str) -> Tensor:
    """A weight in another shape: it draws no node to its device."""
    weight = b.weight(f"{name}.weight")
    return Tensor(weight.size, (weight,), Kind.VIEW, weight.device)
