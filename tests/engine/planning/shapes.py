"""Header-only models of any size, their weights in 4 bits."""

from pathlib import Path

from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import Model
from engine.model.ggml import TYPE_NUMBERS
from engine.model.gguf import Value
from tests.support.made_models import made_headers, made_model, written_model

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
    values: dict[str, Value] = {
        "block_count": sizes["n_layers"],
        "context_length": sizes["n_ctx_train"],
        "embedding_length": sizes["d_hidden"],
        "feed_forward_length": sizes["d_feed_forward"],
        "attention.head_count": sizes["n_heads"],
        "attention.head_count_kv": sizes["n_kv_heads"],
    }
    path, q4_k = folder / f"{name}.gguf", TYPE_NUMBERS["q4_K"]
    return made_model(path, "llama", values, n_vocab=sizes["n_vocab"], kind=q4_k)


def small_mixture(folder: Path) -> Model:
    """Give a model of Qwen 3's shape with 4 layers of 8 experts, 2 of which a token uses."""
    return written_model(folder / "moe.gguf", made_headers()["small mixture"])
