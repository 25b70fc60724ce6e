"""Layers that keep a state, tensor by tensor: Mamba 1 and 2, delta nets, short convolutions.

`build_mamba_layer` and `build_mamba2_layer` of `src/models/mamba-base.cpp`, `build_rs` of
`src/llama-graph.cpp`, `src/models/lfm2.cpp`, `delta-net-base.cpp`, `qwen3next.cpp` and `qwen35.cpp`
(llama.cpp 0c1e57098).
"""

from engine.memory.graph_builder import GraphBuilder
from engine.memory.scheduler import Kind, Tensor


def recurrent_mixer(b: GraphBuilder, normed: Tensor) -> Tensor | None:
    """The result of a layer's recurrent part; None where it has none."""
    if b.has("shortconv.in_proj.weight"):
        return _short_convolution(b, normed)
    if b.has("ssm_ba.weight") or b.has("ssm_alpha.weight"):
        return _gated_delta_net(b, b.expand(normed))
    if b.has("ssm_x.weight"):
        return _mamba(b, normed)
    return _mamba2(b, normed) if b.has("ssm_in.weight") else None


def _short_convolution(b: GraphBuilder, normed: Tensor) -> Tensor:
    projected = b.product("projected", "shortconv.in_proj", normed)
    parts = [Tensor(b.size("projected"), (projected,), Kind.VIEW) for _ in range(3)]
    gated = b.new("mixed", parts[0], parts[2])
    before = states(b, "conv states")
    joined = b.new("conv input", b.view(before), b.view(gated))
    keep(b, joined, "conv input")
    convolved = _convolved(b, joined, "shortconv.conv")
    result = b.new("mixed", parts[1], convolved)
    result.replaces = (convolved,)
    return b.view(b.product("hidden", "shortconv.out_proj", result))


def _mamba(b: GraphBuilder, normed: Tensor) -> Tensor:
    before = states(b, "conv states")
    projected = b.product("projected", "ssm_in", normed)
    parts = [Tensor(b.size("projected"), (projected,), Kind.VIEW) for _ in range(2)]
    joined = b.new("conv input", b.view(before), parts[0])
    keep(b, joined, "conv input")
    mixed = b.same(b.biased(_convolved(b, joined, "ssm_conv1d"), "ssm_conv1d"))
    chosen = b.product("choices", "ssm_x", mixed)
    steps, *gates = (Tensor(b.size("choices"), (chosen,), Kind.VIEW) for _ in range(3))
    if b.has("ssm_dt_norm.weight"):
        steps = b.norm(steps, "ssm_dt_norm", "step inputs")
        names = ("ssm_b_norm", "ssm_c_norm")
        gates = [b.norm(gate, name, "gates") for gate, name in zip(gates, names, strict=True)]
    else:
        steps = b.new("step inputs", steps)
    steps = b.product("mixed", "ssm_dt", steps)
    scanned = _scanned(b, b.view(mixed), steps, gates)
    skipped = b.scaled(mixed, "ssm_d", suffix="")
    return b.view(_projected_back(b, scanned, skipped, parts[1]))


def _mamba2(b: GraphBuilder, normed: Tensor) -> Tensor:
    before = states(b, "conv states")
    projected = b.product("projected", "ssm_in", normed)
    parts = [Tensor(b.size("projected"), (projected,), Kind.VIEW) for _ in range(3)]
    joined = b.new("conv input", b.view(before), parts[1])
    keep(b, joined, "conv input")
    convolved = b.same(b.biased(_convolved(b, joined, "ssm_conv1d"), "ssm_conv1d"))
    mixed, *gates = (Tensor(b.size("convolved"), (convolved,), Kind.VIEW) for _ in range(3))
    steps = b.biased(b.new("steps", parts[2]), "ssm_dt")
    scanned = _scanned(b, mixed, steps, gates)
    weight = b.weight("ssm_d")
    skipped = b.with_weight(b.new("mixed", mixed, weight), weight)
    return _projected_back(b, scanned, skipped, parts[0])


def _gated_delta_net(b: GraphBuilder, normed: Tensor) -> Tensor:
    row, gate = _row_and_gate(b, normed)
    joined = b.new("conv input", b.view(states(b, "conv states")), b.view(row))
    keep(b, joined, "conv input")
    before = b.view(states(b, "wkv states"))
    convolved = _convolved(b, joined, "ssm_conv1d")
    query, key, value = (Tensor(convolved.size, (convolved,), Kind.VIEW) for _ in range(3))
    decay, rate = _decay_and_rate(b, normed)
    decay = b.scaled(b.scaled(decay, "ssm_dt", ".bias"), "ssm_a", "")
    query, key = b.new("delta key", query), b.new("delta key", key)
    scanned = b.new("scanned", query, key, value, b.view(decay), rate, before)
    keep(b, b.expand(scanned), "last states")
    result = b.norm(b.view(scanned, "mixed"), "ssm_norm")
    result = b.same(result, b.new("mixed", b.view(gate)))
    return b.view(b.product("hidden", "ssm_out", b.view(result)))


def _row_and_gate(b: GraphBuilder, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Queries, keys and values of a delta net, and its gate: of one matrix in older files."""
    if b.has("attn_qkv.weight"):
        return b.product("row", "attn_qkv", normed), b.product("mixed", "attn_gate", normed)
    projected = b.product("projected", "ssm_in", normed)
    views = [Tensor(projected.size, (projected,), Kind.VIEW) for _ in range(4)]
    names = ("delta key", "delta key", "mixed", "mixed")
    query, key, value, gate = map(b.new, names, views)
    return b.new("convolved", b.new("both delta keys", query, key), value), gate


def _decay_and_rate(b: GraphBuilder, normed: Tensor) -> tuple[Tensor, Tensor]:
    """What a delta net forgets and learns with, one number for each head."""
    if b.has("ssm_ba.weight"):
        both = b.product("both delta heads", "ssm_ba", normed)
        rate, decay = (Tensor(both.size, (both,), Kind.VIEW) for _ in range(2))
        return b.new("delta heads", decay), b.view(b.new("delta heads", rate))
    decay = b.view(b.product("delta heads", "ssm_alpha", normed))
    return decay, b.new("delta heads", b.view(b.product("delta heads", "ssm_beta", normed)))


def states(b: GraphBuilder, name: str) -> Tensor:
    """The rows of states of a name that a batch goes on from."""
    cache = _cleared(b)
    rows = b.expand(b.new(name, cache, b.part("state rows")))
    _keep_others(b, cache)
    return rows


def _cleared(b: GraphBuilder) -> Tensor:
    """The states of all slots; one is cleared where it lies."""
    cache = Tensor(b.size("states"), kind=Kind.CACHE, device=b.here.cache_device)
    b.expand(Tensor(None, (cache,), device=b.here.cache_device))
    return cache


def _keep_others(b: GraphBuilder, cache: Tensor) -> None:
    """Write back the states of slots that are not in the batch: there are none in the largest."""
    others = b.new("nothing", cache, b.part("other state rows"))
    b.expand(Tensor(None, (others,), device=b.here.cache_device))


def keep(b: GraphBuilder, tensor: Tensor, name: str) -> None:
    """Write states back to where they lie."""
    row = Tensor(b.size(name), (tensor,), Kind.VIEW)
    b.expand(Tensor(None, (row,), device=b.here.cache_device))


def _convolved(b: GraphBuilder, joined: Tensor, name: str) -> Tensor:
    weight = b.weight(f"{name}.weight")
    return b.with_weight(b.new("convolved", joined, weight), weight)


def _scanned(b: GraphBuilder, mixed: Tensor, steps: Tensor, gates: list[Tensor]) -> Tensor:
    """A scan and its last states, one row of a tensor: it is never worth a visit to a GPU."""
    cache, decay = _cleared(b), b.weight("ssm_a")
    scanned = b.new("scanned", cache, mixed, steps, decay, *gates, b.part("state rows"))
    scanned.is_cpu_only = b.model.scans_on_cpu
    if decay.device == b.cpu or not scanned.is_cpu_only:
        scanned.device = decay.device
    b.expand(scanned)
    _keep_others(b, cache)
    keep(b, scanned, "last states")
    return scanned


def _projected_back(b: GraphBuilder, scanned: Tensor, skipped: Tensor, gate: Tensor) -> Tensor:
    """What was scanned, with what skipped it, gated, normed and projected."""
    total = b.new("mixed", Tensor(b.size("mixed"), (scanned,), Kind.VIEW), skipped)
    total.replaces = (skipped,)
    result = b.new("mixed", b.new("mixed", gate), total)
    if b.has("ssm_norm.weight"):
        result = b.norm(b.view(result), "ssm_norm")
    return b.product("hidden", "ssm_out", b.view(result))
