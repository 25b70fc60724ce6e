"""Which layers keep a state instead of a cache, and how large its rows are.

Formulas of llama.cpp 0c1e57098: `n_embd_r` and `n_embd_s` in `src/llama-hparams.cpp`, layer filters
in `create_memory` of `src/llama-model.cpp`.
"""

from dataclasses import dataclass, replace

from engine.model.attention import FINE_RATIO, compress_ratio
from engine.model.families import (
    COMPRESSED,
    DELTA_ATTENTION,
    HEADLESS_HYBRIDS,
    INTERVAL_HYBRIDS,
    MAMBA,
    RECURRENT,
    SHORT_CONVOLUTION,
    UNGROUPED,
)
from engine.model.header_keys import HeaderKeys


@dataclass(frozen=True, slots=True)
class StateRow:
    """Elements (float32) that a recurrent layer keeps of one sequence."""

    n_convolution: int
    """The last inputs of a convolution, or of a token shift (R in llama.cpp's log)."""
    n_state: int
    """The state itself (S in llama.cpp's log)."""


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """Which layers attend and which are recurrent, by index; some are both or neither."""

    attending: frozenset[int]
    recurrent: frozenset[int]


def layer_kinds(keys: HeaderKeys, n_blocks: int, n_layers: int, kv_heads: list[int]) -> LayerKinds:
    """Say what each layer is; `n_layers` leaves out those of a next-token head."""
    blocks, trunk = frozenset(range(n_blocks)), frozenset(range(n_layers))
    name = keys.name
    if name in RECURRENT:
        return LayerKinds(frozenset(), trunk)
    if name == "falcon-h1":
        return LayerKinds(blocks, trunk)
    if name in INTERVAL_HYBRIDS:
        recurrent = _by_interval(keys, n_blocks, n_layers)
        return LayerKinds(trunk - recurrent, recurrent & trunk)
    if name in ("nemotron_h", "nemotron_h_moe"):
        n_ff = keys.per_layer("feed_forward_length", n_blocks, default=[0] * n_blocks)
        without = frozenset(i for i in blocks if n_ff[i] == 0)
        recurrent = frozenset(i for i in trunk & without if kv_heads[i] == 0)
        return LayerKinds(without - recurrent, recurrent)
    if name in HEADLESS_HYBRIDS:
        reach = trunk if name == "glm5-next" else blocks
        marked = blocks if name == "bailingmoe3" else trunk
        recurrent = frozenset(i for i in marked if kv_heads[i] == 0)
        return LayerKinds(reach - recurrent, recurrent & trunk)
    keeps_head = name == "graniteswitch" or name in COMPRESSED
    return LayerKinds(blocks if keeps_head else trunk, frozenset())


def _by_interval(keys: HeaderKeys, n_blocks: int, n_layers: int) -> frozenset[int]:
    if keys.has("attention.recurrent_layers"):
        flags = keys.per_layer("attention.recurrent_layers", n_blocks, default=[0] * n_blocks)
        return frozenset(i for i in range(n_blocks) if flags[i])
    interval = keys.optional("full_attention_interval", INTERVAL_HYBRIDS[keys.name]) or 1
    return frozenset(i for i in range(n_layers) if (i + 1) % interval)


def state_row(keys: HeaderKeys, d_hidden: int, n_heads: int) -> StateRow:
    """Give the row of a model's recurrent layers, from the keys that its architecture reads.

    What other architectures read counts for nothing, though it may stand in the file.
    """
    if keys.name in RECURRENT - MAMBA:
        n_shifts, head = keys.optional("token_shift_count", 2), keys.optional("wkv.head_size", 0)
        return StateRow(n_shifts * d_hidden if head else 0, d_hidden * head)
    if keys.name in SHORT_CONVOLUTION:
        return StateRow(d_hidden * max(0, keys.optional("shortconv.l_cache", 0) - 1), 0)
    if keys.name == "minimax-01":
        head = keys.optional("attention.key_length", d_hidden // n_heads if n_heads else 0)
        return StateRow(0, head * head * n_heads)
    n_kernel = keys.optional("ssm.conv_kernel", 0)
    if keys.name in DELTA_ATTENTION:
        head = keys.optional("kda.head_dim", 0)
        n_kept = n_kernel - 1 if n_kernel else 3
        return StateRow(3 * n_kept * n_heads * head, head * head * n_heads)
    inner, d_state = keys.optional("ssm.inner_size", 0), keys.optional("ssm.state_size", 0)
    groups = 0 if keys.name in UNGROUPED else keys.optional("ssm.group_count", 0)
    return StateRow(max(0, n_kernel - 1) * (inner + 2 * groups * d_state), d_state * inner)


def with_hash_layers(
    keys: HeaderKeys, states: dict[int, StateRow], d_hidden: int
) -> dict[int, StateRow]:
    """Add the history of the layer that hashes n-grams (`ple_conv_state`, Qwen 3.8)."""
    if keys.name != "qwen4exp":
        return states
    chosen = keys.file.integers(f"{keys.name}.ple.layers") or ()
    n_kernel, n_gram = keys.optional("ple.conv_kernel", 0), keys.optional("ple.ngram_size", 0)
    n_streams = keys.optional("hyper_connection.count", 0)
    history = max(0, n_kernel - 1) * n_gram * n_streams * d_hidden
    return {
        index: replace(row, n_convolution=row.n_convolution + history) if index in chosen else row
        for index, row in states.items()
    }


def compressor_states(keys: HeaderKeys, n_blocks: int) -> dict[int, StateRow]:
    """Give what compressed layers keep of tokens that do not fill a row yet (DeepSeek V4).

    Both a sum and its weights, of the keys and of a fine indexer; fine rows overlap by half
    (`llama_dsv4_comp_state`, `src/llama-kv-cache-dsv4.cpp`).
    """
    if keys.name not in COMPRESSED:
        return {}
    ratios = {index: compress_ratio(keys, index) for index in range(n_blocks)}
    return {index: _compressor(keys, ratio) for index, ratio in ratios.items() if ratio}


def _compressor(keys: HeaderKeys, ratio: int) -> StateRow:
    width = keys.optional("attention.key_length", 0)
    n_rows = ratio
    if ratio == FINE_RATIO:
        width = 2 * (width + keys.optional("attention.indexer.key_length", 0))
        n_rows = 2 * ratio
    return StateRow(0, 2 * n_rows * width)
