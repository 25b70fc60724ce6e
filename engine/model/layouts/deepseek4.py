"""DeepSeek V4: compressed attention in a window, and parallel streams between the layers."""

from engine.model.layouts import blocks as b
from engine.model.layouts.experts import ROUTED, next_token_head
from engine.model.layouts.family import Family, Sizes
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows

ATTENTION = rows("""
    attn_norm d
    attn_sinks heads
    attn_q_a d q_rank
    attn_q_a_norm q_rank
    attn_q_b q_rank q
    attn_kv d k_dim
    attn_kv_a_norm k_dim
    attn_output_a group_width o_rank groups
    attn_output_b groups*o_rank d
    hc_attn_fn streams*d mix
    hc_attn_base mix
    hc_attn_scale 3
    hc_ffn_fn streams*d mix
    hc_ffn_base mix
    hc_ffn_scale 3
    ffn_norm d
""")
COMPRESSOR = rows("""
    attn_compressor_kv d overlap*k_dim
    attn_compressor_gate d overlap*k_dim
    attn_compressor_ape overlap*k_dim ratio
    attn_compressor_norm k_dim
""")
INDEXER = rows("""
    indexer.proj d index_heads
    indexer.attn_q_b q_rank index_heads*index_dim
    indexer_compressor_kv d 2*index_dim
    indexer_compressor_gate d 2*index_dim
    indexer_compressor_ape 2*index_dim ratio
    indexer_compressor_norm index_dim
""")
HASHED_ROUTING = rows("ffn_gate_tid2eid used vocab")
STREAMS = rows("""
    output_hc_fn streams*d streams
    output_hc_base streams
    output_hc_scale 1
""")
FINE_RATIO = 4
"""Tokens that one row of the fine cache stands for; those layers have the indexer."""


def _layer(keys: Keys, index: int) -> Rows:
    ratio = keys.integer("attention.compress_ratios", index)
    compressor = COMPRESSOR if ratio else ()
    indexer = INDEXER if ratio == FINE_RATIO else ()
    is_hashed = index < keys.integer("hash_layer_count")
    routing = HASHED_ROUTING if is_hashed else b.EXPERT_BIAS
    head = next_token_head(keys, index)
    return ATTENTION + compressor + indexer + ROUTED + routing + head


def _sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    groups = keys.integer("attention.output_group_count")
    streams = keys.integer("hyper_connection.count")
    ratio = keys.integer("attention.compress_ratios", layer)
    return sizes | {
        "q_rank": keys.integer("attention.q_lora_rank"),
        "o_rank": keys.integer("attention.output_lora_rank"),
        "groups": groups,
        "group_width": sizes["q"] // max(1, groups),
        "streams": streams,
        "mix": (2 + streams) * streams,
        "ratio": ratio,
        "overlap": 2 if ratio == FINE_RATIO else 1,
        "index_heads": keys.integer("attention.indexer.head_count"),
        "index_dim": keys.integer("attention.indexer.key_length"),
        "used": keys.integer("expert_used_count"),
    }


DEEPSEEK4 = {"deepseek4": Family(_layer, extra=STREAMS, sizes=_sizes)}
