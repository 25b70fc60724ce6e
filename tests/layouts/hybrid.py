"""Hybrids of attention and linear attention: Qwen 3 Next and later, Kimi Linear, MiniMax 01."""

from collections.abc import Callable

import tests.layouts.tables as t
from tests.layouts.experts import ROUTED_BY_BIAS, dense_first, next_token_head
from tests.layouts.latent import (
    BLOCK_INDEXER,
    INDEXER,
    STREAM_MIX,
    latent_attention,
    latent_sizes,
    stream_sizes,
)
from tests.layouts.tables import Keys, Layout, Rows, Sizes, changed, rows

GATED_ATTENTION = rows("""
    attn_q d 2*q
    attn_k d k
    attn_v d v
    attn_output o d
    attn_q_norm k_dim
    attn_k_norm k_dim
""")
DELTA_NET = rows("""
    attn_qkv d delta_conv
    attn_gate d delta_values
    ssm_conv1d conv delta_conv
    ssm_dt.bias value_heads
    ssm_a. value_heads
    ssm_norm delta_dim
    ssm_out delta_values d
""")
JOINT_GATES = rows("ssm_ba d 2*value_heads")
SPLIT_GATES = rows("""
    ssm_beta d value_heads
    ssm_alpha d value_heads
""")
SHARED_EXPERT = t.SHARED_EXPERTS + t.SHARED_GATE
KIMI_DELTA = rows("""
    ssm_conv1d_q conv 1 heads*kda_dim
    ssm_conv1d_k conv 1 heads*kda_dim
    ssm_conv1d_v conv 1 heads*kda_dim
    attn_q d heads*kda_dim
    attn_k d heads*kda_dim
    attn_v d heads*kda_dim
    ssm_f_a d kda_dim
    ssm_f_b kda_dim heads*kda_dim
    ssm_beta d heads
    ssm_a. 1 heads
    ssm_dt.bias heads*kda_dim
    ssm_g_a d kda_dim
    ssm_g_b kda_dim heads*kda_dim
    ssm_norm kda_dim
    attn_output heads*kda_dim d
""")
GLM_DELTA = changed(KIMI_DELTA, rows("ssm_a. heads"))
BAILING3_DELTA = changed(
    KIMI_DELTA,
    rows("""
        ssm_conv1d_q conv 1 heads*kda_dim 1
        ssm_conv1d_k conv 1 heads*kda_dim 1
        ssm_conv1d_v conv 1 heads*kda_dim 1
        ssm_f_a d heads*kda_dim
        ssm_g_a d heads*kda_dim
    """),
    without=("ssm_f_b.weight", "ssm_g_b.weight"),
)
BAILING3_HEAD = t.NEXT_TOKEN[:3] + rows("layer_output_norm d")
POOLED_KEYS = rows("""
    indexer_compressor_gate d index_dim
    indexer_compressor_ape index_dim kpool
""")
LIGHTNING = rows("""
    attn_norm_2 q
    attn_qkv d 3*q
    attn_gate d q
    attn_output q d
""")
QWEN4_STREAMS = rows("""
    hc_attn_norm streams*d
    hc_attn_down streams*d stream_rank
    hc_attn_up stream_rank streams*d
    hc_attn_inject streams*d streams
    hc_ffn_norm streams*d
    hc_ffn_down streams*d stream_rank
    hc_ffn_up stream_rank streams*d
    hc_ffn_inject streams*d streams
""")
GROUP_LAYER = rows("""
    ple_key d streams*d
    ple_value d d
    ple_norm_key streams*d
    ple_norm_query streams*d
    ple_norm_conv streams*d
    ple_conv1d group_conv streams*d
""")
QWEN4_OUTSIDE = rows("""
    per_layer_token_embd per_layer group_rows
    output_hc_norm streams*d
    output_hc_down streams*d stream_rank
    output_hc_up stream_rank streams*d
""")


def _is_recurrent(keys: Keys, index: int) -> bool:
    """Whether a layer has no attention; those of a next-token head have."""
    interval = keys.integer("full_attention_interval", default=4)
    return index < keys.n_trunk_layers and (index + 1) % interval != 0


def _qwen_layer(gates: Rows, ffn: Rows) -> Callable[[Keys, int], Rows]:
    def layer(keys: Keys, index: int) -> Rows:
        mixer = DELTA_NET + gates if _is_recurrent(keys, index) else GATED_ATTENTION
        norms = t.ATTENTION_NORM + t.POST_ATTENTION_NORM
        return norms + mixer + ffn + next_token_head(keys, index)

    return layer


def _qwen_sizes(keys: Keys, layer: int) -> Sizes:
    """The standard sizes and those of gated delta networks."""
    dim = keys.integer("ssm.state_size")
    values = dim * keys.integer("ssm.time_step_rank")
    return keys.sizes(layer) | {
        "conv": keys.integer("ssm.conv_kernel"),
        "delta_dim": dim,
        "delta_values": values,
        "delta_conv": values + 2 * dim * keys.integer("ssm.group_count"),
        "value_heads": keys.integer("ssm.time_step_rank"),
    }


def _qwen4(keys: Keys, index: int) -> Rows:
    is_recurrent = _is_recurrent(keys, index)
    mixer = DELTA_NET + SPLIT_GATES if is_recurrent else GATED_ATTENTION + BLOCK_INDEXER
    groups = GROUP_LAYER if index == keys.integer("ple.layers") else ()
    return QWEN4_STREAMS + mixer + groups + t.EXPERTS + SHARED_EXPERT


def _qwen4_sizes(keys: Keys, layer: int) -> Sizes:
    n_heads = (keys.integer("ple.ngram_size") - 1) * keys.integer("ple.heads_per_ngram")
    group_rows = keys.integer("ple.head_offsets", n_heads - 1)
    return _qwen_sizes(keys, layer) | {
        "streams": keys.integer("hyper_connection.count"),
        "stream_rank": keys.integer("hyper_connection.low_rank"),
        "index_heads": keys.integer("attention.indexer.head_count"),
        "index_dim": keys.integer("attention.indexer.key_length"),
        "per_layer": keys.integer("embedding_length_per_layer_input"),
        "group_rows": group_rows + keys.integer("ple.head_vocab_sizes", n_heads - 1),
        "group_conv": keys.integer("ple.conv_kernel"),
    }


def _kimi_linear(keys: Keys, index: int) -> Rows:
    has_attention = keys.integer("attention.head_count_kv", index)
    mixer = latent_attention(keys) if has_attention else t.ATTENTION_NORM + KIMI_DELTA
    return dense_first(mixer + t.FFN_NORM, ROUTED_BY_BIAS)(keys, index)


def _kimi_sizes(keys: Keys, layer: int) -> Sizes:
    """The sizes of latent attention, and those of Kimi's delta attention."""
    return latent_sizes(keys, layer) | {
        "conv": keys.integer("ssm.conv_kernel"),
        "kda_dim": keys.integer("kda.head_dim"),
    }


def _bailingmoe3(keys: Keys, index: int) -> Rows:
    has_attention = keys.integer("attention.head_count_kv", index)
    delta = t.ATTENTION_NORM + BAILING3_DELTA
    mixer = latent_attention(keys) + t.HEAD_GATE if has_attention else delta
    is_dense = index < keys.integer("leading_dense_block_count")
    head = BAILING3_HEAD if index >= keys.n_trunk_layers else ()
    return mixer + t.FFN_NORM + (t.GATED_FFN if is_dense else ROUTED_BY_BIAS) + head


def _glm5_next(keys: Keys, index: int) -> Rows:
    is_trunk = index < keys.n_trunk_layers
    has_attention = keys.integer("attention.head_count_kv", index)
    latent = latent_attention(keys) + INDEXER + POOLED_KEYS
    mixer = latent if has_attention else t.ATTENTION_NORM + GLM_DELTA
    every = mixer + t.FFN_NORM + (STREAM_MIX if is_trunk else ())
    return dense_first(every, ROUTED_BY_BIAS)(keys, index)


def _glm_sizes(keys: Keys, layer: int) -> Sizes:
    streams = stream_sizes(keys, 2 + keys.integer("hyper_connection.count"), 3)
    pool = {"kpool": keys.integer("attention.indexer.kpool")}
    return _kimi_sizes(keys, layer) | streams | pool


def _minimax01(keys: Keys, index: int) -> Rows:
    interval = keys.integer("full_attention_interval", default=8)
    mixer = LIGHTNING if (index + 1) % interval else t.ATTENTION_BARE
    return t.ATTENTION_NORM + mixer + t.FFN_NORM + t.EXPERTS


HYBRID = {
    "qwen3next": Layout(_qwen_layer(JOINT_GATES, t.EXPERTS + SHARED_EXPERT), sizes=_qwen_sizes),
    "qwen35": Layout(_qwen_layer(SPLIT_GATES, t.GATED_FFN), sizes=_qwen_sizes),
    "qwen35moe": Layout(_qwen_layer(SPLIT_GATES, t.EXPERTS + SHARED_EXPERT), sizes=_qwen_sizes),
    "qwen4exp": Layout(_qwen4, extra=QWEN4_OUTSIDE, sizes=_qwen4_sizes, has_output_norm=False),
    "kimi-linear": Layout(_kimi_linear, sizes=_kimi_sizes),
    "bailingmoe3": Layout(_bailingmoe3, sizes=_kimi_sizes),
    "glm5-next": Layout(_glm5_next, sizes=_glm_sizes),
    "minimax-01": Layout(_minimax01),
}
