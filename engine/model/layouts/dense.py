"""Dense transformers: Llama and its many relatives."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, Sizes, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows

GATED = b.ATTENTION + b.FFN_NORM + b.GATED_FFN
NORMED_AFTER = b.ATTENTION_BARE + b.POST_ATTENTION_NORM + b.GATED_FFN + b.POST_FFN_NORM
NORM_BIASES = b.NORM_BIAS + b.FFN_NORM_BIAS
NORM_PER_HEAD = rows("""
    attn_q_norm k_dim heads
    attn_k_norm k_dim kv_heads
""")


def _llama(keys: Keys, _index: int) -> Rows:
    """Give a Llama layer: with experts (Mixtral), or with biases where the model has them."""
    bias = b.QKV_BIAS if "qkv_bias" in keys.traits else ()
    if not keys.integer("expert_count"):
        return GATED + bias
    shared = b.SHARED_EXPERTS if keys.integer("expert_shared_feed_forward_length") else ()
    return b.ATTENTION + bias + b.FFN_NORM + b.EXPERTS + shared


def _command_r(keys: Keys, _index: int) -> Rows:
    """Give a Command R layer; those of 64 layers or more (R+) normalise each head."""
    norms = NORM_PER_HEAD if keys.n_layers >= 64 else ()
    return b.ATTENTION + norms + b.GATED_FFN


def _gpt2_sizes(keys: Keys, layer: int) -> Sizes:
    return keys.sizes(layer) | {"positions": keys.integer("context_length")}


GPT_NEOX = same_in_every_layer(
    b.FUSED_ATTENTION, b.FUSED_QKV_BIAS, b.OUTPUT_BIAS, b.FFN_NORM, NORM_BIASES,
    b.PLAIN_FFN, b.FFN_BIAS,
)  # fmt: skip

DENSE = {
    "llama": Family(_llama),
    "mistral3": Family(_llama),
    "granite": Family(_llama),
    "granitemoe": Family(_llama),
    "smollm3": Family(_llama),
    "internlm2": Family(_llama),
    "ernie4_5": Family(_llama),
    "qwen2": Family(same_in_every_layer(GATED, b.QKV_BIAS)),
    "qwen3": Family(same_in_every_layer(GATED, b.QK_NORM)),
    "hunyuan-dense": Family(same_in_every_layer(GATED, b.QK_NORM)),
    "phi3": Family(same_in_every_layer(b.FUSED_ATTENTION, b.FFN_NORM, b.FUSED_GATED_FFN)),
    "glm4": Family(
        same_in_every_layer(
            b.ATTENTION, b.QKV_BIAS, b.POST_ATTENTION_NORM, b.FFN_NORM, b.FUSED_GATED_FFN,
            b.POST_FFN_NORM,
        )
    ),
    "seed_oss": Family(
        same_in_every_layer(b.ATTENTION, b.QKV_BIAS, b.POST_ATTENTION_NORM, b.GATED_FFN)
    ),
    "apertus": Family(same_in_every_layer(b.ATTENTION, b.QK_NORM, b.FFN_NORM, b.PLAIN_FFN)),
    "exaone4": Family(same_in_every_layer(NORMED_AFTER, b.QK_NORM)),
    "olmo2": Family(same_in_every_layer(NORMED_AFTER, b.QK_NORM_WIDE)),
    "command-r": Family(_command_r),
    "cohere2": Family(same_in_every_layer(b.ATTENTION, b.GATED_FFN)),
    "stablelm": Family(
        same_in_every_layer(GATED, NORM_BIASES, b.QKV_BIAS), extra=b.OUTPUT_NORM_BIAS
    ),
    "nemotron": Family(
        same_in_every_layer(b.ATTENTION, b.FFN_NORM, NORM_BIASES, b.PLAIN_FFN),
        extra=b.OUTPUT_NORM_BIAS,
    ),
    "starcoder2": Family(
        same_in_every_layer(
            b.ATTENTION, b.QKV_BIAS, b.OUTPUT_BIAS, b.FFN_NORM, NORM_BIASES, b.PLAIN_FFN, b.FFN_BIAS
        ),
        extra=b.OUTPUT_NORM_BIAS,
    ),
    "phi2": Family(
        same_in_every_layer(
            b.ATTENTION, b.QKV_BIAS, b.OUTPUT_BIAS, b.NORM_BIAS, b.PLAIN_FFN, b.FFN_BIAS
        ),
        extra=b.OUTPUT_NORM_BIAS + b.OUTPUT_LOGIT_BIAS,
    ),
    "falcon": Family(
        same_in_every_layer(b.FUSED_ATTENTION, b.NORM_BIAS, b.PLAIN_FFN), extra=b.OUTPUT_NORM_BIAS
    ),
    "gptneox": Family(GPT_NEOX, extra=b.OUTPUT_NORM_BIAS),
    "gpt2": Family(GPT_NEOX, extra=b.OUTPUT_NORM_BIAS + b.POSITIONS, sizes=_gpt2_sizes),
}  # fmt: skip
