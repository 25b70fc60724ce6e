"""Architectures of llama.cpp that the catalogue has no model of, with made-up sizes.

Their tensors, in the notation of `tests/layouts/tables.py`, are what `load_arch_tensors` of
llama.cpp 0c1e57098 asks for (`src/models/*.cpp`). PLM is not among them: that llama.cpp stops when
it lays out its values.
"""

from dataclasses import dataclass, field

from engine.model.gguf_header import Value
from tests.layouts import LAYOUTS
from tests.layouts import tables as t
from tests.layouts.dense import GATED, NORM_PER_HEAD
from tests.layouts.experts import ROUTED_BY_BIAS, dense_first
from tests.layouts.latent import COMPRESSED_QUERY, INDEXER, LATENT, latent_sizes
from tests.layouts.tables import Keys, Layout, Rows, Sizes, rows, uniform

EPSILON = "attention.layer_norm_rms_epsilon"


@dataclass(frozen=True, slots=True)
class Rare:
    """A made-up model of an architecture; without a layout its tensors are the product's."""

    architecture: str
    values: dict[str, Value]
    layout: Layout | None = None
    traits: frozenset[str] = field(default=frozenset())
    n_vocab: int = 32000


def dense(**changes: Value) -> dict[str, Value]:
    """Give the keys of a small dense model; a double underscore stands for a dot."""
    values: dict[str, Value] = {
        "block_count": 8,
        "context_length": 32768,
        "embedding_length": 1024,
        "feed_forward_length": 2816,
        "attention.head_count": 16,
        "attention.head_count_kv": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-6,
    }
    return values | {key.replace("__", "."): value for key, value in changes.items()}


def experts(**changes: Value) -> dict[str, Value]:
    """Give the keys of a small model with experts."""
    sizes = {"expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 512}
    return dense(**sizes) | {key.replace("__", "."): value for key, value in changes.items()}


def _deci(keys: Keys, index: int) -> Rows:
    heads, kv_heads = (
        keys.integer(f"attention.head_count{suffix}", index) for suffix in ("", "_kv")
    )
    linear = rows("attn_norm d\nattn_output d d")
    attention = t.ATTENTION if kv_heads else linear if heads else ()
    ff = t.FFN_NORM + t.GATED_FFN if keys.integer("feed_forward_length", index) else ()
    return attention + ff


DECI = dense(
    attention__head_count=(16, 16, 0, 16, 16, 0, 16, 16),
    attention__head_count_kv=(4, 0, 0, 2, 4, 0, 4, 4),
    feed_forward_length=(2816, 1408, 2816, 0, 2816, 512, 2816, 2816),
)
TALKIE = t.ATTENTION_BARE + t.GATED_FFN + rows("attn_q_norm 1 heads\nlayer_output_scale 1")
HRM_LAYER = t.ATTENTION_BARE + t.QUERY_GATE + t.GATED_FFN


def _hrm(keys: Keys, index: int) -> Rows:
    return HRM_LAYER if index < 2 * keys.integer("hrm.layers_per_stack") else ()


COGVLM = rows("""
    attn_norm d
    attn_qkv d 3*q
    attn_output q d
    vis_attn_qkv d 3*q
    vis_attn_output q d
    ffn_norm d
    ffn_gate d ff
    ffn_down ff d
    ffn_up d ff
    vis_gate d ff
    vis_down ff d
    vis_up d ff
""")
SWITCH = t.FUSED_ATTENTION + t.FFN_NORM + t.GATED_FFN + rows("""
    attn_q.lora_a. d rank slots
    attn_q.lora_b. rank q slots
    attn_k.lora_a. d rank slots
    attn_k.lora_b. rank k slots
    attn_v.lora_a. d rank slots
    attn_v.lora_b. rank v slots
    attn_output.lora_a. q rank slots
    attn_output.lora_b. rank d slots
    ffn_gate.lora_a. d rank slots
    ffn_gate.lora_b. rank ff slots
    ffn_up.lora_a. d rank slots
    ffn_up.lora_b. rank ff slots
    ffn_down.lora_a. ff rank slots
    ffn_down.lora_b. rank d slots
""")  # fmt: skip


def _switch_sizes(keys: Keys, layer: int) -> Sizes:
    rank, slots = keys.integer("adapters.lora_rank"), keys.integer("adapters.count") + 1
    return keys.sizes(layer) | {"rank": rank, "slots": slots}


def _dots3(keys: Keys, index: int) -> Rows:
    indexer = INDEXER if keys.integer("attention.indexer.types", index) else ()
    gate = rows("attn_gate d heads\nattn_k_norm rot\nattn_norm d")
    every = gate + COMPRESSED_QUERY + LATENT + t.FFN_NORM + indexer
    return dense_first(every, ROUTED_BY_BIAS)(keys, index)


def _dots3_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = latent_sizes(keys, layer)
    if not keys.integer("attention.sliding_window_pattern", layer):
        return sizes
    k_mla = keys.integer("attention.key_length_mla_swa")
    return sizes | {
        "k_mla": k_mla,
        "nope": k_mla - sizes["rot"],
        "v_mla": keys.integer("attention.value_length_mla_swa"),
        "kv_rank": keys.integer("attention.kv_lora_rank_swa"),
    }


DOTS3 = experts(
    attention__head_count_kv=1,
    attention__q_lora_rank=384,
    attention__kv_lora_rank=512,
    attention__key_length=576,
    attention__value_length=512,
    attention__key_length_mla=192,
    attention__value_length_mla=128,
    attention__kv_lora_rank_swa=256,
    attention__key_length_swa=320,
    attention__value_length_swa=256,
    attention__key_length_mla_swa=160,
    attention__value_length_mla_swa=96,
    attention__sliding_window=512,
    attention__sliding_window_pattern=(True, True, True, False) * 2,
    attention__indexer__head_count=8,
    attention__indexer__key_length=128,
    attention__indexer__top_k=512,
    attention__indexer__types=(False, False, False, True) * 2,
    rope__dimension_count=64,
    rope__freq_base_swa=10000.0,
    expert_shared_count=1,
    leading_dense_block_count=1,
    expert_gating_func=2,
)
KIMI_DELTA = rows("""
    ssm_conv1d_q conv 1 kda 1
    ssm_conv1d_k conv 1 kda 1
    ssm_conv1d_v conv 1 kda 1
    attn_q d kda
    attn_k d kda
    attn_v d kda
    ssm_f_a d kda_dim
    ssm_f_b kda_dim kda
    ssm_beta d heads
    ssm_a. heads
    ssm_dt.bias kda
    ssm_g d kda
    ssm_norm kda_dim
    attn_output kda d
""")
KIMI_NORMS = rows("attn_norm d\nffn_norm d\nattn_res_score d\nffn_res_score d")
KIMI_EXPERTS = rows("""
    ffn_gate_inp d experts
    exp_probs_b.bias experts
    ffn_gate_exps latent expert_ff experts
    ffn_down_exps expert_ff latent experts
    ffn_up_exps latent expert_ff experts
    ffn_routed_down d latent
    ffn_routed_up latent d
    ffn_gate_shexp d shared_ff
    ffn_up_shexp d shared_ff
    ffn_down_shexp shared_ff d
""")


def _kimi(keys: Keys, index: int) -> Rows:
    gate = rows("attn_gate d heads*v_mla")
    attends = keys.integer("attention.head_count_kv", index)
    mixer = COMPRESSED_QUERY + LATENT + gate if attends else KIMI_DELTA
    is_dense = index < keys.integer("leading_dense_block_count")
    return KIMI_NORMS + mixer + (t.GATED_FFN if is_dense else KIMI_EXPERTS)


def _kimi_sizes(keys: Keys, layer: int) -> Sizes:
    sizes = latent_sizes(keys, layer)
    dim = keys.integer("kda.head_dim")
    return sizes | {
        "conv": keys.integer("ssm.conv_kernel"),
        "kda_dim": dim,
        "kda": dim * sizes["heads"],
        "latent": keys.integer("expert_latent_length"),
    }


KIMI = experts(
    attention__head_count_kv=(0, 0, 0, 1) * 2,
    attention__q_lora_rank=384,
    attention__kv_lora_rank=512,
    attention__key_length=576,
    attention__value_length=512,
    attention__key_length_mla=192,
    attention__value_length_mla=128,
    rope__dimension_count=64,
    kda__head_dim=128,
    ssm__conv_kernel=4,
    expert_shared_count=1,
    expert_gating_func=2,
    expert_latent_length=512,
    leading_dense_block_count=1,
    attn_res__block_size=4,
    activation__situ_beta=1.0,
    activation__situ_linear_beta=1.0,
)
POCKET = t.ATTENTION + t.NORM_BIAS + t.FFN_NORM + t.FFN_NORM_BIAS + t.PLAIN_FFN
ENCODER = rows("""
    attn_q d q
    attn_k d k
    attn_v d v
    attn_output d d
    attn_output_norm d
    attn_output_norm.bias d
    ffn_up d ff
    ffn_down ff d
    layer_output_norm d
    layer_output_norm.bias d
""")
ENCODER_BIASES = rows("attn_output.bias d\nffn_down.bias d")
ENCODER_EXPERTS = rows("""
    ffn_gate_inp d experts
    ffn_up_exps d ff experts
    ffn_down_exps ff d experts
""")


def _nomic_moe(keys: Keys, index: int) -> Rows:
    is_dense = index % keys.integer("moe_every_n_layers") != 1
    outside = tuple(row for row in ENCODER if not row[0].startswith("ffn_"))
    return ENCODER if is_dense else outside + ENCODER_EXPERTS


EMBEDDING_NORM = rows("token_embd_norm d\ntoken_embd_norm.bias d\ntoken_types d 2")
DREAM = t.ATTENTION + t.FFN_NORM + t.GATED_FFN
T5_HALF = """
    {0}.attn_norm d
    {0}.attn_q d k
    {0}.attn_k d k
    {0}.attn_v d v
    {0}.attn_o v d
    {0}.ffn_norm d
    {0}.ffn_gate d ff
    {0}.ffn_down ff d
    {0}.ffn_up d ff
"""
T5_CROSS = """
    {0}.cross_attn_norm d
    {0}.cross_attn_q d k
    {0}.cross_attn_k d k
    {0}.cross_attn_v d v
    {0}.cross_attn_o v d
"""


def _t5(keys: Keys) -> Rows:
    """Give all layers of both halves: their names do not start with `blk.`."""
    text = "enc.output_norm d\n"
    for index in range(keys.n_layers):
        text += T5_HALF.format(f"enc.blk.{index}").strip() + "\n"
    if keys.architecture == "t5encoder":
        return rows(text + "enc.blk.0.attn_rel_b heads 32")
    for index in range(keys.integer("decoder_block_count", default=keys.n_layers)):
        text += (T5_HALF.strip() + T5_CROSS).format(f"dec.blk.{index}").strip() + "\n"
    return rows(text + "enc.blk.0.attn_rel_b heads 32\ndec.blk.0.attn_rel_b heads 32\n"
                "dec.output_norm d")  # fmt: skip


T5 = uniform(extra=_t5, has_output_norm=False)
T5_KEYS = dense(
    context_length=512, attention__head_count_kv=16, attention__relative_buckets_count=32
)
QWEN3_LIKE = uniform(GATED, t.QK_NORM)
MIXED = uniform(t.ATTENTION, t.QK_NORM, t.FFN_NORM, t.EXPERTS)
WINDOWED = {
    "attention__sliding_window": 512,
    "attention__sliding_window_pattern": (True, False) * 4,
}
LATENT_KEYS = {
    "attention__head_count_kv": 1, "attention__q_lora_rank": 384, "attention__kv_lora_rank": 256,
    "attention__key_length": 320, "attention__value_length": 256,
    "attention__key_length_mla": 128, "attention__value_length_mla": 128,
    "rope__dimension_count": 64,
}  # fmt: skip

RARE = (
    Rare("deci", DECI, Layout(_deci)),
    Rare("maincoder", dense(), QWEN3_LIKE),
    Rare("hunyuan_vl", dense(), QWEN3_LIKE),
    Rare("qwen3tts", dense(rope__dimension_sections=(16, 24, 24, 0)), QWEN3_LIKE, n_vocab=3072),
    Rare("llama-embed", dense(), LAYOUTS["llama"]),
    Rare("paddleocr", dense(rope__dimension_sections=(16, 24, 24, 0)), LAYOUTS["llama"]),
    Rare("nanbeige", dense(num_loops=2), LAYOUTS["llama"]),
    Rare("chameleon", dense(), uniform(GATED, NORM_PER_HEAD)),
    Rare("cogvlm", dense(attention__head_count_kv=16), uniform(COGVLM)),
    Rare(
        "deepseek2-ocr",
        experts(leading_dense_block_count=1, expert_shared_count=2, attention__head_count_kv=16),
        LAYOUTS["deepseek"],
    ),
    Rare(
        "talkie",
        dense(attention__head_count_kv=16, logit_scale=1.0),
        uniform(TALKIE, has_output_norm=False),
    ),
    Rare("maple", experts(**WINDOWED, swiglu_clamp_exp=7.0), MIXED),
    Rare("spark2_5", dense(**WINDOWED), uniform(GATED, t.HEAD_GATE)),
    Rare(
        "hrm_text",
        dense(hrm__layers_per_stack=2, hrm__h_cycles=2, hrm__l_cycles=3, block_count=16),
        Layout(_hrm, extra=rows("hrm.z_l_init. d"), has_output_norm=False),
    ),
    Rare(
        "graniteswitch",
        dense(
            logit_scale=1.0,
            adapters__count=2,
            adapters__lora_rank=16,
            adapters__token_ids_activate=(5, 6),
            adapters__token_ids_substitute=(7, 8),
        ),
        uniform(SWITCH, sizes=_switch_sizes),
    ),
    Rare("mistral4", experts(**LATENT_KEYS, expert_shared_count=1, leading_dense_block_count=1)),
    Rare("dots3note", DOTS3, Layout(_dots3, sizes=_dots3_sizes)),
    Rare(
        "kimi-k3",
        KIMI | {"embedding_length": 4096, "expert_used_count": 16},
        Layout(_kimi, extra=rows("output_res_score d"), sizes=_kimi_sizes),
    ),
    Rare("kimi-k3", KIMI, Layout(_kimi, extra=rows("output_res_score d"), sizes=_kimi_sizes)),
    Rare(
        "pockettts",
        dense(),
        uniform(POCKET, extra=t.OUTPUT_NORM_BIAS),
        frozenset({"tied"}),
    ),
    Rare("t5", T5_KEYS, T5, n_vocab=32128),
    Rare("t5", T5_KEYS | {"decoder_block_count": 5}, T5, n_vocab=32128),
    Rare("t5encoder", T5_KEYS, T5, frozenset({"tied"}), n_vocab=32128),
    Rare("dream", dense(), uniform(DREAM)),
    Rare("llada", dense(), uniform(DREAM)),
    Rare("llada-moe", experts(), MIXED),
    Rare("rnd1", experts(), MIXED),
    Rare("eurobert", dense(), uniform(DREAM), frozenset({"tied"})),
    Rare(
        "jina-bert-v3",
        dense(attention__head_count_kv=16, tokenizer__ggml__token_type_count=2),
        uniform(ENCODER, extra=EMBEDDING_NORM, has_output_norm=False),
        frozenset({"tied"}),
    ),
    Rare(
        "jina-bert-v2",
        dense(attention__head_count_kv=16, tokenizer__ggml__token_type_count=2),
        uniform(
            ENCODER, t.GATED_FFN[:1], ENCODER_BIASES, extra=EMBEDDING_NORM, has_output_norm=False
        ),
        frozenset({"tied"}),
    ),
    Rare(
        "nomic-bert-moe",
        experts(
            attention__head_count_kv=16,
            tokenizer__ggml__token_type_count=2,
            moe_every_n_layers=2,
        ),
        Layout(_nomic_moe, extra=EMBEDDING_NORM, has_output_norm=False),
        frozenset({"tied"}),
    ),
    Rare(
        "nomic-bert",
        dense(attention__head_count_kv=16, tokenizer__ggml__token_type_count=2),
        uniform(ENCODER, t.GATED_FFN[:1], extra=EMBEDDING_NORM, has_output_norm=False),
        frozenset({"tied"}),
    ),
    Rare(
        "bert",
        dense(attention__head_count_kv=16, tokenizer__ggml__token_type_count=2),
        uniform(
            ENCODER, extra=EMBEDDING_NORM + rows("position_embd d 32768"), has_output_norm=False
        ),
        frozenset({"tied"}),
    ),
    Rare(
        "gemma-embedding",
        dense(attention__sliding_window=512),
        uniform(GATED, t.QK_NORM, t.POST_ATTENTION_NORM, t.POST_FFN_NORM),
        frozenset({"tied"}),
    ),
    Rare(
        "modern-bert",
        dense(attention__head_count_kv=16, attention__sliding_window=128),
        uniform(t.FUSED_ATTENTION, t.FFN_NORM, t.FUSED_GATED_FFN, extra=rows("token_embd_norm d")),
        frozenset({"tied"}),
    ),
    Rare(
        "neo-bert",
        dense(attention__head_count_kv=16),
        uniform(
            t.FUSED_ATTENTION, t.FFN_NORM, t.FUSED_GATED_FFN, extra=rows("enc.output_norm d"),
            has_output_norm=False,
        ),
        frozenset({"tied"}),
    ),
)  # fmt: skip
