"""Dense transformers of today: Llama and its many relatives."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows

GATED = b.ATTENTION + b.FFN_NORM + b.GATED_FFN
NORMED_AFTER = b.ATTENTION_BARE + b.POST_ATTENTION_NORM + b.GATED_FFN + b.POST_FFN_NORM
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


QWEN2 = Family(same_in_every_layer(GATED, b.QKV_BIAS))
QWEN3 = Family(same_in_every_layer(GATED, b.QK_NORM))

DENSE = {
    "llama": Family(_llama),
    "mistral3": Family(_llama),
    "granite": Family(_llama),
    "granitemoe": Family(_llama),
    "smollm3": Family(_llama),
    "internlm2": Family(_llama),
    "ernie4_5": Family(_llama),
    "qwen2": QWEN2,
    "qwen2vl": QWEN2,
    "qwen3": QWEN3,
    "qwen3vl": QWEN3,
    "hunyuan-dense": QWEN3,
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
    "pangu-embedded": Family(same_in_every_layer(GATED, b.QKV_BIAS, b.OUTPUT_BIAS)),
    "muse-glimmer": Family(
        same_in_every_layer(
            GATED, b.QK_NORM, b.QUERY_GATE, b.POST_ATTENTION_NORM, b.POST_FFN_NORM
        )
    ),
    "granite_swa": Family(same_in_every_layer(GATED, b.SINKS)),
}  # fmt: skip
