"""Hybrids of attention and linear attention: Qwen 3 Next and later, Kimi Linear, MiniMax 01."""

from engine.model.layouts import blocks as b
from engine.model.layouts.experts import ROUTED, dense_first, next_token_head
from engine.model.layouts.family import Family, Sizes
from engine.model.layouts.keys import Keys
from engine.model.layouts.latent import ATTENTION_NORM, latent_attention, latent_sizes
from engine.model.layouts.rows import Rows, rows

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
SHARED_EXPERT = b.SHARED_EXPERTS + b.SHARED_GATE
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


def is_recurrent(keys: Keys, index: int) -> bool:
    """Tell whether a layer has no attention; those of a next-token head have."""
    interval = keys.integer("full_attention_interval", default=4)
    return index < keys.n_trunk_layers and (index + 1) % interval != 0


def _layer(keys: Keys, index: int, gates: Rows, ffn: Rows) -> Rows:
    mixer = DELTA_NET + gates if is_recurrent(keys, index) else GATED_ATTENTION
    norms = ATTENTION_NORM + b.POST_ATTENTION_NORM
    return norms + mixer + ffn + next_token_head(keys, index)


def _qwen3next(keys: Keys, index: int) -> Rows:
    return _layer(keys, index, JOINT_GATES, b.EXPERTS + SHARED_EXPERT)


def _qwen35(keys: Keys, index: int) -> Rows:
    return _layer(keys, index, SPLIT_GATES, b.GATED_FFN)


def _qwen35moe(keys: Keys, index: int) -> Rows:
    return _layer(keys, index, SPLIT_GATES, b.EXPERTS + SHARED_EXPERT)


def delta_sizes(keys: Keys, layer: int) -> Sizes:
    """Give the standard sizes and those of gated delta networks."""
    dim = keys.integer("ssm.state_size")
    values = dim * keys.integer("ssm.time_step_rank")
    return keys.sizes(layer) | {
        "conv": keys.integer("ssm.conv_kernel"),
        "delta_dim": dim,
        "delta_values": values,
        "delta_conv": values + 2 * dim * keys.integer("ssm.group_count"),
        "value_heads": keys.integer("ssm.time_step_rank"),
    }


def _kimi_linear(keys: Keys, index: int) -> Rows:
    has_attention = keys.integer("attention.head_count_kv", index)
    mixer = latent_attention(keys) if has_attention else ATTENTION_NORM + KIMI_DELTA
    return dense_first(mixer + b.FFN_NORM, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)(keys, index)


def kimi_sizes(keys: Keys, layer: int) -> Sizes:
    """Give the sizes of latent attention, and those of Kimi's delta attention."""
    return latent_sizes(keys, layer) | {
        "conv": keys.integer("ssm.conv_kernel"),
        "kda_dim": keys.integer("kda.head_dim"),
    }


LIGHTNING = rows("""
    attn_norm_2 q
    attn_qkv d 3*q
    attn_gate d q
    attn_output q d
""")


def _minimax01(keys: Keys, index: int) -> Rows:
    interval = keys.integer("full_attention_interval", default=8)
    mixer = LIGHTNING if (index + 1) % interval else b.ATTENTION_BARE
    return ATTENTION_NORM + mixer + b.FFN_NORM + b.EXPERTS


BAILING3_DELTA = rows("""
    ssm_conv1d_q conv 1 heads*kda_dim 1
    ssm_conv1d_k conv 1 heads*kda_dim 1
    ssm_conv1d_v conv 1 heads*kda_dim 1
    attn_q d heads*kda_dim
    attn_k d heads*kda_dim
    attn_v d heads*kda_dim
    ssm_f_a d heads*kda_dim
    ssm_beta d heads
    ssm_a. 1 heads
    ssm_dt.bias heads*kda_dim
    ssm_g_a d heads*kda_dim
    ssm_norm kda_dim
    attn_output heads*kda_dim d
""")
BAILING3_HEAD = b.NEXT_TOKEN[:3] + rows("layer_output_norm d")


def _bailingmoe3(keys: Keys, index: int) -> Rows:
    has_attention = keys.integer("attention.head_count_kv", index)
    delta = ATTENTION_NORM + BAILING3_DELTA
    mixer = latent_attention(keys) + b.HEAD_GATE if has_attention else delta
    is_dense = index < keys.integer("leading_dense_block_count")
    head = BAILING3_HEAD if index >= keys.n_trunk_layers else ()
    ffn = b.GATED_FFN if is_dense else ROUTED + b.EXPERT_BIAS
    return mixer + b.FFN_NORM + ffn + head


DELTA_FAMILIES = {
    "qwen3next": Family(_qwen3next, sizes=delta_sizes),
    "qwen35": Family(_qwen35, sizes=delta_sizes),
    "qwen35moe": Family(_qwen35moe, sizes=delta_sizes),
    "kimi-linear": Family(_kimi_linear, sizes=kimi_sizes),
    "bailingmoe3": Family(_bailingmoe3, sizes=kimi_sizes),
    "minimax-01": Family(_minimax01),
}
