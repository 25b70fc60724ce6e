"""RWKV: linear attention that keeps a matrix of state instead of keys and values."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, Sizes, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows

NORMS = rows("""
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
OUTSIDE = b.OUTPUT_NORM_BIAS + rows("""
    token_embd_norm d
    token_embd_norm.bias d
""")


def _rwkv7(_keys: Keys, index: int) -> Rows:
    return NORMS + RWKV7 + (VALUE_MIX if index else FIRST_VALUE_MIX)


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


def _arwkv7(_keys: Keys, index: int) -> Rows:
    return QWEN_RWKV7 + (VALUE_MIX if index else FIRST_VALUE_MIX) + b.GATED_FFN


RWKV = {
    "rwkv6": Family(same_in_every_layer(NORMS, RWKV6), extra=OUTSIDE, sizes=_rwkv6_sizes),
    "rwkv6qwen2": Family(same_in_every_layer(QWEN_RWKV6, b.GATED_FFN), sizes=_rwkv6_sizes),
    "arwkv7": Family(_arwkv7, sizes=_rwkv7_sizes),
    "rwkv7": Family(_rwkv7, extra=OUTSIDE, sizes=_rwkv7_sizes),
}
