"""Google's Gemma: norms before and after every block, the output tied to the embedding."""

from engine.model.layouts import blocks as b
from engine.model.layouts.family import Family, Sizes, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows

GEMMA2 = b.ATTENTION + b.POST_ATTENTION_NORM + b.FFN_NORM + b.GATED_FFN + b.POST_FFN_NORM
GEMMA3 = GEMMA2 + b.QK_NORM
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
WITHOUT_VALUE = tuple(row for row in GEMMA3 if row[0] != "attn_v.weight")
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


def _gemma4(keys: Keys, index: int) -> Rows:
    """Give a Gemma 4 layer.

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


GEMMA = {
    "gemma": Family(same_in_every_layer(b.ATTENTION, b.FFN_NORM, b.GATED_FFN)),
    "gemma2": Family(same_in_every_layer(GEMMA2)),
    "gemma3": Family(same_in_every_layer(GEMMA3)),
    "gemma3n": Family(
        same_in_every_layer(GEMMA3, PER_LAYER_INPUT, ALTERNATING_UPDATES),
        extra=PER_LAYER_EMBEDDING + ALTERNATING_PROJECTIONS,
        sizes=_per_layer_sizes,
    ),
    "gemma4": Family(_gemma4, extra=_gemma4_extra, sizes=_gemma4_sizes),
}
