"""Transformers whose feed-forward layers are mixtures of experts."""

from collections.abc import Callable

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, Sizes, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows

GPT_OSS_BIASES = rows("""
    ffn_gate_inp.bias experts
    ffn_gate_exps.bias expert_ff experts
    ffn_up_exps.bias expert_ff experts
    ffn_down_exps.bias d experts
""")
ARCTIC_FFN = rows("""
    ffn_gate d d
    ffn_up d d
    ffn_down d d
    ffn_norm_exps d
""")
OUTPUT_NORM_OF_ATTENTION = rows("attn_output_norm d")
LAYER_OUTPUT_NORM = rows("layer_output_norm d")
ROUTED = b.EXPERTS + b.SHARED_EXPERTS
NORMED = b.ATTENTION + b.QK_NORM + b.FFN_NORM


def dense_first(every: Rows, dense: Rows, experts: Rows) -> Callable[[Keys, int], Rows]:
    """Give the rule of a model whose first layers are dense; next-token heads come last."""

    def layer(keys: Keys, index: int) -> Rows:
        is_dense = index < keys.integer("leading_dense_block_count")
        return every + (dense if is_dense else experts) + next_token_head(keys, index)

    return layer


def next_token_head(keys: Keys, index: int) -> Rows:
    """Give what a layer behind the trunk has besides; some bring their own vocabulary."""
    if index < keys.n_trunk_layers:
        return ()
    has_own = "next_token_vocabulary" in keys.traits
    return b.NEXT_TOKEN + (b.NEXT_TOKEN_VOCABULARY if has_own else ())


def _llama4(keys: Keys, index: int) -> Rows:
    step = keys.integer("interleave_moe_layer_step")
    has_experts = step and (index + 1) % step == 0
    return b.ATTENTION + b.FFN_NORM + (ROUTED if has_experts else b.GATED_FFN)


def _llama4_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    return sizes | {"shared_ff": sizes["expert_ff"]}


def _glm4moe(keys: Keys, index: int) -> Rows:
    norms = b.QK_NORM if "qk_norm" in keys.traits else ()
    every = b.ATTENTION + b.QKV_BIAS + norms + b.POST_ATTENTION_NORM
    return dense_first(every, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)(keys, index)


def _mimo2(keys: Keys, index: int) -> Rows:
    slides = keys.integer("attention.sliding_window_pattern", index)
    every = b.ATTENTION + (b.SINKS if slides else ()) + b.FFN_NORM
    if index >= keys.n_trunk_layers:
        return every + b.GATED_FFN + b.NEXT_TOKEN[:3] + LAYER_OUTPUT_NORM
    return dense_first(every, b.GATED_FFN, b.EXPERTS + b.EXPERT_BIAS)(keys, index)


AFMOE = (
    b.ATTENTION + b.QUERY_GATE + b.QK_NORM + b.POST_ATTENTION_NORM + b.FFN_NORM + b.POST_FFN_NORM
)
CHUNK_EXPERTS = rows("""
    ffn_gate_chexps d chunk_ff chunks
    ffn_up_chexps d chunk_ff chunks
    ffn_down_chexps chunk_ff d chunks
""")
UNSUFFIXED_BIAS = rows("exp_probs_b. experts")


def _grove_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    return sizes | {
        "chunk_ff": keys.integer("expert_chunk_feed_forward_length", default=sizes["k_dim"]),
        "chunks": sizes["experts"] // max(1, keys.integer("experts_per_group")),
    }


def _exaone_moe(keys: Keys, index: int) -> Rows:
    head = next_token_head(keys, index)
    is_dense = index < keys.integer("leading_dense_block_count") or head
    return NORMED + (b.GATED_FFN if is_dense else ROUTED + b.EXPERT_BIAS) + head


STEP35_ATTENTION = b.ATTENTION + b.QK_NORM + b.HEAD_GATE + b.FFN_NORM


def _step35(keys: Keys, index: int) -> Rows:
    if index >= keys.n_trunk_layers:
        return STEP35_ATTENTION + b.GATED_FFN + b.NEXT_TOKEN
    return dense_first(STEP35_ATTENTION, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)(keys, index)


def _bailing_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    shared = keys.integer("expert_shared_feed_forward_length", default=sizes["expert_ff"])
    return sizes | {"shared_ff": shared * keys.integer("expert_shared_count")}


EXPERTS = {
    "qwen3moe": Family(same_in_every_layer(NORMED, b.EXPERTS)),
    "qwen3vlmoe": Family(same_in_every_layer(NORMED, b.EXPERTS)),
    "mellum": Family(same_in_every_layer(NORMED, b.EXPERTS)),
    "grovemoe": Family(same_in_every_layer(NORMED, b.EXPERTS, CHUNK_EXPERTS), sizes=_grove_sizes),
    "phimoe": Family(
        same_in_every_layer(
            b.ATTENTION, b.QKV_BIAS, b.OUTPUT_BIAS, b.FFN_NORM, b.NORM_BIAS, b.FFN_NORM_BIAS,
            b.EXPERTS,
        ),
        extra=b.OUTPUT_NORM_BIAS + b.OUTPUT_LOGIT_BIAS,
    ),
    "afmoe": Family(dense_first(AFMOE, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)),
    "exaone-moe": Family(_exaone_moe),
    "laguna": Family(dense_first(NORMED + b.HEAD_GATE, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)),
    "hy_v3": Family(dense_first(NORMED, b.GATED_FFN, ROUTED + UNSUFFIXED_BIAS)),
    "cohere2moe": Family(dense_first(b.ATTENTION, b.GATED_FFN, b.EXPERTS)),
    "qwen2moe": Family(
        same_in_every_layer(b.ATTENTION, b.QKV_BIAS, b.FFN_NORM, ROUTED, b.SHARED_GATE)
    ),
    "gpt-oss": Family(
        same_in_every_layer(
            b.ATTENTION, b.QKV_BIAS, b.OUTPUT_BIAS, b.POST_ATTENTION_NORM, b.EXPERTS,
            GPT_OSS_BIASES, b.SINKS,
        )
    ),
    "llama4": Family(_llama4, sizes=_llama4_sizes),
    "glm4moe": Family(_glm4moe),
    "olmoe": Family(same_in_every_layer(b.ATTENTION, b.QK_NORM_WIDE, b.FFN_NORM, b.EXPERTS)),
    "deepseek": Family(dense_first(b.ATTENTION + b.FFN_NORM, b.GATED_FFN, ROUTED)),
    "bailingmoe": Family(same_in_every_layer(b.ATTENTION, b.FFN_NORM, ROUTED)),
    "dots1": Family(dense_first(NORMED, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)),
    "ernie4_5-moe": Family(
        dense_first(b.ATTENTION + b.FFN_NORM, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)
    ),
    "hunyuan-moe": Family(same_in_every_layer(NORMED, ROUTED)),
    "bailingmoe2": Family(
        dense_first(
            b.FUSED_ATTENTION + b.QK_NORM + b.FFN_NORM, b.GATED_FFN, ROUTED + b.EXPERT_BIAS
        ),
        sizes=_bailing_sizes,
    ),
    "smallthinker": Family(same_in_every_layer(b.ATTENTION, b.FFN_NORM, b.EXPERTS)),
    "minimax-m2": Family(
        same_in_every_layer(b.ATTENTION, b.QK_NORM_WIDE, b.FFN_NORM, b.EXPERTS, b.EXPERT_BIAS)
    ),
    "mimo2": Family(_mimo2),
    "step35": Family(_step35),
    "arctic": Family(same_in_every_layer(b.ATTENTION, b.FFN_NORM, ARCTIC_FFN, b.EXPERTS)),
    "dbrx": Family(
        same_in_every_layer(b.FUSED_ATTENTION, OUTPUT_NORM_OF_ATTENTION, b.EXPERTS)
    ),
    "grok": Family(
        same_in_every_layer(
            b.ATTENTION, OUTPUT_NORM_OF_ATTENTION, b.FFN_NORM, b.EXPERTS, LAYER_OUTPUT_NORM
        )
    ),
}  # fmt: skip
