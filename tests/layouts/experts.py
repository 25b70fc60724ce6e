"""Transformers whose feed-forward layers are mixtures of experts."""

from collections.abc import Callable

import tests.layouts.tables as t
from tests.layouts.tables import Keys, Layout, Rows, Sizes, rows, uniform

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
ROUTED = t.EXPERTS + t.SHARED_EXPERTS
ROUTED_BY_BIAS = ROUTED + t.EXPERT_BIAS
NORMED = t.ATTENTION + t.QK_NORM + t.FFN_NORM


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


def _llama4(keys: Keys, index: int) -> Rows:
    step = keys.integer("interleave_moe_layer_step")
    has_experts = step and (index + 1) % step == 0
    return t.ATTENTION + t.FFN_NORM + (ROUTED if has_experts else t.GATED_FFN)


def _llama4_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    return sizes | {"shared_ff": sizes["expert_ff"]}


def _glm4moe(keys: Keys, index: int) -> Rows:
    norms = t.QK_NORM if "qk_norm" in keys.traits else ()
    every = t.ATTENTION + t.QKV_BIAS + norms + t.POST_ATTENTION_NORM
    return dense_first(every, ROUTED_BY_BIAS)(keys, index)


def _mimo2(keys: Keys, index: int) -> Rows:
    slides = keys.integer("attention.sliding_window_pattern", index)
    every = t.ATTENTION + (t.SINKS if slides else ()) + t.FFN_NORM
    if index >= keys.n_trunk_layers:
        return every + t.GATED_FFN + t.NEXT_TOKEN[:3] + LAYER_OUTPUT_NORM
    return dense_first(every, t.EXPERTS + t.EXPERT_BIAS)(keys, index)


AFMOE = (
    t.ATTENTION + t.QUERY_GATE + t.QK_NORM + t.POST_ATTENTION_NORM + t.FFN_NORM + t.POST_FFN_NORM
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
    return NORMED + (t.GATED_FFN if is_dense else ROUTED_BY_BIAS) + head


STEP35_ATTENTION = t.ATTENTION + t.QK_NORM + t.HEAD_GATE + t.FFN_NORM


def _step35(keys: Keys, index: int) -> Rows:
    if index >= keys.n_trunk_layers:
        return STEP35_ATTENTION + t.GATED_FFN + t.NEXT_TOKEN
    return dense_first(STEP35_ATTENTION, ROUTED_BY_BIAS)(keys, index)


def _bailing_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    shared = keys.integer("expert_shared_feed_forward_length", default=sizes["expert_ff"])
    return sizes | {"shared_ff": shared * keys.integer("expert_shared_count")}


EXPERTS = {
    "qwen3moe": uniform(NORMED, t.EXPERTS),
    "qwen3vlmoe": uniform(NORMED, t.EXPERTS),
    "mellum": uniform(NORMED, t.EXPERTS),
    "grovemoe": uniform(NORMED, t.EXPERTS, CHUNK_EXPERTS, sizes=_grove_sizes),
    "phimoe": uniform(
        t.ATTENTION, t.QKV_BIAS, t.OUTPUT_BIAS, t.FFN_NORM, t.NORM_BIAS, t.FFN_NORM_BIAS, t.EXPERTS,
        extra=t.OUTPUT_NORM_BIAS + t.OUTPUT_LOGIT_BIAS,
    ),
    "afmoe": Layout(dense_first(AFMOE, ROUTED_BY_BIAS)),
    "exaone-moe": Layout(_exaone_moe),
    "laguna": Layout(dense_first(NORMED + t.HEAD_GATE, ROUTED_BY_BIAS)),
    "hy_v3": Layout(dense_first(NORMED, ROUTED + UNSUFFIXED_BIAS)),
    "cohere2moe": Layout(dense_first(t.ATTENTION, t.EXPERTS)),
    "qwen2moe": uniform(t.ATTENTION, t.QKV_BIAS, t.FFN_NORM, ROUTED, t.SHARED_GATE),
    "gpt-oss": uniform(
        t.ATTENTION, t.QKV_BIAS, t.OUTPUT_BIAS, t.POST_ATTENTION_NORM, t.EXPERTS, GPT_OSS_BIASES,
        t.SINKS,
    ),
    "llama4": Layout(_llama4, sizes=_llama4_sizes),
    "glm4moe": Layout(_glm4moe),
    "olmoe": uniform(t.ATTENTION, t.QK_NORM_WIDE, t.FFN_NORM, t.EXPERTS),
    "deepseek": Layout(dense_first(t.ATTENTION + t.FFN_NORM, ROUTED)),
    "bailingmoe": uniform(t.ATTENTION, t.FFN_NORM, ROUTED),
    "dots1": Layout(dense_first(NORMED, ROUTED_BY_BIAS)),
    "ernie4_5-moe": Layout(
        dense_first(t.ATTENTION + t.FFN_NORM, ROUTED_BY_BIAS)
    ),
    "hunyuan-moe": uniform(NORMED, ROUTED),
    "bailingmoe2": Layout(
        dense_first(
            t.FUSED_ATTENTION + t.QK_NORM + t.FFN_NORM, ROUTED_BY_BIAS
        ),
        sizes=_bailing_sizes,
    ),
    "smallthinker": uniform(t.ATTENTION, t.FFN_NORM, t.EXPERTS),
    "minimax-m2": uniform(t.ATTENTION, t.QK_NORM_WIDE, t.FFN_NORM, t.EXPERTS, t.EXPERT_BIAS),
    "mimo2": Layout(_mimo2),
    "step35": Layout(_step35),
    "arctic": uniform(t.ATTENTION, t.FFN_NORM, ARCTIC_FFN, t.EXPERTS),
    "dbrx": uniform(t.FUSED_ATTENTION, OUTPUT_NORM_OF_ATTENTION, t.EXPERTS),
    "grok": uniform(
        t.ATTENTION, OUTPUT_NORM_OF_ATTENTION, t.FFN_NORM, t.EXPERTS, LAYER_OUTPUT_NORM
    ),
}  # fmt: skip
