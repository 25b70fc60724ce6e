"""What slots cost: sequences that a context holds side by side."""

from dataclasses import replace

from engine.configuration import Configuration
from engine.memory.estimate import shape_for
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, layer_kv_bytes, layer_state_bytes
from engine.memory.units import format_bytes
from engine.model.architecture import Architecture


def slot_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the bytes of cache and state that one further slot takes.

    Slots of their own cells get as many as the others have. Where cells are shared a further slot
    takes none, save for the windows and states that llama.cpp keeps for each.

    Raises:
        PresetError: a combination that llama.cpp refuses.
    """
    n_slots = shape.n_slots + 1
    n_ctx = shape.n_ctx if shape.kv_unified else shape.n_cells * n_slots
    more = replace(shape, n_slots=n_slots, n_ctx=n_ctx)
    return _bytes(architecture, more) - _bytes(architecture, shape)


def slots_text(
    architecture: Architecture, configuration: Configuration, devices: tuple[Device, ...]
) -> str:
    """Say what kvchat's slots share, and the price of a further one."""
    shape = shape_for(architecture, configuration, "kvchat", devices)
    price, n_slots = slot_bytes(architecture, shape), shape.n_slots
    if shape.kv_unified:
        cost = f"takes {format_bytes(price)}" if price else "takes no more memory"
        return (
            f"{n_slots} slots share {shape.n_cells:,} cells and hold a common start once, a "
            f"further one {cost}: neighbours change each other's rounding, so a reply may differ "
            "from one that was made alone"
        )
    return (
        f"{n_slots} slots have {shape.n_cells:,} tokens of context each, a further one as long "
        f"takes {format_bytes(price)}"
    )


def _bytes(architecture: Architecture, shape: CacheShape) -> int:
    kv_bytes = layer_kv_bytes(architecture, shape)
    return sum(kv_bytes.values()) + sum(layer_state_bytes(architecture, shape).values())
