"""What a configuration will suffer from, though llama.cpp accepts it."""

from engine.configuration import Configuration
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape
from engine.model.architecture import Model

CUDA_PAIRS = frozenset({"f16", "bf16", "q8_0", "q4_0"})
"""Types whose matched K/V pair has a CUDA flash-attention kernel in a default build
(`GGML_CUDA_FA_QUANTS`, llama.cpp 0c1e57098)."""


def warnings_for(
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    devices: tuple[Device, ...],
) -> tuple[str, ...]:
    """Give a sentence for each thing that the user should know before loading."""
    architecture = model.architecture
    found = []
    n_slot = shape.n_cells
    if n_slot > architecture.n_ctx_train:
        found.append(
            f"the context of {n_slot} tokens is longer than the {architecture.n_ctx_train} that "
            "the model was trained on: quality falls behind them unless RoPE is scaled"
        )
    on_gpu = configuration.n_gpu_layers != 0 and any(d.kind == "gpu" for d in devices)
    k, v = configuration.type_k, configuration.type_v
    if on_gpu and (k != v or k not in CUDA_PAIRS) and configuration.flash_attention != "off":
        found.append(
            f"K {k} with V {v} has no kernel in a default CUDA build: attention falls back to a "
            "slow path; use f16, bf16, q8_0 or q4_0 for both"
        )
    if on_gpu and shape.flash_attention and {k, v} - {"f16", "bf16", "f32"}:
        found.append(
            "on CUDA, prefill copies one layer of a quantised cache to f16: some hundred MiB more "
            "at long contexts, not counted here"
        )
    found += [f"{architecture.name}: {doubt}" for doubt in architecture.doubts]
    return tuple(found)
