"""Sparse attention by an indexer beside parallel streams: GLM 5.3, HY 4, MiniMax M3."""

from engine.model.layouts import blocks as b
from engine.model.layouts.delta_net import kimi_sizes
from engine.model.layouts.experts import NORMED, ROUTED, dense_first
from engine.model.layouts.family import Family, Sizes
from engine.model.layouts.keys import Keys
from engine.model.layouts.latent import ATTENTION_NORM, INDEXER, latent_attention
from engine.model.layouts.rows import Rows, rows

GLM_DELTA = rows("""
    ssm_conv1d_q conv 1 heads*kda_dim
    ssm_conv1d_k conv 1 heads*kda_dim
    ssm_conv1d_v conv 1 heads*kda_dim
    attn_q d heads*kda_dim
    attn_k d heads*kda_dim
    attn_v d heads*kda_dim
    ssm_f_a d kda_dim
    ssm_f_b kda_dim heads*kda_dim
    ssm_beta d heads
    ssm_a. heads
    ssm_dt.bias heads*kda_dim
    ssm_g_a d kda_dim
    ssm_g_b kda_dim heads*kda_dim
    ssm_norm kda_dim
    attn_output heads*kda_dim d
""")
POOLED_KEYS = rows("""
    indexer_compressor_gate d index_dim
    indexer_compressor_ape index_dim kpool
""")
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
GATE = rows("attn_gate d heads*v_mla")
BLOCK_INDEXER = rows("""
    indexer.q_proj d index_heads*index_dim
    indexer.k_proj d index_dim
    indexer.q_norm index_dim
    indexer.k_norm index_dim
""")


def _glm5_next(keys: Keys, index: int) -> Rows:
    is_trunk = index < keys.n_trunk_layers
    has_attention = keys.integer("attention.head_count_kv", index)
    latent = latent_attention(keys) + INDEXER + POOLED_KEYS
    mixer = latent if has_attention else ATTENTION_NORM + GLM_DELTA
    every = mixer + b.FFN_NORM + (STREAM_MIX if is_trunk else ())
    return dense_first(every, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)(keys, index)


def _hy_v4(keys: Keys, index: int) -> Rows:
    has_indexer = keys.integer("attention.indexer.types", index)
    every = latent_attention(keys) + b.SINKS + GATE + STREAM_MIX + b.FFN_NORM
    every += INDEXER if has_indexer else ()
    return dense_first(every, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)(keys, index)


def _stream_sizes(keys: Keys, layer: int, mix_per_stream: int, mix_scales: int) -> Sizes:
    streams = keys.integer("hyper_connection.count")
    return kimi_sizes(keys, layer) | {
        "streams": streams,
        "mix": mix_per_stream * streams,
        "mix_scales": mix_scales,
        "kpool": keys.integer("attention.indexer.kpool"),
    }


def _glm_sizes(keys: Keys, layer: int) -> Sizes:
    return _stream_sizes(keys, layer, 2 + keys.integer("hyper_connection.count"), 3)


def _hy_sizes(keys: Keys, layer: int) -> Sizes:
    return _stream_sizes(keys, layer, 2, 2)


SPARSE = {
    "glm5-next": Family(_glm5_next, sizes=_glm_sizes),
    "hy_v4": Family(_hy_v4, extra=STREAM_HEAD, sizes=_hy_sizes),
    "minimax-m3": Family(
        dense_first(NORMED, b.GATED_FFN, ROUTED + b.EXPERT_BIAS + BLOCK_INDEXER), sizes=kimi_sizes
    ),
}
