"""Configurations that llama.cpp aborts on, and those that it runs slowly or badly.

Read from llama.cpp 0c1e57098 and its issues 28455, 27109, 24166 and 28524.
"""

from collections.abc import Iterator
from math import ceil

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.compute import falls_off_flash_attention, without_cuda_kernel
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, is_quantized
from engine.model.architecture import Architecture, Model

CUDA_PAIRS = frozenset({"f16", "bf16", "q8_0", "q4_0"})
"""Types whose matched K/V pair has a CUDA flash-attention kernel in a default build
(`GGML_CUDA_FA_QUANTS`)."""


def check_not_aborted(model: Model, shape: CacheShape) -> None:
    """Raise `PresetError` if llama.cpp aborts (`src/llama-context.cpp`, `t5.cpp`)."""
    architecture, reason = model.architecture, ""
    for layer in architecture.distinct_layers:
        if layer.n_kv_heads and layer.n_heads % layer.n_kv_heads:
            reason = (
                f"{layer.n_heads} query heads of a layer cannot be divided evenly among "
                f"{layer.n_kv_heads} key heads: the header is damaged"
            )
    if architecture.has_position_bias and architecture.layers and shape.n_streams > 1:
        reason = reason or (
            f"{architecture.name} adds a position bias to attention scores, which "
            f"{shape.n_streams} separate caches do not support: use one slot, or let the slots "
            "share one cache (kv_unified)"
        )
    if architecture.family.wants_equal_slots and shape.n_batch_tokens % shape.n_streams:
        reason = reason or (
            f"{architecture.name} requires a ubatch size divisible by the number of slots, but "
            f"{shape.n_batch_tokens} is not divisible by {shape.n_slots}: use another number of "
            "slots, or let them share one cache (kv_unified)"
        )
    if reason:
        raise PresetError(f"llama.cpp aborts with this configuration: {reason}")


def warnings_for(
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    devices: tuple[Device, ...],
    *,
    is_kvchat: bool,
) -> Iterator[str]:
    """A sentence for each problem that the user should know before loading."""
    architecture, n_draft = model.architecture, configuration.n_mtp_draft
    on_gpu = configuration.n_gpu_layers != 0 and any(device.kind == "gpu" for device in devices)
    is_moved = configuration.n_cpu_moe or configuration.tensor_overrides
    yield from rope_warnings(model, shape.n_cells, is_kvchat=is_kvchat)
    if on_gpu and any(device.runs_cuda for device in devices):
        yield from _of_cuda(architecture, configuration, shape, devices)
    if on_gpu and not configuration.offload_kqv and architecture.layers:
        yield "the KV cache is in RAM: attention runs on the CPU and slows down with the context"
    if on_gpu and configuration.use_mmap and is_moved:
        how = "use_mmap = false in the preset" if is_kvchat else "--load-mode none"
        yield (
            f"with tensors in RAM, llama.cpp is faster without mmap ({how}); kvchat leaves "
            "mmap on, so that the system can reclaim that memory"
        )
    if configuration.n_cpu_moe and not architecture.n_experts:
        yield "the model has no experts, so n_cpu_moe has no effect"
    if not shape.flash_attention and is_quantized(configuration.type_k):
        yield (
            f"without flash attention, {configuration.type_k} keys are dequantised for every "
            "token, and values cannot be quantised"
        )
    if n_draft and not architecture.head_layers:
        yield f"n_mtp_draft is {n_draft}, but the model has no MTP head"
    elif n_draft and is_kvchat:
        yield "llama-server can draft with the model's MTP head, but kvchat cannot"
    yield from (f"{architecture.name}: {doubt}" for doubt in architecture.doubts)


def rope_warnings(model: Model, n_ctx_slot: int, *, is_kvchat: bool) -> Iterator[str]:
    """Warnings about slots with a context beyond the training context.

    llama-server limits each slot to the training context unless it scales RoPE. YaRN (Peng et al.
    2023, arXiv 2309.00071) takes the factor, in quarters, and the context of the training.
    """
    trained = model.architecture.n_ctx_train
    if n_ctx_slot <= trained:
        return
    key = f"{model.file.architecture}.rope.scaling.original_context_length"
    original = model.file.integer(key) or trained
    factor = ceil(n_ctx_slot / original * 4) / 4
    flags = f"--rope-scaling yarn --rope-scale {factor:g} --yarn-orig-ctx {original}"
    beyond = f"the context of {n_ctx_slot:,} tokens exceeds the training context of {trained:,}"
    if is_kvchat:
        yield (
            f"{beyond}: replies get worse beyond {trained:,}; llama-server can scale RoPE "
            f"with {flags}"
        )
    else:
        yield (
            f"{beyond}: add {flags} (short texts lose a little quality); otherwise llama-server "
            f"limits each slot to {trained:,}"
        )


def _of_cuda(
    architecture: Architecture,
    configuration: Configuration,
    shape: CacheShape,
    devices: tuple[Device, ...],
) -> Iterator[str]:
    """Warn of K/V types and head sizes without a CUDA flash-attention kernel."""
    k, v = configuration.type_k, configuration.type_v
    if shape.flash_attention and "iq4_nl" in (k, v):
        yield "CUDA has no flash attention kernel for iq4_nl: attention runs on the CPU; use q4_0"
    elif shape.flash_attention and (k != v or k not in CUDA_PAIRS):
        yield (
            f"a default CUDA build has no kernel for K {k} with V {v}, so attention takes a "
            "slow path: use f16, bf16, q8_0 or q4_0 for both K and V"
        )
    heads = ", ".join(
        f"head size {layer.k_head_dim} with {layer.n_heads // layer.n_kv_heads} query heads per "
        "key head"
        for layer in without_cuda_kernel(architecture)
    )
    if heads and falls_off_flash_attention(architecture, configuration, devices):
        yield (
            f"CUDA has no flash attention kernel for {heads}: `auto` turns flash attention "
            "off, so the attention scores need extra memory"
        )
    elif heads and shape.flash_attention:
        yield f"CUDA has no flash attention kernel for {heads}: attention runs on the CPU"
