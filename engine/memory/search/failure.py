"""Why nothing fits, with the numbers of the smallest choice."""

from dataclasses import replace

from engine.errors import PresetError
from engine.memory.search.goals import Limits, Offload, pair_label
from engine.memory.search.space import Space
from engine.memory.units import format_bytes
from engine.model.architecture import Model


def why_nothing_fits(space: Space, model: Model, limits: Limits) -> str:
    """Say what is short on which device with the smallest choice, and what to change."""
    smallest = replace(space.choices()[-1], placement=len(space.placements) - 1)
    try:
        estimate = space.estimate(smallest, space.least)
    except PresetError as refusal:
        return str(refusal)
    short = [d for d in estimate.devices if d.total_bytes and d.left_bytes < space.margin_bytes]
    where = "; ".join(
        f"{d.device.name} would hold {format_bytes(d.total_bytes)} and has "
        f"{format_bytes(d.device.free_bytes)} free"
        for d in short
    )
    pair = pair_label(space.pairs[smallest.pair])
    least = f"{space.tokens(space.least):,} tokens of {pair} cache"
    return (
        f"{model.file.name} does not fit with {least} and "
        f"{format_bytes(space.margin_bytes)} kept free on each device: {where}. {_advice(limits)}"
    )


def _advice(limits: Limits) -> str:
    changes = ["a smaller quantisation or model", "a smaller margin"]
    if limits.min_n_ctx is not None:
        changes.insert(0, "a smaller least context")
    if limits.offload is Offload.NONE:
        changes.insert(0, "layers in main memory (offload partial)")
    return f"Choose {', '.join(changes[:-1])} or {changes[-1]}"
