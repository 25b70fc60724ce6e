"""The buffer of a model's layers, tensor by tensor in the order of llama.cpp's graph.

`build_qkv`, `build_attn`, `build_ffn` and `build_moe_ffn` of `src/llama-graph.cpp` (llama.cpp
0c1e57098), each node with what it takes and what is free behind it. What ggml computes in place
takes no room: biases, scales, activations without a gate, sums with the hidden states.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from engine.memory.allocator import Allocator, Block
from engine.memory.layer_tensors import AttentionTensors, ExpertTensors, LayerTensors

NOTHING = Block(0, 0)


@dataclass(frozen=True, slots=True)
class Start:
    """What lies in a buffer when the first layer begins."""

    below: int
    """Bytes at its start: the hidden states, or room that is free by then."""
    is_above: bool
    """Whether the hidden states lie behind the inputs."""


def walked_bytes(
    layers: tuple[LayerTensors, ...], start: Start, alignment: int, *, is_last: bool
) -> int:
    """The room that layers take beside the inputs of their graph.

    Args:
        layers: The kinds of a backend's layers in their order, each kind one object.
        start: What lies there when the first begins.
        alignment: Bytes that tensors of the backend begin at multiples of.
        is_last: Whether the last of them is the model's last: behind its attention few rows are
            left.
    """
    whole = layers[:-1] if is_last else layers
    runs = tuple((run[0], len(run)) for _, group in groupby(whole, id) if (run := list(group)))
    return _walked_bytes(runs, layers[0].hidden, layers[-1] if is_last else None, start, alignment)


@lru_cache(maxsize=4096)
def _walked_bytes(
    runs: tuple[tuple[LayerTensors, int], ...],
    n_hidden: int,
    last: LayerTensors | None,
    start: Start,
    alignment: int,
) -> int:
    room = Allocator(alignment)
    below = room.take(start.below)
    inputs = room.take(alignment)
    if start.is_above:
        room.free(below)
    hidden = room.take(n_hidden) if start.is_above else below
    for layer, n_layers in runs:
        hidden = _walk_run(room, hidden, layer, n_layers)
    if last is not None:
        _walk_attention(room, hidden, last)
    return room.peak - inputs.nbytes


def _walk_run(room: Allocator, hidden: Block, layer: LayerTensors, n_layers: int) -> Block:
    """Equal layers in a row; once one finds what an earlier one found, rounds are left out."""
    known: dict[object, int] = {}
    index = 0
    while index < n_layers:
        state = (hidden, room.state)
        if state in known:
            period = index - known[state]
            index += (n_layers - index) // period * period
            known.clear()
        else:
            known[state] = index
        if index < n_layers:
            hidden = _walk_layer(room, hidden, layer)
            index += 1
    return hidden


def _walk_layer(room: Allocator, hidden: Block, layer: LayerTensors) -> Block:
    result, normed = _walk_attention(room, hidden, layer)
    return _walk_behind(room, result, hidden, normed, layer)


def _walk_behind(
    room: Allocator, result: Block, hidden: Block, normed: Block | None, layer: LayerTensors
) -> Block:
    """What follows attention in a layer; hidden states are added to its result in place."""
    if normed is not None:
        behind = _walk_dense(room, normed, layer, frees=True)
        if layer.is_projected_first:
            room.free(behind, hidden)
            return result
        if not layer.is_hidden_last:
            room.free(hidden)
        room.free(_output(room, result, layer))
        if layer.is_hidden_last:
            room.free(hidden)
        return behind
    room.free(hidden)
    if not layer.inner and layer.experts is None:
        return result
    normed = result if layer.is_normed_behind else room.take(layer.hidden)
    if layer.experts is None:
        behind = _walk_dense(room, normed, layer, frees=normed is not result)
    else:
        behind = _walk_experts(room, normed, layer, layer.experts)
    room.free(result)
    return behind


def _walk_attention(
    room: Allocator, hidden: Block, layer: LayerTensors
) -> tuple[Block, Block | None]:
    """Attention of a layer: its result, and the normed hidden states if the dense block is next."""
    sizes = layer.attention
    if sizes is None:
        return hidden, None
    normed = hidden if layer.is_normed_behind else room.take(layer.hidden)
    is_done = normed is not hidden and not layer.is_parallel
    if sizes.is_in_batch:
        result = _attend_in_batch(room, normed, sizes, frees=is_done)
    else:
        project = _split if sizes.is_fused else _project
        result = _attend(room, project(room, normed, sizes, frees=is_done), sizes)
    if layer.is_parallel and not layer.is_projected_first:
        return result, normed
    return _output(room, result, layer), normed if layer.is_parallel else None


def _output(room: Allocator, result: Block, layer: LayerTensors) -> Block:
    """The projected result of attention, turned back and normed before."""
    sizes = layer.attention
    if sizes is not None:
        for _ in range(sizes.is_value_turned + sizes.is_normed):
            result = room.replace(result, sizes.result)
    return room.replace(result, layer.hidden)


def _project(room: Allocator, normed: Block, sizes: AttentionTensors, *, frees: bool) -> Block:
    """Queries; keys and values go to the cache."""
    query = _remade(room, room.take(sizes.query), sizes, sizes.query)
    if sizes.is_key_first:
        key = _remade(room, room.take(sizes.key), sizes, sizes.key)
    value = room.take(sizes.value)
    if sizes.is_key_first and frees:
        room.free(normed)
    if sizes.is_value_turned:
        value = room.replace(value, sizes.value)
    if not sizes.is_key_first:
        key = room.take(sizes.key)
        if frees:
            room.free(normed)
        key = _remade(room, key, sizes, sizes.key)
    room.free(key)
    room.free(_widened(room, value, sizes))
    return query


def _remade(room: Allocator, block: Block, sizes: AttentionTensors, nbytes: int) -> Block:
    """Queries or keys, normed or rotated, and turned."""
    for _ in range(sizes.is_remade + sizes.is_key_turned):
        block = room.replace(block, nbytes)
    return block


def _split(room: Allocator, normed: Block, sizes: AttentionTensors, *, frees: bool) -> Block:
    """The same, of one row: what is made anew is a tensor of its own, the rest are views."""
    row = room.take(sizes.query + sizes.key + sizes.value)
    if frees:
        room.free(normed)
    has_keys = sizes.is_copied or sizes.is_remade or sizes.is_key_turned
    has_values = sizes.is_copied or sizes.is_value_turned
    query = _turned(room, room.take(sizes.query), sizes, sizes.query) if has_keys else row
    key = value = NOTHING
    if has_keys and sizes.is_key_first:
        key = _turned(room, room.take(sizes.key), sizes, sizes.key)
    if has_values:
        value = room.take(sizes.value)
        if has_keys and sizes.is_key_first:
            room.free(row)
        if sizes.is_value_turned:
            value = room.replace(value, sizes.value)
    if has_keys and not sizes.is_key_first:
        key = room.take(sizes.key)
        if has_values:
            room.free(row)
        key = _turned(room, key, sizes, sizes.key)
    room.free(key)
    if has_values:
        room.free(_widened(room, value, sizes))
    else:
        _store_views(room, row, sizes, frees=has_keys)
    return query


def _store_views(room: Allocator, row: Block, sizes: AttentionTensors, *, frees: bool) -> None:
    """Store values that are views of a row: without flash attention of a copy."""
    value = room.take(sizes.value) if sizes.scores else NOTHING
    if frees:
        room.free(row)
    if sizes.scores:
        room.free(_widened(room, value, sizes))


def _widened(room: Allocator, value: Block, sizes: AttentionTensors) -> Block:
    """Values as wide as those of the widest layer, where they are stored transposed."""
    if sizes.stored_value > sizes.value:
        return room.replace(value, sizes.stored_value)
    return value


def _turned(room: Allocator, block: Block, sizes: AttentionTensors, nbytes: int) -> Block:
    """What follows the first tensor that was made of a row: a copy is rotated, both are turned."""
    n_more = sizes.is_key_turned + (sizes.is_copied and sizes.is_remade)
    for _ in range(n_more):
        block = room.replace(block, nbytes)
    return block


def _attend_in_batch(
    room: Allocator, normed: Block, sizes: AttentionTensors, *, frees: bool
) -> Block:
    """Attention to the keys and values of a batch itself: halved for a kernel, or transposed."""
    if sizes.is_fused:
        values = room.take(sizes.query + sizes.key + sizes.value)
        if frees:
            room.free(normed)
        query, key = room.take(sizes.query), room.take(sizes.key)
    else:
        query = _remade(room, room.take(sizes.query), sizes, sizes.query)
        key = _remade(room, room.take(sizes.key), sizes, sizes.key)
        values = room.take(sizes.value)
        if frees:
            room.free(normed)
    if not sizes.scores:
        key = room.replace(key, sizes.key // 2)
        values = room.replace(values, sizes.value // 2)
        result = room.take(sizes.result)
        room.free(query, key, values)
        return result
    values = room.replace(values, sizes.value)
    scores = room.take(sizes.scores)
    room.free(query, key)
    result = room.take(sizes.result)
    room.free(values, scores)
    return room.replace(result, sizes.result)


def _attend(room: Allocator, query: Block, sizes: AttentionTensors) -> Block:
    copies = [room.take(nbytes) for nbytes in sizes.copied if nbytes]
    if not sizes.scores:
        result = room.take(sizes.result + sizes.kernel_copies)
        room.free(query, *copies)
        return result
    scores = room.replace(query, sizes.scores)
    result = room.take(sizes.result)
    room.free(*copies, scores)
    return room.replace(result, sizes.result)


def _walk_dense(
    room: Allocator, normed: Block, layer: LayerTensors, *, frees: bool = False
) -> Block:
    inner = [room.take(layer.inner) for _ in range(2 if layer.is_gated else 1)]
    if frees:
        room.free(normed)
    if layer.is_gated:
        joined = room.take(layer.inner)
        room.free(*inner)
        inner = [joined]
    return room.replace(inner[0], layer.hidden)


def _walk_experts(
    room: Allocator, normed: Block, layer: LayerTensors, sizes: ExpertTensors
) -> Block:
    scores = room.take(sizes.router)
    chosen_by = [room.take(sizes.router)] if sizes.is_biased else []
    order = room.take(sizes.router)
    room.free(*chosen_by)
    weights = room.replace(scores, sizes.weights)
    inner = [room.take(sizes.inner) for _ in range(2 if sizes.is_gated else 1)]
    if not sizes.shared:
        room.free(normed)
    if sizes.is_gated:
        joined = room.take(sizes.inner)
        room.free(*inner)
        inner = [joined]
    outer = room.replace(inner[0], sizes.outer)
    room.free(order, weights)
    result = room.replace(outer, layer.hidden)
    if sizes.shared:
        shared = [room.take(sizes.shared) for _ in range(2 if sizes.is_gated else 1)]
        room.free(normed)
        if sizes.is_gated:
            joined = room.take(sizes.shared)
            room.free(*shared)
            shared = [joined]
        room.free(room.replace(shared[0], layer.hidden))
    return result
