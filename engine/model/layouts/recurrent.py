"""State-space and convolution models, and their hybrids with attention."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, Sizes, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.latent import ATTENTION_NORM
from engine.model.layouts.rows import Rows, rows

MAMBA = rows("""
    ssm_in d 2*inner
    ssm_conv1d conv inner
    ssm_conv1d.bias inner
    ssm_x inner dt+2*state
    ssm_dt dt inner
    ssm_dt.bias inner
    ssm_a. state inner
    ssm_d. inner
    ssm_out inner d
""")
JAMBA_NORMS = rows("""
    ssm_dt_norm dt
    ssm_b_norm state
    ssm_c_norm state
""")
MAMBA2 = rows("""
    ssm_in d 2*inner+2*groups*state+dt
    ssm_conv1d conv inner+2*groups*state
    ssm_conv1d.bias inner+2*groups*state
    ssm_dt.bias dt
    ssm_a. 1 dt
    ssm_d. 1 dt
    ssm_out inner d
""")
MAMBA2_NORM = rows("ssm_norm group_inner groups")
PLAMO2_MIXER = rows("""
    ssm_in d 2*inner
    ssm_conv1d conv inner
    ssm_x inner dt_dim+2*state
    ssm_dt dt_dim dt
    ssm_dt.bias dt
    ssm_a. dt
    ssm_d. dt
    ssm_out inner d
    ssm_dt_norm. dt_dim
    ssm_b_norm. state
    ssm_c_norm. state
""")
PLAMO2_ATTENTION = rows("""
    attn_qkv d q+k+v
    attn_q_norm k_dim heads
    attn_k_norm k_dim kv_heads
    attn_output o d
""")
PLAMO2_REST = rows("""
    attn_norm d
    post_attention_norm. d
    ffn_norm d
    ffn_up d 2*ff
    ffn_down ff d
    post_ffw_norm. d
""")
SHORT_CONVOLUTION = rows("""
    shortconv.conv conv d
    shortconv.in_proj d 3*d
    shortconv.out_proj d d
""")
NEMOTRON_EXPERTS = rows("""
    ffn_gate_inp d experts
    exp_probs_b.bias experts
    ffn_up_exps d expert_ff experts
    ffn_down_exps expert_ff d experts
    ffn_up_shexp d shared_ff
    ffn_down_shexp shared_ff d
""")
FALCON_FFN_NORM = rows("ffn_norm. d")


def _has_attention(keys: Keys, index: int) -> bool:
    return keys.integer("attention.head_count_kv", index) > 0


def _sizes(keys: Keys, layer: int) -> Sizes:
    inner = keys.integer("ssm.inner_size")
    groups = keys.integer("ssm.group_count")
    sizes = keys.sizes(layer)
    return sizes | {
        "conv": keys.integer("ssm.conv_kernel", default=keys.integer("shortconv.l_cache")),
        "inner": inner,
        "state": keys.integer("ssm.state_size"),
        "dt": keys.integer("ssm.time_step_rank"),
        "groups": groups,
        "group_inner": inner // max(1, groups),
        "dt_dim": max(64, sizes["d"] // 16),
    }


def _jamba(keys: Keys, index: int) -> Rows:
    mixer = b.ATTENTION_BARE if _has_attention(keys, index) else MAMBA + JAMBA_NORMS
    step = keys.integer("interleave_moe_layer_step", default=2)
    has_experts = keys.integer("expert_count") and index % step == step - 1
    return ATTENTION_NORM + mixer + b.FFN_NORM + (b.EXPERTS if has_experts else b.GATED_FFN)


def _granite_hybrid(keys: Keys, index: int) -> Rows:
    mixer = b.ATTENTION_BARE if _has_attention(keys, index) else MAMBA2 + MAMBA2_NORM
    ffn = b.EXPERTS + b.SHARED_EXPERTS if keys.integer("expert_count") else b.GATED_FFN
    return ATTENTION_NORM + mixer + b.FFN_NORM + ffn


def _nemotron_h(keys: Keys, index: int) -> Rows:
    """Give a layer that is only one of state space, attention and feed-forward."""
    if keys.integer("feed_forward_length", index):
        has_experts = keys.integer("expert_count")
        return ATTENTION_NORM + (NEMOTRON_EXPERTS if has_experts else b.PLAIN_FFN)
    return ATTENTION_NORM + (
        b.ATTENTION_BARE if _has_attention(keys, index) else MAMBA2 + MAMBA2_NORM
    )


def _plamo2(keys: Keys, index: int) -> Rows:
    return PLAMO2_REST + (PLAMO2_ATTENTION if _has_attention(keys, index) else PLAMO2_MIXER)


def _falcon_h1(keys: Keys, _index: int) -> Rows:
    norm = MAMBA2_NORM if "ssm_norm" in keys.traits else ()
    return MAMBA2 + norm + b.ATTENTION + FALCON_FFN_NORM + b.GATED_FFN


def _lfm2(keys: Keys, index: int) -> Rows:
    has_attention = _has_attention(keys, index)
    mixer = b.ATTENTION_BARE + b.QK_NORM if has_attention else SHORT_CONVOLUTION
    is_dense = index < keys.integer("leading_dense_block_count", default=keys.n_layers)
    ffn = b.GATED_FFN if is_dense else b.EXPERTS + b.EXPERT_BIAS
    return ATTENTION_NORM + mixer + b.FFN_NORM + ffn


LFM2_NORM = rows("token_embd_norm d")

RECURRENT = {
    "mamba": Family(same_in_every_layer(ATTENTION_NORM, MAMBA), sizes=_sizes),
    "mamba2": Family(same_in_every_layer(ATTENTION_NORM, MAMBA2, MAMBA2_NORM), sizes=_sizes),
    "jamba": Family(_jamba, sizes=_sizes),
    "granitehybrid": Family(_granite_hybrid, sizes=_sizes),
    "nemotron_h": Family(_nemotron_h, sizes=_sizes),
    "nemotron_h_moe": Family(_nemotron_h, sizes=_sizes),
    "plamo2": Family(_plamo2, sizes=_sizes),
    "falcon-h1": Family(_falcon_h1, sizes=_sizes),
    "lfm2": Family(_lfm2, extra=LFM2_NORM, sizes=_sizes, has_output_norm=False),
    "lfm2moe": Family(_lfm2, extra=LFM2_NORM, sizes=_sizes, has_output_norm=False),
}
