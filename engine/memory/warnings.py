"""What a configuration will suffer from, though llama.cpp accepts it.

Causes as measured or read in llama.cpp 0c1e57098 and its issues 28455, 27109, 24166 and 28524.

A context beyond training needs scaled rotary positions: YaRN (Peng et al. 2023, arXiv 2309.00071)
takes the factor and the context that the positions were trained on; with it llama-server counts
their product as the training context, without it it cuts each slot to training
(`src/llama-context.cpp`, `server-context.cpp`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from engine.configuration import Configuration
from engine.memory.cuda_kernels import falls_off_flash_attention, without_cuda_kernel
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, is_quantized, layer_state_bytes
from engine.memory.units import MIB, format_bytes
from engine.model.architecture import Architecture, Model

CUDA_PAIRS = frozenset({"f16", "bf16", "q8_0", "q4_0"})
"""Types whose matched K/V pair has a CUDA flash-attention kernel in a default build
(`GGML_CUDA_FA_QUANTS`, llama.cpp 0c1e57098)."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How positions must be scaled for a context."""

    factor: float
    """Context over what the positions were trained on, in quarters."""
    n_ctx_original: int
    """Tokens that the positions were trained on, before any scaling."""

    @property
    def arguments(self) -> list[str]:
        """Arguments of llama.cpp's programs."""
        return [
            "--rope-scaling", "yarn", "--rope-scale", f"{self.factor:g}",
            "--yarn-orig-ctx", str(self.n_ctx_original),
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Situation:
    """What a warning looks at."""

    model: Model
    configuration: Configuration
    shape: CacheShape
    devices: tuple[Device, ...]
    is_kvchat: bool

    @property
    def architecture(self) -> Architecture:
        """What the model's layers keep."""
        return self.model.architecture

    @property
    def on_gpu(self) -> bool:
        """Whether some layer runs on a GPU."""
        has_gpu = any(device.kind == "gpu" for device in self.devices)
        return self.configuration.n_gpu_layers != 0 and has_gpu

    @property
    def on_cuda(self) -> bool:
        """Whether some layer may run by CUDA."""
        return self.on_gpu and any(device.runs_cuda for device in self.devices)


def warnings_for(
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    devices: tuple[Device, ...],
    *,
    is_kvchat: bool = True,
) -> tuple[str, ...]:
    """A sentence for each thing that the user should know before loading."""
    now = Situation(model, configuration, shape, devices, is_kvchat)
    found = [text for rule in RULES if (text := rule(now))]
    return (*found, *(f"{now.architecture.name}: {doubt}" for doubt in now.architecture.doubts))


def rope_warning(model: Model, n_ctx_slot: int, *, is_kvchat: bool) -> str | None:
    """What a context beyond training needs; None where it is within."""
    scaling = rope_scaling(model, n_ctx_slot)
    if scaling is None:
        return None
    trained = model.architecture.n_ctx_train
    flags = " ".join(scaling.arguments)
    beyond = f"the context of {n_ctx_slot:,} tokens exceeds the training context of {trained:,}"
    if is_kvchat:
        return f"{beyond}: replies get worse after that; llama-server can scale RoPE with {flags}"
    return (
        f"{beyond}: add {flags}, or llama-server limits each slot to {trained:,}; short texts lose "
        "a little quality"
    )


def rope_scaling(model: Model, n_ctx_slot: int) -> RopeScaling | None:
    """The scaling that a context of one slot needs; None within what was trained on."""
    trained = model.architecture.n_ctx_train
    if n_ctx_slot <= trained:
        return None
    key = f"{model.file.architecture}.rope.scaling.original_context_length"
    original = model.file.integer(key) or trained
    return RopeScaling(ceil(n_ctx_slot / original * 4) / 4, original)


def _beyond_training(now: Situation) -> str:
    return rope_warning(now.model, now.shape.n_cells, is_kvchat=now.is_kvchat) or ""


def _slow_pair(now: Situation) -> str:
    k, v = now.configuration.type_k, now.configuration.type_v
    if not (now.on_cuda and now.shape.flash_attention) or (k == v and k in CUDA_PAIRS):
        return ""
    if "iq4_nl" in (k, v):
        return "CUDA has no flash attention for iq4_nl: attention runs on the CPU; use q4_0"
    return (
        f"K {k} with V {v} has no kernel in a default CUDA build: attention falls back to a "
        "slow path; use f16, bf16, q8_0 or q4_0 for both"
    )


def _no_kernel(now: Situation) -> str:
    """Warn of heads that CUDA's flash attention does not know."""
    layers = without_cuda_kernel(now.architecture)
    if not now.on_cuda or not layers:
        return ""
    heads = ", ".join(
        f"{layer.k_head_dim} elements, {layer.n_heads // layer.n_kv_heads} for each key head"
        for layer in layers
    )
    if falls_off_flash_attention(now.architecture, now.configuration, now.devices):
        return (
            f"CUDA has no flash attention for heads of {heads}: `auto` turns it off there and "
            "stores the scores"
        )
    if now.shape.flash_attention:
        return f"CUDA has no flash attention for heads of {heads}: attention runs on the CPU"
    return ""


def _quantized_keys_alone(now: Situation) -> str:
    if now.shape.flash_attention or not is_quantized(now.configuration.type_k):
        return ""
    return (
        f"without flash attention, {now.configuration.type_k} keys are dequantised for every "
        "token, and values cannot be quantised"
    )


def _cache_in_main_memory(now: Situation) -> str:
    if not now.on_gpu or now.configuration.offload_kqv or not now.architecture.layers:
        return ""
    return "the KV cache is in RAM: attention runs on the CPU and slows down with the context"


def _windows_of_slots(now: Situation) -> str:
    """Warn of the windows that a shared cache keeps for every slot."""
    slides = any(layer.window is not None for layer in now.architecture.distinct_layers)
    if not slides or not now.shape.kv_unified or now.shape.n_slots < 2 or now.shape.swa_full:
        return ""
    return (
        f"sliding-window layers need a window for each of the {now.shape.n_slots} slots: "
        "fewer slots need less memory"
    )


def _states_of_slots(now: Situation) -> str:
    states = sum(layer_state_bytes(now.architecture, now.shape).values())
    if now.shape.n_slots < 2 or states < 64 * MIB:
        return ""
    one = states // now.shape.n_slots
    return (
        f"each slot has its own recurrent state: {now.shape.n_slots} slots take "
        f"{format_bytes(states)}, one would take {format_bytes(one)}"
    )


def _mapped_experts(now: Situation) -> str:
    configuration = now.configuration
    moved = configuration.n_cpu_moe or configuration.tensor_overrides
    if not (moved and now.on_gpu and configuration.use_mmap):
        return ""
    how = "use_mmap = false in the preset" if now.is_kvchat else "--load-mode none"
    return (
        f"with tensors in RAM llama.cpp is faster without mmap: {how}; kvchat does not set "
        "it because the system cannot reclaim that memory then"
    )


def _no_experts(now: Situation) -> str:
    if not now.configuration.n_cpu_moe or now.architecture.n_experts:
        return ""
    return "the model has no experts: the setting for CPU experts has no effect"


def _unused_main_gpu(now: Situation) -> str:
    """Warn of a main GPU where all GPUs share the layers, as llama.cpp does by default."""
    if not now.configuration.main_gpu or now.configuration.split_mode == "none":
        return ""
    return (
        f"main GPU {now.configuration.main_gpu} has no effect while the layers are split: "
        "put all layers on it with --split-mode none"
    )


def _no_head(now: Situation) -> str:
    n_draft = now.configuration.n_mtp_draft
    if not n_draft:
        return ""
    if not now.architecture.head_layers:
        return f"n_mtp_draft is {n_draft}, but the model has no MTP head"
    if now.is_kvchat:
        return "kvchat does not draft with the model's MTP head: only llama-server does"
    return ""


RULES: tuple[Callable[[Situation], str], ...] = (
    _beyond_training,
    _slow_pair,
    _no_kernel,
    _quantized_keys_alone,
    _cache_in_main_memory,
    _windows_of_slots,
    _states_of_slots,
    _mapped_experts,
    _no_experts,
    _unused_main_gpu,
    _no_head,
)
