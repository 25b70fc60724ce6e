"""Groups of tensors that many architectures share (names of llama.cpp's `llama-arch.cpp`)."""

from engine.model.layouts.rows import rows

ATTENTION = rows("""
    attn_norm d
    attn_q d q
    attn_k d k
    attn_v d v
    attn_output o d
""")
ATTENTION_BARE = ATTENTION[1:]
FUSED_ATTENTION = rows("""
    attn_norm d
    attn_qkv d q+k+v
    attn_output o d
""")
FUSED_QKV_BIAS = rows("attn_qkv.bias q+k+v")
QKV_BIAS = rows("""
    attn_q.bias q
    attn_k.bias k
    attn_v.bias v
""")
OUTPUT_BIAS = rows("attn_output.bias d")
QK_NORM = rows("""
    attn_q_norm k_dim
    attn_k_norm k_dim
""")
QK_NORM_WIDE = rows("""
    attn_q_norm q
    attn_k_norm k
""")
SINKS = rows("attn_sinks heads")
QUERY_GATE = rows("attn_gate d q")
HEAD_GATE = rows("attn_gate d heads")
NORM_BIAS = rows("attn_norm.bias d")
FFN_NORM_BIAS = rows("ffn_norm.bias d")

FFN_NORM = rows("ffn_norm d")
POST_ATTENTION_NORM = rows("post_attention_norm d")
POST_FFN_NORM = rows("post_ffw_norm d")
GATED_FFN = rows("""
    ffn_gate d ff
    ffn_up d ff
    ffn_down ff d
""")
PLAIN_FFN = rows("""
    ffn_up d ff
    ffn_down ff d
""")
FUSED_GATED_FFN = rows("""
    ffn_up d 2*ff
    ffn_down ff d
""")
FFN_BIAS = rows("""
    ffn_up.bias ff
    ffn_down.bias d
""")
EXPERTS = rows("""
    ffn_gate_inp d experts
    ffn_gate_exps d expert_ff experts
    ffn_up_exps d expert_ff experts
    ffn_down_exps expert_ff d experts
""")
SHARED_EXPERTS = rows("""
    ffn_gate_shexp d shared_ff
    ffn_up_shexp d shared_ff
    ffn_down_shexp shared_ff d
""")
SHARED_GATE = rows("ffn_gate_inp_shexp d")
EXPERT_BIAS = rows("exp_probs_b.bias experts")
NEXT_TOKEN = rows("""
    nextn.eh_proj 2*d d
    nextn.enorm d
    nextn.hnorm d
    nextn.shared_head_norm d
""")
NEXT_TOKEN_VOCABULARY = rows("""
    nextn.embed_tokens d vocab
    nextn.shared_head_head d vocab
""")
ROPE_FREQS = rows("rope_freqs half_rot")
ROPE_LONG_SHORT = rows("""
    rope_factors_long half_rot
    rope_factors_short half_rot
""")

EMBEDDING = rows("token_embd d vocab")
OUTPUT_NORM = rows("output_norm d")
OUTPUT_NORM_BIAS = rows("output_norm.bias d")
OUTPUT = rows("output d vocab")
OUTPUT_LOGIT_BIAS = rows("output.bias vocab")
POSITIONS = rows("position_embd d positions")
