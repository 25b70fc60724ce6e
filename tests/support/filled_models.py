"""Models of a few layers with random weights, which llama.cpp loads and decodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.model.gguf import Value
from tests.support.made_models import ALIGNMENT, made_model

N_VOCAB = 3 + 256
VOCABULARY: dict[str, Value] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ("<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))),
    "tokenizer.ggml.scores": (0.0,) * N_VOCAB,
}
ATTENTION: dict[str, Value] = {
    "block_count": 2,
    "context_length": 4096,
    "embedding_length": 128,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
STATE_SPACE: dict[str, Value] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 256,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
}
SHAPES: Mapping[str, Mapping[str, Value]] = {
    "llama": ATTENTION,
    "qwen2": ATTENTION,
    "qwen3": {**ATTENTION, "attention.key_length": 64, "attention.value_length": 64},
    "mamba": {
        **ATTENTION,
        **STATE_SPACE,
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "feed_forward_length": 0,
    },
    "jamba": {
        **ATTENTION,
        **STATE_SPACE,
        "attention.head_count_kv": (0, 2),
    },
    "lfm2": {
        **ATTENTION,
        "attention.head_count_kv": (0, 2),
        "shortconv.l_cache": 3,
    },
    "gemma3": {
        **ATTENTION,
        "block_count": 6,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 32,
    },
    "qwen2vl": {**ATTENTION, "rope.dimension_sections": (4, 6, 6, 0)},
    "qwen3vl": {
        **ATTENTION,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_sections": (4, 6, 6, 0),
        "n_deepstack_layers": 1,
    },
    "gpt-oss": {
        **ATTENTION,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 32,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 64,
    },
    "rwkv7": {
        **ATTENTION,
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.decay_lora_rank": 16,
        "attention.iclr_lora_rank": 16,
        "attention.value_residual_mix_lora_rank": 16,
        "attention.gate_lora_rank": 16,
        "wkv.head_size": 64,  # llama.cpp with AVX-512 writes beyond the end of smaller heads
    },
    "qwen35": {
        **ATTENTION,
        **STATE_SPACE,
        "block_count": 4,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "full_attention_interval": 2,
        "rope.dimension_count": 32,
        "rope.dimension_sections": (4, 6, 6, 0),
        "ssm.inner_size": 128,
        "ssm.state_size": 32,
        "ssm.group_count": 2,
    },
    "deepseek2": {
        **ATTENTION,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank": 48,
        "attention.key_length": 64,
        "attention.value_length": 48,
        "attention.key_length_mla": 32,
        "attention.value_length_mla": 16,
        "rope.dimension_count": 16,
        "expert_count": 0,
        "expert_used_count": 0,
        "expert_shared_count": 0,
        "expert_feed_forward_length": 32,
        "leading_dense_block_count": 2,
        "vocab_size": N_VOCAB,
    },
}


def filled_model(path: Path, architecture: str, *, seed: int = 0, **changes: Value) -> Path:
    """Write a model of this architecture with random weights; its tokens are bytes."""
    values = {**SHAPES[architecture], **VOCABULARY, **changes}
    tensors = made_model(path, architecture, values, n_vocab=N_VOCAB).file.tensors
    rng = np.random.default_rng(seed)
    last = max(tensors, key=lambda tensor: tensor.offset)
    start = path.stat().st_size - last.offset - -(-last.nbytes // ALIGNMENT) * ALIGNMENT
    with path.open("r+b") as file:
        for tensor in tensors:
            file.seek(start + tensor.offset)
            file.write(_weights(tensor.name, tensor.shape, rng).astype("<f4").tobytes())
    return path


def _weights(name: str, shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape)
    if name.endswith("ssm_a"):
        return -rng.uniform(0.5, 1.5, shape)
    return rng.normal(0.0, 0.2, shape)
