"""What to do about an estimate, in a sentence with numbers."""

from collections.abc import Callable
from dataclasses import replace

from engine.configuration import Configuration, KVTypeName
from engine.errors import PresetError
from engine.memory.estimate import Estimate
from engine.memory.fit import max_n_ctx
from engine.memory.units import format_bytes
from engine.model.architecture import Model

COARSER: tuple[KVTypeName, ...] = ("q8_0", "q4_0")
Cost = Callable[[Configuration], Estimate]


def recommendation(model: Model, estimate: Estimate, margin_bytes: int, cost: Cost) -> str:
    """Say whether a configuration fits, and what would make it or the context larger.

    Args:
        model: What is planned for.
        estimate: Its cost.
        margin_bytes: Memory to keep free on every device.
        cost: The cost of other configurations of the same model and machine.
    """
    if estimate.fits(margin_bytes):
        return _while_it_fits(model, estimate, margin_bytes, cost)
    short = [d for d in estimate.devices if d.total_bytes and d.left_bytes < margin_bytes]
    where = " and ".join(
        f"{d.device.name} lacks {format_bytes(margin_bytes - d.left_bytes)}" for d in short
    )
    return f"It does not fit: {where}. {_remedy(estimate, margin_bytes, cost)}"


def _while_it_fits(model: Model, estimate: Estimate, margin_bytes: int, cost: Cost) -> str:
    now = estimate.configuration
    limit = model.architecture.n_ctx_train * now.n_slots
    if now.n_ctx > limit:
        return f"It fits, but the model was trained on {limit:,} tokens: scale RoPE, or lower n_ctx"
    largest = max_n_ctx(now, cost, n_ctx_limit=limit, margin_bytes=margin_bytes) or now.n_ctx
    if largest >= limit:
        return f"It fits, and so would all {limit:,} tokens that the model was trained on."
    if largest > now.n_ctx:
        return f"It fits; up to {largest:,} tokens of context would."
    return "It fits, and no more context would."


def _remedy(estimate: Estimate, margin_bytes: int, cost: Cost) -> str:
    now = estimate.configuration
    if now.type_k not in COARSER or now.type_v not in COARSER:
        for name in COARSER:
            coarser = replace(now, type_k=name, type_v=name, flash_attention="on")
            if _fits(coarser, margin_bytes, cost):
                return f"A cache of {name} for keys and values fits."
    largest = max_n_ctx(now, cost, n_ctx_limit=now.n_ctx, margin_bytes=margin_bytes)
    if largest is not None:
        return f"A context of {largest:,} tokens fits."
    if now.n_gpu_layers != 0 and _fits(replace(now, n_gpu_layers=0), margin_bytes, cost):
        return "With layers in main memory (offload partial or full) it fits."
    return "Choose a smaller quantisation or a smaller model."


def _fits(configuration: Configuration, margin_bytes: int, cost: Cost) -> bool:
    try:
        return cost(configuration).fits(margin_bytes)
    except PresetError:
        return False  # llama.cpp would refuse it: no remedy
