"""Transformers whose feed-forward layers are mixtures of experts."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, same_in_every_layer
from engine.model.layouts.rows import rows

GPT_OSS_BIASES = rows("""
    ffn_gate_inp.bias experts
    ffn_gate_exps.bias expert_ff experts
    ffn_up_exps.bias expert_ff experts
    ffn_down_exps.bias d experts
    attn_sinks heads
""")

EXPERTS = {
    "qwen3moe": Family(same_in_every_layer(b.ATTENTION, b.QK_NORM, b.FFN_NORM, b.EXPERTS)),
    "gpt-oss": Family(
        same_in_every_layer(
            b.ATTENTION, b.QKV_BIAS, b.OUTPUT_BIAS, b.POST_ATTENTION_NORM, b.EXPERTS, GPT_OSS_BIASES
        )
    ),
}
