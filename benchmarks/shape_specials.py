"""What single architectures need of a drawn model beside the common keys.

Sizes that must agree are from llama.cpp's model files (0c1e57098, src/models).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.model.gguf import Value

if TYPE_CHECKING:
    from shape_keys import Drawing

Keys = dict[str, Value]


def _llama4(drawing: "Drawing") -> Keys:
    return {"block_count": max(drawing.number("block_count") // 4 * 4, 4)}


def _gemma4(drawing: "Drawing") -> Keys:
    head_dim = drawing.one_of(128, 256)
    return {
        "embedding_length_per_layer_input": drawing.one_of(0, 256),
        "attention.shared_kv_layers": drawing.one_of(0, drawing.number("block_count") // 2),
        "attention.key_length": 2 * head_dim,
        "attention.value_length": 2 * head_dim,
        "attention.key_length_swa": head_dim,
        "attention.value_length_swa": head_dim,
        "rope.dimension_count": 2 * head_dim,
        "rope.dimension_count_swa": head_dim,
        "final_logit_softcapping": 30.0,
    }


def _gemma3n(drawing: "Drawing") -> Keys:
    return {"block_count": drawing.one_of(30, 35), "attention.sliding_window_pattern": 5}


def _deepseek2(drawing: "Drawing") -> Keys:
    """A third as in files from before latent caches: keys and values unpacked."""
    if drawing.happens(0.66):
        return {}
    return {
        "attention.head_count_kv": drawing.keys["attention.head_count"],
        "attention.key_length": drawing.keys["attention.key_length_mla"],
        "attention.value_length": drawing.keys["attention.value_length_mla"],
        "attention.key_length_mla": 0,
        "attention.value_length_mla": 0,
    }


def _deepseek4(drawing: "Drawing") -> Keys:
    n_layers = drawing.number("block_count")
    ratios = (0, 0, *(drawing.one_of(4, 128) for _ in range(n_layers)))
    head_dim = drawing.one_of(64, 128, 512)
    n_heads = drawing.one_of(8, 16, 64)
    return {
        "attention.head_count": n_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": 32 if head_dim == 64 else 64,
        "attention.q_lora_rank": drawing.one_of(64, 512, 1024),
        "attention.output_group_count": 8,
        "attention.output_lora_rank": drawing.one_of(32, 512, 1024),
        "attention.compress_ratios": ratios[:n_layers],
        "attention.compress_rope_freq_base": 160000.0,
        "attention.sliding_window": 128,
        "hash_layer_count": drawing.one_of(0, 2),
        "expert_gating_func": 4,
        "nextn_predict_layers": 0,
    }


def _dots3note(drawing: "Drawing") -> Keys:
    rank = drawing.one_of(256, 512)
    return {
        "attention.kv_lora_rank_swa": rank,
        "attention.key_length_swa": rank + 64,
        "attention.value_length_swa": rank,
        "attention.key_length_mla_swa": drawing.keys["attention.key_length_mla"],
        "attention.value_length_mla_swa": drawing.keys["attention.value_length_mla"],
    }


def _plm(drawing: "Drawing") -> Keys:
    """Values share the width, keys have a rotated part more."""
    value = 128
    return {
        "attention.head_count": drawing.number("embedding_length") // value,
        "attention.head_count_kv": drawing.number("embedding_length") // value,
        "attention.key_length": value + 64,
        "attention.value_length": value,
        "rope.dimension_count": 64,
    }


def _unpacked_latent(drawing: "Drawing") -> Keys:
    """Keys of a plain and a rotated part, as MiniCPM3 has them."""
    n_heads = drawing.one_of(8, 16, 40)
    return {
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_heads,
        "attention.key_length": drawing.one_of(64, 128) + 32,
        "attention.value_length": drawing.one_of(64, 128),
        "rope.dimension_count": 32,
    }


def _linear_attention(drawing: "Drawing") -> Keys:
    """Gated delta nets as of Qwen3-Next: value heads are a multiple of key heads."""
    n_keys, head_dim = drawing.one_of(2, 8, 16), drawing.one_of(64, 128)
    n_values = n_keys * drawing.one_of(1, 2)
    return {
        "ssm.state_size": head_dim,
        "ssm.group_count": n_keys,
        "ssm.time_step_rank": n_values,
        "ssm.inner_size": n_values * head_dim,
        "rope.dimension_sections": (11, 11, 10, 0),
        "rope.dimension_count": 64,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.indexer.key_length": drawing.one_of(64, 128),
    }


def _qwen4exp(drawing: "Drawing") -> Keys:
    n_layers = drawing.number("block_count")
    found = _linear_attention(drawing)
    found["attention.compress_ratios"] = (drawing.one_of(0, 4, 8),) * n_layers
    if drawing.happens(0.5):
        n_rows = drawing.number("vocab_size")
        found |= {
            "ple.layers": (0,),
            "ple.ngram_size": 3,
            "ple.heads_per_ngram": 2,
            "ple.conv_kernel": 4,
            "ple.eos_token_id": 0,
            "embedding_length_per_layer_input": drawing.number("embedding_length") // 4,
            "ple.layer_multipliers": (1, 3, 5),
            "ple.head_offsets": tuple(n_rows * i for i in range(4)),
            "ple.head_vocab_sizes": (n_rows,) * 4,
        }
    return found


def _hrm(drawing: "Drawing") -> Keys:
    n_stack = drawing.one_of(1, 4)
    return {"block_count": n_stack * 6, "hrm.layers_per_stack": n_stack, "hrm.h_cycles": 2,
            "hrm.l_cycles": 2}  # fmt: skip


def _minimax_m3(drawing: "Drawing") -> Keys:
    return {
        "attention.indexer.head_count": drawing.keys["attention.head_count_kv"],
        "attention.indexer.top_k": drawing.one_of(8, 16, 32),
        "rope.dimension_count": 64,
        "attention.indexer.key_length": drawing.one_of(64, 128),
    }


def _mamba(drawing: "Drawing") -> Keys:
    width = drawing.number("embedding_length")
    return {"ssm.time_step_rank": max(width // 16, 1), "ssm.state_size": 16}


def _deci(drawing: "Drawing") -> Keys:
    """Layers without attention, and of unlike widths, as in the Nemotron models."""
    n_layers, n_ff = drawing.number("block_count"), drawing.number("feed_forward_length")
    n_heads, n_kv = (
        drawing.number("attention.head_count"),
        drawing.number("attention.head_count_kv"),
    )
    kinds = [drawing.one_of("full", "full", "no attention", "linear") for _ in range(n_layers)]
    kinds[0] = "full"
    return {
        "attention.head_count": tuple(n_heads * (kind != "no attention") for kind in kinds),
        "attention.head_count_kv": tuple(n_kv if kind == "full" else 0 for kind in kinds),
        "feed_forward_length": tuple(n_ff // drawing.one_of(1, 1, 2) for _ in kinds),
    }


def _openelm(drawing: "Drawing") -> Keys:
    n_layers, n_ff = drawing.number("block_count"), drawing.number("feed_forward_length")
    n_kv = [drawing.one_of(2, 4) for _ in range(n_layers)]
    return {
        "attention.head_count": tuple(4 * n for n in n_kv),
        "attention.head_count_kv": tuple(n_kv),
        "attention.key_length": 64,
        "attention.value_length": 64,
        "rope.dimension_count": 64,
        "feed_forward_length": tuple(
            round(n_ff * (0.5 + i / n_layers) / 64) * 64 for i in range(n_layers)
        ),
    }


def _granite_switch(drawing: "Drawing") -> Keys:
    n_adapters = drawing.one_of(2, 8)
    return {
        "adapters.count": n_adapters,
        "adapters.lora_rank": drawing.one_of(8, 32),
        "adapters.token_ids_activate": tuple(range(100, 100 + n_adapters)),
        "adapters.token_ids_substitute": (1,) * n_adapters,
    }


def _nanbeige(drawing: "Drawing") -> Keys:
    return {"num_loops": drawing.one_of(1, 2, 3)}


def _falcon_h1(drawing: "Drawing") -> Keys:
    return {"ssm.state_size": drawing.one_of(64, 128, 256)}


def _t5(drawing: "Drawing") -> Keys:
    return {"decoder_block_count": drawing.keys["block_count"], "context_length": 512}


SPECIAL: dict[str, Callable[["Drawing"], Keys]] = {
    "llama4": _llama4,
    "gemma4": _gemma4,
    "gemma3n": _gemma3n,
    "deepseek2": _deepseek2,
    "deepseek4": _deepseek4,
    "dots3note": _dots3note,
    "minicpm3": _unpacked_latent,
    "plm": _plm,
    "qwen3next": _linear_attention,
    "qwen35": _linear_attention,
    "qwen35moe": _linear_attention,
    "qwen4exp": _qwen4exp,
    "hrm_text": _hrm,
    "minimax-m3": _minimax_m3,
    "mamba": _mamba,
    "jamba": _mamba,
    "deci": _deci,
    "openelm": _openelm,
    "graniteswitch": _granite_switch,
    "nanbeige": _nanbeige,
    "falcon-h1": _falcon_h1,
    "t5": _t5,
}

FIXED: dict[str, Keys] = {
    "mimo2": {
        "attention.key_length": 192,
        "attention.value_length": 128,
        "rope.dimension_count": 64,
    },
    "rwkv6qwen2": {"token_shift_count": 1},
    "arwkv7": {"token_shift_count": 1},
    "plamo2": {"ssm.group_count": 0, "ssm.state_size": 64},
    "chameleon": {"vocab_size": 65536},
    "qwen3tts": {"vocab_size": 151936},
}
