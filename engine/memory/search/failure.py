"""Why nothing fits, with the numbers of the smallest choice."""

from dataclasses import replace

from engine.errors import PresetError
from engine.memory.estimate import Estimate
from engine.memory.fit import DoesNotFitError
from engine.memory.search.goals import Limits, Offload, pair_label
from engine.memory.search.space import Space
from engine.memory.units import format_bytes
from engine.model.architecture import Model


def nothing_fits(space: Space, model: Model, limits: Limits) -> PresetError:
    """Give the error that says what is short on which device with the smallest choice.

    Where llama.cpp would refuse every choice, the error is its reason.
    """
    last = len(space.placements) - 1
    refusal: PresetError | None = None
    for knobs in reversed(space.choices()):  # the smallest come last
        try:
            estimate = space.estimate(replace(knobs, placement=last), space.least)
        except PresetError as error:
            refusal = error
        else:
            return DoesNotFitError(_shortage(space, model, limits, estimate))
    assert refusal is not None
    return refusal


def _shortage(space: Space, model: Model, limits: Limits, estimate: Estimate) -> str:
    short = [d for d in estimate.devices if d.total_bytes and d.left_bytes < space.margin_bytes]
    held = [(d.device.name, d.total_bytes + d.shared_bytes, d.device.free_bytes) for d in short]
    where = "; ".join(
        f"{name} would hold {format_bytes(total)} and has {format_bytes(free)} free"
        for name, total, free in held
    )
    now = estimate.configuration
    pair = pair_label((now.type_k, now.type_v))
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
