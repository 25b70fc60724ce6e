"""Which tensors no quantisation touches, and the type that they keep.

The names are those of llama.cpp 0c1e57098 (`src/llama-quant.cpp`, `conversion/base.py`,
`conversion/glm.py`).
"""

KEPT_WHOLE = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
    "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight",
    "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight",
    "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight",
    "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "position_embd.weight", "ffn_gate_tid2eid.weight",
)  # fmt: skip
"""Parts of names of tensors that are never quantised."""

KEPT_AS_F16 = (
    "altup_proj", "altup_unembd_proj", "altup_router", "laurel_l", "laurel_r",
    "per_layer_model_proj", "indexer.k_proj", "indexer.q_proj", "time_mix_v1", "time_mix_v2",
    "time_mix_a1", "time_mix_a2", "time_mix_g1", "time_mix_g2",
)  # fmt: skip
"""Those of them that the conversion writes in 16 bits; the others have 32."""

GLM5_NEXT_AS_F16 = (
    "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "ssm_f_a.weight", "ssm_f_b.weight",
    "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight",
    "attn_k_b.weight", "attn_v_b.weight",
)  # fmt: skip
GLM5_NEXT_WHOLE = ("hc_", "indexer_compressor_gate", "indexer_compressor_ape", *GLM5_NEXT_AS_F16)


def kept_type(
    quantization: str, architecture: str, name: str, shape: tuple[int, ...]
) -> str | None:
    """Give the type of a tensor that is never quantised, None for one that is."""
    is_glm = architecture == "glm5-next"
    whole = KEPT_WHOLE + (GLM5_NEXT_WHOLE if is_glm else ())
    is_matrix = any(n > 1 for n in shape[1:]) and name.endswith("weight")
    if is_matrix and not any(part in name for part in whole):
        return None
    if "ffn_gate_tid2eid" in name:
        return "i32"
    halved = KEPT_AS_F16 + (GLM5_NEXT_AS_F16 if is_glm else ())
    is_half = is_matrix and any(part in name for part in halved)
    if not is_half or name.endswith("_norm.weight") or quantization == "F32":
        return "f32"
    return "bf16" if quantization == "BF16" else "f16"
