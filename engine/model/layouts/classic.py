"""Dense transformers with fused queries, biases, learned positions or no norms of their own."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, Sizes, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import rows

NORM_BIASES = b.NORM_BIAS + b.FFN_NORM_BIAS
FUSED_BIASED = (
    b.FUSED_ATTENTION + b.FUSED_QKV_BIAS + b.OUTPUT_BIAS + b.FFN_NORM + NORM_BIASES
    + b.PLAIN_FFN + b.FFN_BIAS
)  # fmt: skip
GATE_BIAS = rows("ffn_gate.bias ff")
EMBEDDING_NORM = rows("""
    token_embd_norm d
    token_embd_norm.bias d
""")
HALF_GATED_FFN = rows("""
    ffn_gate d half_ff
    ffn_up d half_ff
    ffn_down half_ff d
""")
SUB_NORMS = rows("""
    attn_sub_norm d
    ffn_sub_norm ff
""")
UNSUFFIXED_POST_NORMS = rows("""
    post_attention_norm. d
    post_ffw_norm. d
""")


def _sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    return sizes | {
        "positions": keys.integer("context_length"),
        "half_ff": sizes["ff"] // 2,
    }


GATED = b.ATTENTION + b.FFN_NORM + b.GATED_FFN

BIASED = Family(
    same_in_every_layer(
        b.ATTENTION, b.QKV_BIAS, b.OUTPUT_BIAS, b.FFN_NORM, NORM_BIASES, b.PLAIN_FFN, b.FFN_BIAS
    ),
    extra=b.OUTPUT_NORM_BIAS,
)

CLASSIC = {
    "baichuan": Family(same_in_every_layer(GATED)),
    "xverse": Family(same_in_every_layer(GATED)),
    "refact": Family(same_in_every_layer(GATED)),
    "exaone": Family(same_in_every_layer(GATED)),
    "minicpm": Family(same_in_every_layer(GATED)),
    "plamo": Family(same_in_every_layer(b.ATTENTION, b.GATED_FFN)),
    "olmo": Family(same_in_every_layer(b.ATTENTION_BARE, b.GATED_FFN), has_output_norm=False),
    "orion": Family(same_in_every_layer(GATED, NORM_BIASES), extra=b.OUTPUT_NORM_BIAS),
    "arcee": Family(same_in_every_layer(b.ATTENTION, b.FFN_NORM, b.PLAIN_FFN)),
    "bitnet": Family(same_in_every_layer(GATED, SUB_NORMS)),
    "openelm": Family(
        same_in_every_layer(b.FUSED_ATTENTION, b.QK_NORM, b.FFN_NORM, b.GATED_FFN)
    ),
    "plamo3": Family(
        same_in_every_layer(
            b.FUSED_ATTENTION, b.QK_NORM, b.FFN_NORM, b.FUSED_GATED_FFN, UNSUFFIXED_POST_NORMS
        )
    ),
    "chatglm": Family(
        same_in_every_layer(b.FUSED_ATTENTION, b.FUSED_QKV_BIAS, b.FFN_NORM, b.FUSED_GATED_FFN)
    ),
    "qwen": Family(
        same_in_every_layer(b.FUSED_ATTENTION, b.FUSED_QKV_BIAS, b.FFN_NORM, HALF_GATED_FFN),
        sizes=_sizes,
    ),
    "mpt": Family(same_in_every_layer(b.FUSED_ATTENTION, b.FFN_NORM, b.PLAIN_FFN)),
    "bloom": Family(
        same_in_every_layer(FUSED_BIASED), extra=b.OUTPUT_NORM_BIAS + EMBEDDING_NORM
    ),
    "jais": Family(
        same_in_every_layer(FUSED_BIASED, b.GATED_FFN[:1], GATE_BIAS), extra=b.OUTPUT_NORM_BIAS
    ),
    "gptneox": Family(same_in_every_layer(FUSED_BIASED), extra=b.OUTPUT_NORM_BIAS),
    "gpt2": Family(
        same_in_every_layer(FUSED_BIASED), extra=b.OUTPUT_NORM_BIAS + b.POSITIONS, sizes=_sizes
    ),
    "starcoder": Family(
        same_in_every_layer(FUSED_BIASED), extra=b.OUTPUT_NORM_BIAS + b.POSITIONS, sizes=_sizes
    ),
    "falcon": Family(
        same_in_every_layer(b.FUSED_ATTENTION, b.NORM_BIAS, b.PLAIN_FFN), extra=b.OUTPUT_NORM_BIAS
    ),
    "phi2": Family(
        same_in_every_layer(
            b.ATTENTION, b.QKV_BIAS, b.OUTPUT_BIAS, b.NORM_BIAS, b.PLAIN_FFN, b.FFN_BIAS
        ),
        extra=b.OUTPUT_NORM_BIAS + b.OUTPUT_LOGIT_BIAS,
    ),
    "stablelm": Family(
        same_in_every_layer(GATED, NORM_BIASES, b.QKV_BIAS), extra=b.OUTPUT_NORM_BIAS
    ),
    "nemotron": Family(
        same_in_every_layer(b.ATTENTION, b.FFN_NORM, NORM_BIASES, b.PLAIN_FFN),
        extra=b.OUTPUT_NORM_BIAS,
    ),
    "codeshell": BIASED,
    "jais2": BIASED,
    "starcoder2": BIASED,
}  # fmt: skip
