"""Header-only models of any shape, their weights in 4 bits."""

from math import prod
from pathlib import Path

from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import Model, read_model
from tests.support.gguf_files import header, write

F32, Q4_K = 0, 12
RAM = Device("CPU", "cpu", 64 * GIB, 60 * GIB)


def gpu(gib: float, index: int = 0) -> Device:
    """Give a GPU that is all free."""
    nbytes = round(gib * GIB)
    return Device(f"GPU {index}", "gpu", nbytes, nbytes)


def dense_model(folder: Path, *, name: str = "dense", **changes: int) -> Model:
    """Give a model of Llama's shape: 8B unless sizes are changed."""
    sizes = {
        "n_layers": 32, "d_hidden": 4096, "d_feed_forward": 14336, "n_heads": 32, "n_kv_heads": 8,
        "n_vocab": 128256, "n_ctx_train": 131072, **changes,
    }  # fmt: skip
    d, ff = sizes["d_hidden"], sizes["d_feed_forward"]
    per_layer = {"ffn_up": (d, ff), "ffn_gate": (d, ff), "ffn_down": (ff, d)}
    return _model(folder / f"{name}.gguf", "llama", sizes, per_layer, {})


def moe_model(folder: Path, *, name: str = "moe", **changes: int) -> Model:
    """Give a model of Qwen 3's shape with experts: 30B-A3B unless sizes are changed."""
    sizes = {
        "n_layers": 48, "d_hidden": 2048, "d_feed_forward": 6144, "n_heads": 32, "n_kv_heads": 4,
        "n_vocab": 151936, "n_ctx_train": 40960, "n_experts": 128, "n_experts_used": 8,
        "d_expert": 768, **changes,
    }  # fmt: skip
    d, n, ff = sizes["d_hidden"], sizes["n_experts"], sizes["d_expert"]
    per_layer = {
        "ffn_gate_inp": (d, n), "ffn_up_exps": (d, ff, n), "ffn_gate_exps": (d, ff, n),
        "ffn_down_exps": (ff, d, n), "attn_q_norm": (128,), "attn_k_norm": (128,),
    }  # fmt: skip
    keys = {
        "expert_count": n,
        "expert_used_count": sizes["n_experts_used"],
        "expert_feed_forward_length": ff,
        "attention.key_length": 128,
        "attention.value_length": 128,
    }
    return _model(folder / f"{name}.gguf", "qwen3moe", sizes, per_layer, keys)


def _model(
    path: Path,
    architecture: str,
    sizes: dict[str, int],
    feed_forward: dict[str, tuple[int, ...]],
    keys: dict[str, int],
) -> Model:
    d, n_vocab = sizes["d_hidden"], sizes["n_vocab"]
    head_dim = keys.get("attention.key_length", d // sizes["n_heads"])
    q, kv = head_dim * sizes["n_heads"], head_dim * sizes["n_kv_heads"]
    per_layer = {
        "attn_q": (d, q), "attn_k": (d, kv), "attn_v": (d, kv), "attn_output": (q, d),
        "attn_norm": (d,), "ffn_norm": (d,), **feed_forward,
    }  # fmt: skip
    shapes = {"token_embd": (d, n_vocab), "output": (d, n_vocab), "output_norm": (d,)}
    for layer in range(sizes["n_layers"]):
        shapes |= {f"blk.{layer}.{part}": shape for part, shape in per_layer.items()}
    tensors, offset = [], 0
    for tensor, shape in shapes.items():
        kind = Q4_K if len(shape) > 1 else F32
        tensors.append((f"{tensor}.weight", shape, kind, offset))
        nbytes = prod(shape) * 144 // 256 if kind == Q4_K else prod(shape) * 4
        offset += -(-nbytes // 32) * 32
    values: dict[str, object] = {
        "block_count": sizes["n_layers"],
        "context_length": sizes["n_ctx_train"],
        "embedding_length": d,
        "feed_forward_length": sizes["d_feed_forward"],
        "attention.head_count": sizes["n_heads"],
        "attention.head_count_kv": sizes["n_kv_heads"],
        "vocab_size": n_vocab,
        **keys,
    }
    named = {f"{architecture}.{key}": value for key, value in values.items()}
    named["general.architecture"] = architecture
    named["tokenizer.ggml.tokens"] = ["a"] * n_vocab
    return read_model(write(path, header(named, tensors), data_bytes=offset))
