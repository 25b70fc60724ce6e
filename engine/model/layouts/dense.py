"""Dense transformers: Llama and its many relatives."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows

GATED = b.ATTENTION + b.FFN_NORM + b.GATED_FFN


def _llama(keys: Keys, index: int) -> Rows:
    """Give a Llama layer: with experts (Mixtral), or with biases where the model has them."""
    ffn = b.EXPERTS if keys.integer("expert_count") else b.GATED_FFN
    bias = b.QKV_BIAS if "qkv_bias" in keys.traits else ()
    del index
    return b.ATTENTION + bias + b.FFN_NORM + ffn


DENSE = {
    "llama": Family(_llama),
    "qwen2": Family(same_in_every_layer(GATED, b.QKV_BIAS)),
    "qwen3": Family(same_in_every_layer(GATED, b.QK_NORM)),
    "phi3": Family(same_in_every_layer(b.FUSED_ATTENTION, b.FFN_NORM, b.FUSED_GATED_FFN)),
}
