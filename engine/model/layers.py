"""Contents of each layer's cache: keys and values of all tokens or of a window, or a state.

Formulas of llama.cpp 0c1e57098: `n_embd_r` and `n_embd_s` in `src/llama-hparams.cpp`, layer filters
in `create_memory` of `src/llama-model.cpp`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.model.gguf import HeaderKeys

GLM_5_2_CONTEXT = 1_048_576
NO_WINDOW = (
    "the file declares no sliding window, so llama.cpp refuses it; the plan assumes full attention"
)
NO_PATTERN = "the file does not specify its sliding-window layers; the plan assumes full attention"
NONE_SLIDES = (
    "the file has no sliding-window layer; llama.cpp (commit 0c1e57098) aborts on such files"
)
SHORT_RATIO, LONG_RATIO = 4, 128
"""Tokens of one row in the compressed caches of DeepSeek V4 (`llama-kv-cache-dsv4.cpp`)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's share of the cache."""

    n_kv_heads: int
    k_head_dim: int
    v_head_dim: int  # 0 if values are views of the keys
    n_heads: int = 0  # query heads
    window: int | None = None  # tokens that a sliding-window layer caches; None is all
    indexer_k_width: int = 0  # key elements of a token in a sparse-attention indexer; 0 without one
    indexer_v_width: int = 0
    compress_ratio: int = 0  # tokens of one row of the compressed cache next to the window, or 0
    is_unshared: bool = False  # whether each slot has its own cells even in a unified cache

    @property
    def k_width(self) -> int:
        """Key elements of one token."""
        return self.n_kv_heads * self.k_head_dim

    @property
    def v_width(self) -> int:
        """Value elements of one token."""
        return self.n_kv_heads * self.v_head_dim


@dataclass(frozen=True, slots=True)
class StateRow:
    """Elements (float32) of a recurrent layer's state of one sequence."""

    n_convolution: int  # last inputs of a convolution or a token shift (R in llama.cpp's log)
    n_state: int  # the state itself (S in llama.cpp's log)


def head_dims(
    keys: HeaderKeys, head_dim: int, spans: Sequence[int | None]
) -> list[tuple[int, int]]:
    """Key and value elements of a head of each layer, dense or sliding."""
    k = keys.optional("attention.key_length", head_dim)
    v = keys.optional("attention.value_length", head_dim)
    k_swa = keys.optional("attention.key_length_swa", k)
    v_swa = keys.optional("attention.value_length_swa", v)
    return [(k, v) if span is None else (k_swa, v_swa) for span in spans]


def is_latent(keys: HeaderKeys) -> bool:
    """Whether only latent keys are cached: both `*_mla` sizes are in the file."""
    return keys.family.may_be_latent and all(
        keys.optional(f"attention.{key}_length_mla", 0) for key in ("key", "value")
    )


def n_layers_with_cache(keys: HeaderKeys, n_blocks: int) -> int:
    """Number of first layers that own a cache; the others use one of theirs."""
    sharing = keys.family.sharing
    if sharing is None:
        return n_blocks
    n_named = max(0, n_blocks - keys.optional("attention.shared_kv_layers", 0))
    return min(sharing.n_cached_layers, n_blocks) or n_named


def windows(keys: HeaderKeys, n_blocks: int) -> tuple[list[int | None], tuple[str, ...]]:
    """Each layer's window, and why it may be wrong."""
    dense: list[int | None] = [None] * n_blocks
    rule, window = keys.family.window, keys.optional("attention.sliding_window", 0)
    if keys.family.indexer == "compressed":
        return [window] * n_blocks, ()
    if rule is None or rule.only_n_layers not in (None, n_blocks):
        return dense, ()
    if not keys.has("attention.sliding_window"):
        if rule.needs_key or rule.default_window is None:
            return dense, () if rule.needs_key else (NO_WINDOW,)
        window = rule.default_window
    elif not window and (rule.needs_key or rule.zero_is_dense):
        return dense, ()
    else:
        window = rule.fixed_window or window
    flags = keys.flags("attention.sliding_window_pattern", n_blocks)
    if flags is None and rule.period is None:
        return dense, (NO_PATTERN,)
    if flags is None:
        named = keys.file.integer(f"{keys.name}.attention.sliding_window_pattern")
        period = (rule.period or 0) if named is None else max(0, named)
        dense_at = 0 if rule.dense_first else period - 1
        flags = [period == 0 or index % period != dense_at for index in range(n_blocks)]
    spans = [window if flag else None for flag in flags]
    return spans, () if any(flags) else (NONE_SLIDES,)


def has_indexer(keys: HeaderKeys) -> bool:
    """Whether an indexer chooses the tokens that a layer attends to."""
    return bool(keys.family.indexer and keys.optional("attention.indexer.key_length", 0))


def with_indexer(keys: HeaderKeys, index: int, n_layers: int, layer: Layer) -> Layer:
    """Add the caches of sparse attention: an indexer's, and compressed rows of keys."""
    kind, k_dim = keys.family.indexer, keys.optional("attention.indexer.key_length", 0)
    if kind == "compressed":
        ratio = _compress_ratio(keys, index)
        k_width = k_dim if ratio == SHORT_RATIO else 0
        return replace(layer, compress_ratio=ratio, indexer_k_width=k_width, is_unshared=True)
    if not kind or index >= n_layers:
        return layer
    if kind == "blocks":
        is_dense = not k_dim or index < keys.optional("leading_dense_block_count", 0)
        values = 0 if is_dense else layer.v_head_dim
        return replace(layer, indexer_k_width=0 if is_dense else k_dim, indexer_v_width=values)
    if keys.family.needs_top_k and not keys.optional("attention.indexer.top_k", 0):
        return layer
    if kind == "latent pools":
        k_dim *= 3 if keys.optional("attention.indexer.kpool", 0) else 1
    return replace(layer, indexer_k_width=k_dim if _has_own_indexer(keys, index, n_layers) else 0)


def _has_own_indexer(keys: HeaderKeys, index: int, n_layers: int) -> bool:
    which = keys.family.indexer_layers
    if which == "all":
        return True
    flags = keys.flags("attention.indexer.types", n_layers)
    if flags is not None:
        return flags[index]
    is_long = keys.optional("context_length", 0) >= GLM_5_2_CONTEXT
    if which == "by_context" and is_long:
        return index < 2 or (index - 2) % 4 == 0
    return which != "named"


def _compress_ratio(keys: HeaderKeys, index: int) -> int:
    """Tokens of one compressed row; 0 if llama.cpp compresses nothing."""
    ratios = keys.file.integers(f"{keys.name}.attention.compress_ratios") or ()
    ratio = ratios[index] if index < len(ratios) else 0
    return ratio if ratio in (SHORT_RATIO, LONG_RATIO) else 0


def compressor_states(keys: HeaderKeys, n_layers: int) -> dict[int, StateRow]:
    """States of compressed layers, of tokens that do not fill a row yet (DeepSeek V4).

    A sum and its weights, of the keys and of an indexer; short rows overlap by half
    (`llama_dsv4_comp_state`, `src/llama-kv-cache-dsv4.cpp`).
    """
    if keys.family.indexer != "compressed":
        return {}
    k_dim = keys.optional("attention.key_length", 0)
    short_width = k_dim + keys.optional("attention.indexer.key_length", 0)
    n_state = {SHORT_RATIO: 8 * SHORT_RATIO * short_width, LONG_RATIO: 2 * LONG_RATIO * k_dim}
    ratios = {index: _compress_ratio(keys, index) for index in range(n_layers)}
    return {index: StateRow(0, n_state[ratio]) for index, ratio in ratios.items() if ratio}


def layer_kinds(
    keys: HeaderKeys, n_blocks: int, n_layers: int, kv_heads: list[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Which layers attend and which are recurrent; `n_layers` excludes those of an MTP head."""
    blocks, trunk = frozenset(range(n_blocks)), frozenset(range(n_layers))
    family = keys.family
    match family.recurrent:
        case "all":
            return (frozenset(), trunk)
        case "beside attention":
            return (blocks, trunk)
        case "by interval":
            recurrent = _by_interval(keys, n_blocks, n_layers)
            return (trunk - recurrent, recurrent & trunk)
        case "without block":
            n_ff = keys.per_layer("feed_forward_length", n_blocks, default=[0] * n_blocks)
            without = frozenset(i for i in blocks if n_ff[i] == 0)
            recurrent = frozenset(i for i in trunk & without if kv_heads[i] == 0)
            return (without - recurrent, recurrent)
        case "without heads":
            reach = trunk if family.of_head == "nothing" else blocks
            marked = blocks if family.of_head == "recurs" else trunk
            recurrent = frozenset(i for i in marked if kv_heads[i] == 0)
            return (reach - recurrent, recurrent & trunk)
    keeps_head = family.has_router_layer or family.indexer == "compressed"
    return (blocks if keeps_head else trunk, frozenset())


def _state_row(keys: HeaderKeys, d_hidden: int, n_heads: int) -> StateRow:
    """The state of a model's recurrent layers, from the keys that its architecture reads."""
    kind = keys.family.state
    if kind == "rwkv":
        n_shifts, head = keys.optional("token_shift_count", 2), keys.optional("wkv.head_size", 0)
        return StateRow(n_shifts * d_hidden if head else 0, d_hidden * head)
    if kind == "convolution":
        return StateRow(d_hidden * max(0, keys.optional("shortconv.l_cache", 0) - 1), 0)
    if kind == "linear attention":
        head = keys.optional("attention.key_length", d_hidden // n_heads if n_heads else 0)
        return StateRow(0, head * head * n_heads)
    n_kernel = keys.optional("ssm.conv_kernel", 0)
    if kind == "kda":
        head = keys.optional("kda.head_dim", 0)
        n_inputs = n_kernel - 1 if n_kernel else 3
        return StateRow(3 * n_inputs * n_heads * head, head * head * n_heads)
    inner, d_state = keys.optional("ssm.inner_size", 0), keys.optional("ssm.state_size", 0)
    groups = 0 if kind == "mamba" else keys.optional("ssm.group_count", 0)
    return StateRow(max(0, n_kernel - 1) * (inner + 2 * groups * d_state), d_state * inner)


def _by_interval(keys: HeaderKeys, n_blocks: int, n_layers: int) -> frozenset[int]:
    if keys.has("attention.recurrent_layers"):
        flags = keys.per_layer("attention.recurrent_layers", n_blocks, default=[0] * n_blocks)
        return frozenset(i for i in range(n_blocks) if flags[i])
    interval = keys.optional("full_attention_interval", keys.family.interval) or 1
    return frozenset(i for i in range(n_layers) if (i + 1) % interval)


def recurrent_states(
    keys: HeaderKeys, recurrent: Iterable[int], d_hidden: int, n_heads: int
) -> dict[int, StateRow]:
    """The state of each recurrent layer; some hash n-grams too (`ple_conv_state`, Qwen 3.8)."""
    row = _state_row(keys, d_hidden, n_heads)
    if not keys.family.hashes_ngrams:
        return dict.fromkeys(sorted(recurrent), row)
    hashing = keys.file.integers(f"{keys.name}.ple.layers") or ()
    n_kernel, n_gram = keys.optional("ple.conv_kernel", 0), keys.optional("ple.ngram_size", 0)
    n_streams = keys.optional("hyper_connection.count", 0)
    n_history = max(0, n_kernel - 1) * n_gram * n_streams * d_hidden
    with_history = replace(row, n_convolution=row.n_convolution + n_history)
    return {index: with_history if index in hashing else row for index in sorted(recurrent)}
