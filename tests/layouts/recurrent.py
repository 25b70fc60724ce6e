"""State-space and convolution models, their hybrids with attention, and RWKV."""

import tests.layouts.tables as t
from tests.layouts.tables import Keys, Layout, Rows, Sizes, rows, uniform

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
LFM2_NORM = rows("token_embd_norm d")

RWKV_NORMS = rows("""
    attn_norm d
    attn_norm.bias d
    attn_norm_2 d
    attn_norm_2.bias d
    time_mix_ln d
    time_mix_ln.bias d
    time_mix_key d d
    time_mix_value d d
    time_mix_receptance d d
    time_mix_output d d
    channel_mix_lerp_k d 1 1
    channel_mix_key d ff
    channel_mix_value ff d
""")
RWKV6 = rows("""
    time_mix_w1 d 5*mix_rank
    time_mix_w2 mix_rank d 5
    time_mix_lerp_x d 1 1
    time_mix_lerp_fused d 1 1 5
    time_mix_first head_size head_count
    time_mix_decay d
    time_mix_decay_w1 d decay_rank
    time_mix_decay_w2 decay_rank d
    time_mix_gate d d
    channel_mix_lerp_r d 1 1
    channel_mix_receptance d d
""")
RWKV7 = rows("""
    time_mix_w0 d
    time_mix_w1 d decay_rank
    time_mix_w2 decay_rank d
    time_mix_a0 d
    time_mix_a1 d iclr_rank
    time_mix_a2 iclr_rank d
    time_mix_g1 d gate_rank
    time_mix_g2 gate_rank d
    time_mix_lerp_fused d 1 1 6
    time_mix_k_k d
    time_mix_k_a d
    time_mix_r_k d
    time_mix_v0 d
""")
FIRST_VALUE_MIX = rows("""
    time_mix_v1 d iclr_rank
    time_mix_v2 iclr_rank d
""")
VALUE_MIX = rows("""
    time_mix_v1 d value_rank
    time_mix_v2 value_rank d
""")
RWKV_OUTSIDE = t.OUTPUT_NORM_BIAS + rows("""
    token_embd_norm d
    token_embd_norm.bias d
""")
QWEN_RWKV6 = rows("""
    attn_norm d
    time_mix_w1 d 5*mix_rank
    time_mix_w2 mix_rank d 5
    time_mix_lerp_x d 1 1
    time_mix_lerp_fused d 1 1 5
    time_mix_decay d
    time_mix_decay_w1 d decay_rank
    time_mix_decay_w2 decay_rank d
    time_mix_key d kv_heads*head_size
    time_mix_key.bias kv_heads*head_size
    time_mix_value d kv_heads*head_size
    time_mix_value.bias kv_heads*head_size
    time_mix_receptance d d
    time_mix_receptance.bias d
    time_mix_gate d d
    time_mix_output d d
    ffn_norm d
""")
QWEN_RWKV7 = rows("""
    attn_norm d
    time_mix_w0 d
    time_mix_w1 d decay_rank
    time_mix_w2 decay_rank d
    time_mix_a0 d
    time_mix_a1 d iclr_rank
    time_mix_a2 iclr_rank d
    time_mix_v0 d
    time_mix_lerp_fused d 1 1 5
    time_mix_k_k d
    time_mix_k_a d
    time_mix_r_k d
    time_mix_key d d
    time_mix_value d d
    time_mix_receptance d d
    time_mix_output d d
    ffn_norm d
""")


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
    mixer = t.ATTENTION_BARE if _has_attention(keys, index) else MAMBA + JAMBA_NORMS
    step = keys.integer("interleave_moe_layer_step", default=2)
    has_experts = keys.integer("expert_count") and index % step == step - 1
    return t.ATTENTION_NORM + mixer + t.FFN_NORM + (t.EXPERTS if has_experts else t.GATED_FFN)


def _granite_hybrid(keys: Keys, index: int) -> Rows:
    mixer = t.ATTENTION_BARE if _has_attention(keys, index) else MAMBA2 + MAMBA2_NORM
    ffn = t.EXPERTS + t.SHARED_EXPERTS if keys.integer("expert_count") else t.GATED_FFN
    return t.ATTENTION_NORM + mixer + t.FFN_NORM + ffn


def _nemotron_h(keys: Keys, index: int) -> Rows:
    """A layer that is only one of state space, attention and feed-forward."""
    if keys.integer("feed_forward_length", index):
        has_experts = keys.integer("expert_count")
        return t.ATTENTION_NORM + (NEMOTRON_EXPERTS if has_experts else t.PLAIN_FFN)
    return t.ATTENTION_NORM + (
        t.ATTENTION_BARE if _has_attention(keys, index) else MAMBA2 + MAMBA2_NORM
    )


def _plamo2(keys: Keys, index: int) -> Rows:
    return PLAMO2_REST + (PLAMO2_ATTENTION if _has_attention(keys, index) else PLAMO2_MIXER)


def _falcon_h1(keys: Keys, _index: int) -> Rows:
    norm = MAMBA2_NORM if "ssm_norm" in keys.traits else ()
    return MAMBA2 + norm + t.ATTENTION + FALCON_FFN_NORM + t.GATED_FFN


def _lfm2(keys: Keys, index: int) -> Rows:
    has_attention = _has_attention(keys, index)
    mixer = t.ATTENTION_BARE + t.QK_NORM if has_attention else SHORT_CONVOLUTION
    is_dense = index < keys.integer("leading_dense_block_count", default=keys.n_layers)
    ffn = t.GATED_FFN if is_dense else t.EXPERTS + t.EXPERT_BIAS
    return t.ATTENTION_NORM + mixer + t.FFN_NORM + ffn


def _rwkv7(_keys: Keys, index: int) -> Rows:
    return RWKV_NORMS + RWKV7 + (VALUE_MIX if index else FIRST_VALUE_MIX)


def _rwkv6_sizes(keys: Keys, layer: int) -> Sizes:
    head_size = keys.integer("wkv.head_size")
    return keys.sizes(layer) | {
        "mix_rank": keys.integer("time_mix_extra_dim"),
        "decay_rank": keys.integer("time_decay_extra_dim"),
        "head_size": head_size,
        "head_count": keys.integer("embedding_length") // head_size,
    }


def _rwkv7_sizes(keys: Keys, layer: int) -> Sizes:
    return keys.sizes(layer) | {
        "decay_rank": keys.integer("attention.decay_lora_rank"),
        "iclr_rank": keys.integer("attention.iclr_lora_rank"),
        "value_rank": keys.integer("attention.value_residual_mix_lora_rank"),
        "gate_rank": keys.integer("attention.gate_lora_rank"),
    }


def _arwkv7(_keys: Keys, index: int) -> Rows:
    return QWEN_RWKV7 + (VALUE_MIX if index else FIRST_VALUE_MIX) + t.GATED_FFN


RECURRENT = {
    "mamba": uniform(t.ATTENTION_NORM, MAMBA, sizes=_sizes),
    "mamba2": uniform(t.ATTENTION_NORM, MAMBA2, MAMBA2_NORM, sizes=_sizes),
    "jamba": Layout(_jamba, sizes=_sizes),
    "granitehybrid": Layout(_granite_hybrid, sizes=_sizes),
    "nemotron_h": Layout(_nemotron_h, sizes=_sizes),
    "nemotron_h_moe": Layout(_nemotron_h, sizes=_sizes),
    "plamo2": Layout(_plamo2, sizes=_sizes),
    "falcon-h1": Layout(_falcon_h1, sizes=_sizes),
    "lfm2": Layout(_lfm2, extra=LFM2_NORM, sizes=_sizes, has_output_norm=False),
    "lfm2moe": Layout(_lfm2, extra=LFM2_NORM, sizes=_sizes, has_output_norm=False),
    "rwkv6": uniform(RWKV_NORMS, RWKV6, extra=RWKV_OUTSIDE, sizes=_rwkv6_sizes),
    "rwkv6qwen2": uniform(QWEN_RWKV6, t.GATED_FFN, sizes=_rwkv6_sizes),
    "arwkv7": Layout(_arwkv7, sizes=_rwkv7_sizes),
    "rwkv7": Layout(_rwkv7, extra=RWKV_OUTSIDE, sizes=_rwkv7_sizes),
}
