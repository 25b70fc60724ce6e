"""Tensor tables as text: one row names a tensor and its dimensions.

A row is `attn_q d q`: the tensor `attn_q.weight` of `d` by `q` elements. Names get `.weight` unless
they end in `.bias`, or in a dot (`ssm_a.` is the tensor `ssm_a`). A dimension is a number, the name
of a size, or a sum of products of those (`kv_rank+rot`, `2*d`). Groups of rows that many
architectures share follow (names of llama.cpp's `llama-arch.cpp`), then what a layout is.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from engine.model.gguf_header import Value

Dimension = tuple[tuple[str | int, ...], ...]
"""A sum of products of sizes and numbers."""

Row = tuple[str, tuple[Dimension, ...]]
Rows = tuple[Row, ...]
Shape = tuple[str, tuple[int, ...]]
"""Name and dimensions of a tensor, the row length first."""
Sizes = dict[str, int]


def rows(text: str) -> Rows:
    """The rows of a table, one for each line."""
    return tuple(_row(line.split()) for line in text.strip().splitlines())


def shapes(table: Rows, sizes: Mapping[str, int], prefix: str = "") -> Iterator[Shape]:
    """The tensors of a table for these sizes; `prefix` goes before every name."""
    for name, dimensions in table:
        yield prefix + name, tuple(_evaluate(dimension, sizes) for dimension in dimensions)


def _row(words: list[str]) -> Row:
    name = words[0]
    if name.endswith("."):
        name = name[:-1]
    elif not name.endswith(".bias"):
        name += ".weight"
    return name, tuple(_dimension(word) for word in words[1:])


def _dimension(word: str) -> Dimension:
    return tuple(tuple(_factor(part) for part in term.split("*")) for term in word.split("+"))


def _factor(part: str) -> str | int:
    return int(part) if part.isdigit() else part


def _evaluate(dimension: Dimension, sizes: Mapping[str, int]) -> int:
    return sum(
        prod(part if isinstance(part, int) else sizes[part] for part in term) for term in dimension
    )


ATTENTION = rows("""
    attn_norm d
    attn_q d q
    attn_k d k
    attn_v d v
    attn_output o d
""")
ATTENTION_NORM, ATTENTION_BARE = ATTENTION[:1], ATTENTION[1:]
QKV_BIAS = rows("""
    attn_q.bias q
    attn_k.bias k
    attn_v.bias v
""")
OUTPUT_BIAS = rows("attn_output.bias d")
QK_NORM = rows("""
    attn_q_norm k_dim
    attn_k_norm k_dim
""")
SINKS = rows("attn_sinks heads")
NORM_BIAS = rows("attn_norm.bias d")
FFN_NORM_BIAS = rows("ffn_norm.bias d")

FFN_NORM = rows("ffn_norm d")
POST_ATTENTION_NORM = rows("post_attention_norm d")
POST_FFN_NORM = rows("post_ffw_norm d")
GATED_FFN = rows("""
    ffn_gate d ff
    ffn_up d ff
    ffn_down ff d
""")
PLAIN_FFN = rows("""
    ffn_up d ff
    ffn_down ff d
""")
FFN_BIAS = rows("""
    ffn_up.bias ff
    ffn_down.bias d
""")
EXPERTS = rows("""
    ffn_gate_inp d experts
    ffn_gate_exps d expert_ff experts
    ffn_up_exps d expert_ff experts
    ffn_down_exps expert_ff d experts
""")
SHARED_EXPERTS = rows("""
    ffn_gate_shexp d shared_ff
    ffn_up_shexp d shared_ff
    ffn_down_shexp shared_ff d
""")
SHARED_GATE = rows("ffn_gate_inp_shexp d")
EXPERT_BIAS = rows("exp_probs_b.bias experts")
NEXT_TOKEN = rows("""
    nextn.eh_proj 2*d d
    nextn.enorm d
    nextn.hnorm d
    nextn.shared_head_norm d
""")
NEXT_TOKEN_VOCABULARY = rows("""
    nextn.embed_tokens d vocab
    nextn.shared_head_head d vocab
""")
ROPE_FREQS = rows("rope_freqs half_rot")
ROPE_LONG_SHORT = rows("""
    rope_factors_long half_rot
    rope_factors_short half_rot
""")

EMBEDDING = rows("token_embd d vocab")
OUTPUT_NORM = rows("output_norm d")
OUTPUT_NORM_BIAS = rows("output_norm.bias d")
OUTPUT = rows("output d vocab")


class Keys:
    """Values of an architecture's keys, without its prefix (`attention.head_count`).

    `traits` names what no key says but the tensors do: `tied` (no output matrix), `rope_freqs`,
    `qkv_bias` and the like, as each layout documents.
    """

    def __init__(
        self, architecture: str, values: Mapping[str, Value], n_vocab: int, traits: frozenset[str]
    ) -> None:
        self.architecture = architecture
        self.n_vocab = n_vocab
        self.traits = traits
        self._values = values
        self.n_layers = self.integer("block_count")
        """Blocks of the file, those of a next-token head included."""
        self.n_trunk_layers = self.n_layers - self.integer("nextn_predict_layers")

    def integer(self, key: str, layer: int = 0, default: int = 0) -> int:
        """The value for a layer, be it one for all or one for each."""
        value = self._values.get(key, default)
        if isinstance(value, tuple):
            value = value[layer] if layer < len(value) else default
        return int(value)

    def sizes(self, layer: int) -> Sizes:
        """What rows call `d`, `q`, `k`, `v`, `o`, `ff` and so on, for one layer."""
        hidden = self.integer("embedding_length")
        heads = self.integer("attention.head_count", layer)
        kv_heads = self.integer("attention.head_count_kv", layer, heads)
        head_dim = hidden // max(1, self.integer("attention.head_count", 0, 1))
        k_dim = self.integer("attention.key_length", layer, head_dim)
        v_dim = self.integer("attention.value_length", layer, head_dim)
        rot = self.integer("rope.dimension_count", layer, k_dim)
        ff = self.integer("feed_forward_length", layer)
        expert_ff = self.integer("expert_feed_forward_length", layer, ff)
        n_shared = self.integer("expert_shared_count", layer)
        return {
            "d": hidden,
            "vocab": self.n_vocab,
            "heads": heads,
            "kv_heads": kv_heads,
            "k_dim": k_dim,
            "v_dim": v_dim,
            "q": heads * k_dim,
            "k": kv_heads * k_dim,
            "v": kv_heads * v_dim,
            "o": heads * v_dim,
            "rot": rot,
            "half_rot": rot // 2,
            "ff": ff,
            "experts": self.integer("expert_count", layer),
            "expert_ff": expert_ff,
            "shared_ff": self.integer(
                "expert_shared_feed_forward_length", layer, expert_ff * n_shared
            ),
        }


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors a model of one architecture has."""

    layer: Callable[[Keys, int], Rows]
    """Rows of a layer, by its index."""
    extra: Rows | Callable[[Keys], Rows] = ()
    """Rows outside the layers, besides embedding, output norm and output."""
    sizes: Callable[[Keys, int], Sizes] = Keys.sizes
    """What dimensions are called in the rows of a layer."""
    has_output_norm: bool = True

    def tensors(self, keys: Keys) -> Iterator[Shape]:
        """Name and shape of every tensor of a model."""
        yield from shapes(self._outside(keys), self.sizes(keys, 0))
        for index in range(keys.n_layers):
            yield from shapes(self.layer(keys, index), self.sizes(keys, index), f"blk.{index}.")

    def _outside(self, keys: Keys) -> Rows:
        extra = self.extra(keys) if callable(self.extra) else self.extra
        outside = EMBEDDING + (OUTPUT_NORM if self.has_output_norm else ()) + extra
        if "rope_freqs" in keys.traits:
            outside += ROPE_FREQS
        if "rope_long_short" in keys.traits:
            outside += ROPE_LONG_SHORT
        return outside if "tied" in keys.traits else outside + OUTPUT


def uniform(
    *blocks: Rows,
    extra: Rows | Callable[[Keys], Rows] = (),
    sizes: Callable[[Keys, int], Sizes] = Keys.sizes,
    has_output_norm: bool = True,
) -> Layout:
    """The layout of a model whose layers are alike; arguments as `Layout` has them."""
    joined = tuple(row for block in blocks for row in block)
    return Layout(lambda _keys, _index: joined, extra, sizes, has_output_norm)
