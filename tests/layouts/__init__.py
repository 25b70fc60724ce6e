"""Which tensors a made-up model of an architecture has, and of which shape.

The rules follow `load_arch_tensors` of llama.cpp 0c1e57098 (`src/models/*.cpp`), which refuses a
file whose tensors differ in name or shape.
"""

from collections.abc import Callable

import tests.layouts.tables as t
from tests.layouts.tables import Keys, Layout, Rows, Sizes, rows, uniform

GATED = t.ATTENTION + t.FFN_NORM + t.GATED_FFN
NORM_BIASES = t.NORM_BIAS + t.FFN_NORM_BIAS
ATTENTION_BIASES = t.QKV_BIAS + t.OUTPUT_BIAS
BIASED = t.ATTENTION + ATTENTION_BIASES + t.FFN_NORM + NORM_BIASES + t.PLAIN_FFN + t.FFN_BIAS
GEMMA2 = t.ATTENTION + t.POST_ATTENTION_NORM + t.FFN_NORM + t.GATED_FFN + t.POST_FFN_NORM
GEMMA3 = GEMMA2 + t.QK_NORM
PER_LAYER_INPUT = rows("""
    inp_gate d per_layer
    proj per_layer d
    post_norm d
""")
PER_LAYER_EMBEDDING = rows("""
    per_layer_token_embd per_layer*layers vocab
    per_layer_model_proj d per_layer*layers
    per_layer_proj_norm per_layer
""")
ALTERNATING_UPDATES = rows("""
    altup_correct_coef 4 4
    altup_correct_scale d
    altup_predict_coef 4 16
    altup_router d 4
    altup_router_norm d
    laurel_l d 64
    laurel_r 64 d
    laurel_post_norm d
""")
"""llama.cpp fixes 4 parallel streams and a rank of 64 (`llama-hparams.h`)."""
ALTERNATING_PROJECTIONS = rows("""
    altup_proj d d 3
    altup_unembd_proj d d 3
""")
GPT_OSS_BIASES = rows("""
    ffn_gate_inp.bias experts
    ffn_gate_exps.bias expert_ff experts
    ffn_up_exps.bias expert_ff experts
    ffn_down_exps.bias d experts
""")
ROUTED = t.EXPERTS + t.SHARED_EXPERTS
ROUTED_BY_BIAS = ROUTED + t.EXPERT_BIAS
NORMED = t.ATTENTION + t.QK_NORM + t.FFN_NORM
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
SHORT_CONVOLUTION = rows("""
    shortconv.conv conv d
    shortconv.in_proj d 3*d
    shortconv.out_proj d d
""")
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


def _llama(keys: Keys, _index: int) -> Rows:
    """A Llama layer: with experts (Mixtral), or with biases where the model has them."""
    bias = t.QKV_BIAS if "qkv_bias" in keys.traits else ()
    if not keys.integer("expert_count"):
        return GATED + bias
    shared = t.SHARED_EXPERTS if keys.integer("expert_shared_feed_forward_length") else ()
    return t.ATTENTION + bias + t.FFN_NORM + t.EXPERTS + shared


def _per_layer_sizes(keys: Keys, layer: int) -> Sizes:
    return keys.sizes(layer) | {
        "per_layer": keys.integer("embedding_length_per_layer_input"),
        "layers": keys.n_layers,
    }


def dense_first(every: Rows, experts: Rows) -> Callable[[Keys, int], Rows]:
    """The rule of a model whose first layers are dense; next-token heads come last."""

    def layer(keys: Keys, index: int) -> Rows:
        is_dense = index < keys.integer("leading_dense_block_count")
        return every + (t.GATED_FFN if is_dense else experts) + next_token_head(keys, index)

    return layer


def next_token_head(keys: Keys, index: int) -> Rows:
    """What a layer behind the trunk has besides; some bring their own vocabulary."""
    if index < keys.n_trunk_layers:
        return ()
    has_own = "next_token_vocabulary" in keys.traits
    return t.NEXT_TOKEN + (t.NEXT_TOKEN_VOCABULARY if has_own else ())


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


def latent_attention(keys: Keys) -> Rows:
    """A layer's attention, its query compressed where the model does so."""
    query = COMPRESSED_QUERY if keys.integer("attention.q_lora_rank") else QUERY
    return t.ATTENTION_NORM + query + LATENT


def _deepseek2(keys: Keys, index: int) -> Rows:
    experts = ROUTED_BY_BIAS if "expert_bias" in keys.traits else ROUTED
    return dense_first(latent_attention(keys) + t.FFN_NORM, experts)(keys, index)


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


def _lfm2(keys: Keys, index: int) -> Rows:
    has_attention = _has_attention(keys, index)
    mixer = t.ATTENTION_BARE + t.QK_NORM if has_attention else SHORT_CONVOLUTION
    is_dense = index < keys.integer("leading_dense_block_count", default=keys.n_layers)
    ffn = t.GATED_FFN if is_dense else t.EXPERTS + t.EXPERT_BIAS
    return t.ATTENTION_NORM + mixer + t.FFN_NORM + ffn


def _rwkv7(_keys: Keys, index: int) -> Rows:
    return RWKV_NORMS + RWKV7 + (VALUE_MIX if index else FIRST_VALUE_MIX)


def _rwkv7_sizes(keys: Keys, layer: int) -> Sizes:
    return keys.sizes(layer) | {
        "decay_rank": keys.integer("attention.decay_lora_rank"),
        "iclr_rank": keys.integer("attention.iclr_lora_rank"),
        "value_rank": keys.integer("attention.value_residual_mix_lora_rank"),
        "gate_rank": keys.integer("attention.gate_lora_rank"),
    }


QWEN2 = uniform(GATED, t.QKV_BIAS)
QWEN3 = uniform(GATED, t.QK_NORM)
LAYOUTS = {
    "llama": Layout(_llama),
    "qwen2": QWEN2,
    "qwen2vl": QWEN2,
    "qwen3": QWEN3,
    "qwen3vl": QWEN3,
    "codeshell": uniform(BIASED, extra=t.OUTPUT_NORM_BIAS),
    "gemma3": uniform(GEMMA3),
    "gemma3n": uniform(
        GEMMA3, PER_LAYER_INPUT, ALTERNATING_UPDATES,
        extra=PER_LAYER_EMBEDDING + ALTERNATING_PROJECTIONS, sizes=_per_layer_sizes,
    ),
    "qwen3moe": uniform(NORMED, t.EXPERTS),
    "gpt-oss": uniform(
        t.ATTENTION, t.QKV_BIAS, t.OUTPUT_BIAS, t.POST_ATTENTION_NORM, t.EXPERTS, GPT_OSS_BIASES,
        t.SINKS,
    ),
    "deepseek2": Layout(_deepseek2, sizes=latent_sizes),
    "qwen3next": Layout(_qwen_layer(JOINT_GATES, t.EXPERTS + SHARED_EXPERT), sizes=_qwen_sizes),
    "qwen35": Layout(_qwen_layer(SPLIT_GATES, t.GATED_FFN), sizes=_qwen_sizes),
    "mamba": uniform(t.ATTENTION_NORM, MAMBA, sizes=_sizes),
    "jamba": Layout(_jamba, sizes=_sizes),
    "lfm2": Layout(_lfm2, extra=LFM2_NORM, sizes=_sizes, has_output_norm=False),
    "rwkv7": Layout(_rwkv7, extra=RWKV_OUTSIDE, sizes=_rwkv7_sizes),
}  # fmt: skip
