"""Multi-head latent attention: keys and values are read from one compressed row per token."""

from engine.model.layouts import blocks as b
from engine.model.layouts.experts import ROUTED, dense_first
from engine.model.layouts.family import Family, Sizes, same_in_every_layer
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, rows

QUERY = rows("attn_q d heads*k_mla")
COMPRESSED_QUERY = rows("""
    attn_q_a d q_rank
    attn_q_a_norm q_rank
    attn_q_b q_rank heads*k_mla
""")
LATENT = rows("""
    attn_kv_a_mqa d kv_rank+rot
    attn_kv_a_norm kv_rank
    attn_k_b nope kv_rank heads
    attn_v_b kv_rank v_mla heads
    attn_output heads*v_mla d
""")
JOINT_LATENT = rows("""
    attn_kv_a_mqa d kv_rank+rot
    attn_kv_a_norm kv_rank
    attn_kv_b kv_rank heads*nope+heads*v_mla
    attn_output heads*v_mla d
""")
INDEXER = rows("""
    indexer.k_norm index_dim
    indexer.k_norm.bias index_dim
    indexer.proj d index_heads
    indexer.attn_k d index_dim
    indexer.attn_q_b q_rank index_heads*index_dim
""")
ATTENTION_NORM = b.ATTENTION[:1]


def latent_sizes(keys: Keys, layer: int) -> Sizes:
    """Give the standard sizes and those of latent attention and its indexer."""
    sizes = keys.sizes(layer)
    k_mla = keys.integer("attention.key_length_mla", default=sizes["k_dim"])
    return sizes | {
        "k_mla": k_mla,
        "v_mla": keys.integer("attention.value_length_mla", default=sizes["v_dim"]),
        "nope": k_mla - sizes["rot"],
        "q_rank": keys.integer("attention.q_lora_rank"),
        "kv_rank": keys.integer("attention.kv_lora_rank"),
        "index_heads": keys.integer("attention.indexer.head_count"),
        "index_dim": keys.integer("attention.indexer.key_length"),
    }


def latent_attention(keys: Keys) -> Rows:
    """Give a layer's attention, its query compressed where the model does so."""
    query = COMPRESSED_QUERY if keys.integer("attention.q_lora_rank") else QUERY
    return ATTENTION_NORM + query + LATENT


def _deepseek2(keys: Keys, index: int) -> Rows:
    bias = b.EXPERT_BIAS if "expert_bias" in keys.traits else ()
    every = latent_attention(keys) + b.FFN_NORM
    return dense_first(every, b.GATED_FFN, ROUTED + bias)(keys, index)


def _indexed(keys: Keys, index: int) -> Rows:
    every = latent_attention(keys) + INDEXER + b.FFN_NORM
    return dense_first(every, b.GATED_FFN, ROUTED + b.EXPERT_BIAS)(keys, index)


MINICPM3 = same_in_every_layer(
    ATTENTION_NORM, COMPRESSED_QUERY, JOINT_LATENT, b.FFN_NORM, b.GATED_FFN
)

LATENT_FAMILIES = {
    "deepseek2": Family(_deepseek2, sizes=latent_sizes),
    "mistral4": Family(_deepseek2, sizes=latent_sizes),
    "deepseek32": Family(_indexed, sizes=latent_sizes),
    "glm-dsa": Family(_indexed, sizes=latent_sizes),
    "minicpm3": Family(MINICPM3, sizes=latent_sizes),
}
