"""Qwen 3.8 Flash Next: delta networks, an indexer, parallel streams and a table of word groups."""

from engine.model.layouts import blocks as b
from engine.model.layouts.delta_net import (
    DELTA_NET,
    GATED_ATTENTION,
    SHARED_EXPERT,
    SPLIT_GATES,
    delta_sizes,
    is_recurrent,
)
from engine.model.layouts.family import Family, Sizes
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows
from engine.model.layouts.sparse import BLOCK_INDEXER

STREAMS = rows("""
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
OUTSIDE = rows("""
    per_layer_token_embd per_layer group_rows
    output_hc_norm streams*d
    output_hc_down streams*d stream_rank
    output_hc_up stream_rank streams*d
""")


def _layer(keys: Keys, index: int) -> Rows:
    mixer = DELTA_NET + SPLIT_GATES if is_recurrent(keys, index) else GATED_ATTENTION
    indexer = () if is_recurrent(keys, index) else BLOCK_INDEXER
    groups = GROUP_LAYER if index == keys.integer("ple.layers") else ()
    return STREAMS + mixer + indexer + groups + b.EXPERTS + SHARED_EXPERT


def _sizes(keys: Keys, layer: int) -> Sizes:
    n_heads = (keys.integer("ple.ngram_size") - 1) * keys.integer("ple.heads_per_ngram")
    group_rows = keys.integer("ple.head_offsets", n_heads - 1)
    return delta_sizes(keys, layer) | {
        "streams": keys.integer("hyper_connection.count"),
        "stream_rank": keys.integer("hyper_connection.low_rank"),
        "index_heads": keys.integer("attention.indexer.head_count"),
        "index_dim": keys.integer("attention.indexer.key_length"),
        "per_layer": keys.integer("embedding_length_per_layer_input"),
        "group_rows": group_rows + keys.integer("ple.head_vocab_sizes", n_heads - 1),
        "group_conv": keys.integer("ple.conv_kernel"),
    }


QWEN4EXP = {"qwen4exp": Family(_layer, extra=OUTSIDE, sizes=_sizes, has_output_norm=False)}
