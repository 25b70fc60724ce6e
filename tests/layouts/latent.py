"""Latent and sparse attention: one compressed row per token, chosen by an indexer.

DeepSeek 2 to 4 and their relatives, MiniCPM 3, HY 4, MiniMax M3. HY 4 and DeepSeek V4 run parallel
streams of hidden states between the layers; the latter compresses what leaves its window.
"""

import tests.layouts.tables as t
from engine.model.layers import FINE_RATIO
from tests.layouts.experts import (
    NORMED,
    ROUTED,
    ROUTED_BY_BIAS,
    dense_first,
    next_token_head,
)
from tests.layouts.tables import Keys, Layout, Rows, Sizes, rows, uniform

QUERY = rows("attn_q d heads*k_mla")
COMPRESSED_QUERY = rows("""
    attn_q_a d q_rank
    attn_q_a_norm q_rank
    attn_q_b q_rank heads*k_mla
""")
LATENT = rows("""
    attn_kv_a_mqa d kv_rank+rot
    attn_kv_a_norm kv_rank
    attn_k_b nope kv_rank heads
    attn_v_b kv_rank v_mla heads
    attn_output heads*v_mla d
""")
JOINT_LATENT = rows("""
    attn_kv_a_mqa d kv_rank+rot
    attn_kv_a_norm kv_rank
    attn_kv_b kv_rank heads*nope+heads*v_mla
    attn_output heads*v_mla d
""")
INDEXER = rows("""
    indexer.k_norm index_dim
    indexer.k_norm.bias index_dim
    indexer.proj d index_heads
    indexer.attn_k d index_dim
    indexer.attn_q_b q_rank index_heads*index_dim
""")
BLOCK_INDEXER = rows("""
    indexer.q_proj d index_heads*index_dim
    indexer.k_proj d index_dim
    indexer.q_norm index_dim
    indexer.k_norm index_dim
""")
GATE = rows("attn_gate d heads*v_mla")
STREAM_MIX = rows("""
    hc_attn_fn streams*d mix
    hc_attn_base mix
    hc_attn_scale mix_scales
    hc_ffn_fn streams*d mix
    hc_ffn_base mix
    hc_ffn_scale mix_scales
""")
STREAM_HEAD = rows("""
    output_hc_fn streams*d streams
    output_hc_base streams
    output_hc_scale 1
""")
DEEPSEEK4_ATTENTION = (
    rows("""
    attn_norm d
    attn_sinks heads
    attn_q_a d q_rank
    attn_q_a_norm q_rank
    attn_q_b q_rank q
    attn_kv d k_dim
    attn_kv_a_norm k_dim
    attn_output_a group_width o_rank groups
    attn_output_b groups*o_rank d
""")
    + STREAM_MIX
    + t.FFN_NORM
)
COMPRESSOR = rows("""
    attn_compressor_kv d overlap*k_dim
    attn_compressor_gate d overlap*k_dim
    attn_compressor_ape overlap*k_dim ratio
    attn_compressor_norm k_dim
""")
FINE_INDEXER = rows("""
    indexer.proj d index_heads
    indexer.attn_q_b q_rank index_heads*index_dim
    indexer_compressor_kv d 2*index_dim
    indexer_compressor_gate d 2*index_dim
    indexer_compressor_ape 2*index_dim ratio
    indexer_compressor_norm index_dim
""")
HASHED_ROUTING = rows("ffn_gate_tid2eid used vocab")


def latent_attention(keys: Keys) -> Rows:
    """A layer's attention, its query compressed where the model does so."""
    query = COMPRESSED_QUERY if keys.integer("attention.q_lora_rank") else QUERY
    return t.ATTENTION_NORM + query + LATENT


def latent_sizes(keys: Keys, layer: int) -> Sizes:
    """The standard sizes and those of latent attention and its indexer."""
    sizes = keys.sizes(layer)
    k_mla = keys.integer("attention.key_length_mla", default=sizes["k_dim"])
    return sizes | {
        "k_mla": k_mla,
        "v_mla": keys.integer("attention.value_length_mla", default=sizes["v_dim"]),
        "nope": k_mla - sizes["rot"],
        "q_rank": keys.integer("attention.q_lora_rank"),
        "kv_rank": keys.integer("attention.kv_lora_rank"),
        "index_heads": keys.integer("attention.indexer.head_count"),
        "index_dim": keys.integer("attention.indexer.key_length"),
    }


def stream_sizes(keys: Keys, mix_per_stream: int, mix_scales: int) -> Sizes:
    """Sizes of parallel streams and of the matrices that mix them."""
    streams = keys.integer("hyper_connection.count")
    return {"streams": streams, "mix": mix_per_stream * streams, "mix_scales": mix_scales}


def _deepseek2(keys: Keys, index: int) -> Rows:
    experts = ROUTED_BY_BIAS if "expert_bias" in keys.traits else ROUTED
    return dense_first(latent_attention(keys) + t.FFN_NORM, experts)(keys, index)


def _indexed(keys: Keys, index: int) -> Rows:
    every = latent_attention(keys) + INDEXER + t.FFN_NORM
    return dense_first(every, ROUTED_BY_BIAS)(keys, index)


def _hy_v4(keys: Keys, index: int) -> Rows:
    has_indexer = keys.integer("attention.indexer.types", index)
    every = latent_attention(keys) + t.SINKS + GATE + STREAM_MIX + t.FFN_NORM
    every += INDEXER if has_indexer else ()
    return dense_first(every, ROUTED_BY_BIAS)(keys, index)


def _hy_sizes(keys: Keys, layer: int) -> Sizes:
    return latent_sizes(keys, layer) | stream_sizes(keys, 2, 2)


def _deepseek4(keys: Keys, index: int) -> Rows:
    ratio = keys.integer("attention.compress_ratios", index)
    compressor = COMPRESSOR if ratio else ()
    indexer = FINE_INDEXER if ratio == FINE_RATIO else ()
    is_hashed = index < keys.integer("hash_layer_count")
    routing = HASHED_ROUTING if is_hashed else t.EXPERT_BIAS
    head = next_token_head(keys, index)
    return DEEPSEEK4_ATTENTION + compressor + indexer + ROUTED + routing + head


def _deepseek4_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = latent_sizes(keys, layer)
    groups = keys.integer("attention.output_group_count")
    ratio = keys.integer("attention.compress_ratios", layer)
    streams = stream_sizes(keys, 2 + keys.integer("hyper_connection.count"), 3)
    return (
        sizes
        | streams
        | {
            "o_rank": keys.integer("attention.output_lora_rank"),
            "groups": groups,
            "group_width": sizes["q"] // max(1, groups),
            "ratio": ratio,
            "overlap": 2 if ratio == FINE_RATIO else 1,
            "used": keys.integer("expert_used_count"),
        }
    )


LATENT_LAYOUTS = {
    "deepseek2": Layout(_deepseek2, sizes=latent_sizes),
    "mistral4": Layout(_deepseek2, sizes=latent_sizes),
    "deepseek32": Layout(_indexed, sizes=latent_sizes),
    "glm-dsa": Layout(_indexed, sizes=latent_sizes),
    "minicpm3": uniform(
        t.ATTENTION_NORM, COMPRESSED_QUERY, JOINT_LATENT, t.FFN_NORM, t.GATED_FFN,
        sizes=latent_sizes,
    ),
    "hy_v4": Layout(_hy_v4, extra=STREAM_HEAD, sizes=_hy_sizes),
    "minimax-m3": Layout(dense_first(NORMED, ROUTED_BY_BIAS + BLOCK_INDEXER), sizes=latent_sizes),
    "deepseek4": Layout(_deepseek4, extra=STREAM_HEAD, sizes=_deepseek4_sizes),
}  # fmt: skip
