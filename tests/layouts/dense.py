"""Dense transformers: Llama and its relatives, older ones with biases, Google's Gemma."""

import tests.layouts.tables as t
from tests.layouts.tables import Keys, Layout, Rows, Sizes, changed, rows, uniform

GATED = t.ATTENTION + t.FFN_NORM + t.GATED_FFN
NORMED_AFTER = t.ATTENTION_BARE + t.POST_ATTENTION_NORM + t.GATED_FFN + t.POST_FFN_NORM
NORM_PER_HEAD = rows("""
    attn_q_norm k_dim heads
    attn_k_norm k_dim kv_heads
""")
NORM_BIASES = t.NORM_BIAS + t.FFN_NORM_BIAS
ATTENTION_BIASES = t.QKV_BIAS + t.OUTPUT_BIAS
BIASED = t.ATTENTION + ATTENTION_BIASES + t.FFN_NORM + NORM_BIASES + t.PLAIN_FFN + t.FFN_BIAS
FUSED_BIASED = (
    t.FUSED_ATTENTION + t.FUSED_QKV_BIAS + t.OUTPUT_BIAS + t.FFN_NORM + NORM_BIASES
    + t.PLAIN_FFN + t.FFN_BIAS
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
WITHOUT_VALUE = changed(GEMMA3, (), without=("attn_v.weight",))
LAYER_SCALE = rows("layer_output_scale 1")
GEMMA4_EXPERTS = rows("""
    ffn_gate_inp d experts
    pre_ffw_norm_2 d
    post_ffw_norm_1 d
    post_ffw_norm_2 d
    ffn_gate_up_exps d 2*expert_ff experts
    ffn_down_exps expert_ff d experts
""")
EXPERT_SCALES = (("ffn_gate_inp.scale", ((("d",),),)), ("ffn_down_exps.scale", ((("experts",),),)))
GEMMA4_ROPE = rows("rope_freqs half_global")


def _llama(keys: Keys, _index: int) -> Rows:
    """A Llama layer: with experts (Mixtral), or with biases where the model has them."""
    bias = t.QKV_BIAS if "qkv_bias" in keys.traits else ()
    if not keys.integer("expert_count"):
        return GATED + bias
    shared = t.SHARED_EXPERTS if keys.integer("expert_shared_feed_forward_length") else ()
    return t.ATTENTION + bias + t.FFN_NORM + t.EXPERTS + shared


def _command_r(keys: Keys, _index: int) -> Rows:
    """A Command R layer; those of 64 layers or more (R+) normalise each head."""
    norms = NORM_PER_HEAD if keys.n_layers >= 64 else ()
    return t.ATTENTION + norms + t.GATED_FFN


def _classic_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = keys.sizes(layer)
    return sizes | {"positions": keys.integer("context_length"), "half_ff": sizes["ff"] // 2}


def _gemma4(keys: Keys, index: int) -> Rows:
    """A Gemma 4 layer.

    Dense layers of the large models use their keys as values; experts come beside the plain
    feed-forward part. Layers that use the cache of earlier ones have their own matrices anyway.
    """
    slides = keys.integer("attention.sliding_window_pattern", index)
    attention = WITHOUT_VALUE if "keys_as_values" in keys.traits and not slides else GEMMA3
    experts = GEMMA4_EXPERTS + EXPERT_SCALES if keys.integer("expert_count") else ()
    per_layer = PER_LAYER_INPUT if keys.integer("embedding_length_per_layer_input") else ()
    return attention + LAYER_SCALE + experts + per_layer


def _per_layer_sizes(keys: Keys, layer: int) -> Sizes:
    return keys.sizes(layer) | {
        "per_layer": keys.integer("embedding_length_per_layer_input"),
        "layers": keys.n_layers,
    }


def _gemma4_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = _per_layer_sizes(keys, layer)
    sizes["half_global"] = keys.integer("attention.key_length") // 2
    if keys.integer("attention.sliding_window_pattern", layer):
        dim = keys.integer("attention.key_length_swa")
        width = sizes["kv_heads"] * dim
        sizes |= {"k_dim": dim, "q": sizes["heads"] * dim, "o": sizes["heads"] * dim}
        sizes |= {"k": width, "v": width}
    return sizes


def _gemma4_extra(keys: Keys) -> Rows:
    has_inputs = keys.integer("embedding_length_per_layer_input")
    return GEMMA4_ROPE + (PER_LAYER_EMBEDDING if has_inputs else ())


QWEN2 = uniform(GATED, t.QKV_BIAS)
QWEN3 = uniform(GATED, t.QK_NORM)
PLAIN = uniform(GATED)

DENSE = {
    "llama": Layout(_llama),
    "mistral3": Layout(_llama),
    "granite": Layout(_llama),
    "granitemoe": Layout(_llama),
    "smollm3": Layout(_llama),
    "internlm2": Layout(_llama),
    "ernie4_5": Layout(_llama),
    "qwen2": QWEN2,
    "qwen2vl": QWEN2,
    "qwen3": QWEN3,
    "qwen3vl": QWEN3,
    "hunyuan-dense": QWEN3,
    "baichuan": PLAIN,
    "xverse": PLAIN,
    "refact": PLAIN,
    "exaone": PLAIN,
    "minicpm": PLAIN,
    "gemma": PLAIN,
    "phi3": uniform(t.FUSED_ATTENTION, t.FFN_NORM, t.FUSED_GATED_FFN),
    "glm4": uniform(
        t.ATTENTION, t.QKV_BIAS, t.POST_ATTENTION_NORM, t.FFN_NORM, t.FUSED_GATED_FFN,
        t.POST_FFN_NORM,
    ),
    "seed_oss": uniform(t.ATTENTION, t.QKV_BIAS, t.POST_ATTENTION_NORM, t.GATED_FFN),
    "apertus": uniform(t.ATTENTION, t.QK_NORM, t.FFN_NORM, t.PLAIN_FFN),
    "exaone4": uniform(NORMED_AFTER, t.QK_NORM),
    "olmo2": uniform(NORMED_AFTER, t.QK_NORM_WIDE),
    "command-r": Layout(_command_r),
    "cohere2": uniform(t.ATTENTION, t.GATED_FFN),
    "pangu-embedded": uniform(GATED, ATTENTION_BIASES),
    "muse-glimmer": uniform(GATED, t.QK_NORM, t.QUERY_GATE, t.POST_ATTENTION_NORM, t.POST_FFN_NORM),
    "granite_swa": uniform(GATED, t.SINKS),
    "plamo": uniform(t.ATTENTION, t.GATED_FFN),
    "olmo": uniform(t.ATTENTION_BARE, t.GATED_FFN, has_output_norm=False),
    "orion": uniform(GATED, NORM_BIASES, extra=t.OUTPUT_NORM_BIAS),
    "arcee": uniform(t.ATTENTION, t.FFN_NORM, t.PLAIN_FFN),
    "bitnet": uniform(GATED, SUB_NORMS),
    "openelm": uniform(t.FUSED_ATTENTION, t.QK_NORM, t.FFN_NORM, t.GATED_FFN),
    "plamo3": uniform(
        t.FUSED_ATTENTION, t.QK_NORM, t.FFN_NORM, t.FUSED_GATED_FFN, UNSUFFIXED_POST_NORMS
    ),
    "chatglm": uniform(t.FUSED_ATTENTION, t.FUSED_QKV_BIAS, t.FFN_NORM, t.FUSED_GATED_FFN),
    "qwen": uniform(
        t.FUSED_ATTENTION, t.FUSED_QKV_BIAS, t.FFN_NORM, HALF_GATED_FFN, sizes=_classic_sizes
    ),
    "mpt": uniform(t.FUSED_ATTENTION, t.FFN_NORM, t.PLAIN_FFN),
    "bloom": uniform(FUSED_BIASED, extra=t.OUTPUT_NORM_BIAS + EMBEDDING_NORM),
    "jais": uniform(FUSED_BIASED, t.GATED_FFN[:1], GATE_BIAS, extra=t.OUTPUT_NORM_BIAS),
    "gptneox": uniform(FUSED_BIASED, extra=t.OUTPUT_NORM_BIAS),
    "gpt2": uniform(FUSED_BIASED, extra=t.OUTPUT_NORM_BIAS + t.POSITIONS, sizes=_classic_sizes),
    "starcoder": uniform(
        FUSED_BIASED, extra=t.OUTPUT_NORM_BIAS + t.POSITIONS, sizes=_classic_sizes
    ),
    "falcon": uniform(t.FUSED_ATTENTION, t.NORM_BIAS, t.PLAIN_FFN, extra=t.OUTPUT_NORM_BIAS),
    "phi2": uniform(
        t.ATTENTION, ATTENTION_BIASES, t.NORM_BIAS, t.PLAIN_FFN, t.FFN_BIAS,
        extra=t.OUTPUT_NORM_BIAS + t.OUTPUT_LOGIT_BIAS,
    ),
    "stablelm": uniform(GATED, NORM_BIASES, t.QKV_BIAS, extra=t.OUTPUT_NORM_BIAS),
    "nemotron": uniform(
        t.ATTENTION, t.FFN_NORM, NORM_BIASES, t.PLAIN_FFN, extra=t.OUTPUT_NORM_BIAS
    ),
    "codeshell": uniform(BIASED, extra=t.OUTPUT_NORM_BIAS),
    "jais2": uniform(BIASED, extra=t.OUTPUT_NORM_BIAS),
    "starcoder2": uniform(BIASED, extra=t.OUTPUT_NORM_BIAS),
    "gemma2": uniform(GEMMA2),
    "gemma3": uniform(GEMMA3),
    "gemma3n": uniform(
        GEMMA3, PER_LAYER_INPUT, ALTERNATING_UPDATES,
        extra=PER_LAYER_EMBEDDING + ALTERNATING_PROJECTIONS, sizes=_per_layer_sizes,
    ),
    "gemma4": Layout(_gemma4, extra=_gemma4_extra, sizes=_gemma4_sizes),
}  # fmt: skip
