"""How several GPUs share the layers: so that all of them are full at the same context.

llama.cpp shares layers by free memory. But the last GPU also has the output layer, and each its own
buffers: one is full while another has room, which shares in whole layers take up.
"""

from dataclasses import replace

from engine.errors import PresetError
from engine.memory.estimate import Estimate
from engine.memory.hardware import Device
from engine.memory.placement import place
from engine.memory.search.best import Choice, best_choice
from engine.memory.search.goals import Goal, Offload
from engine.memory.search.score import last_as_fast, rank
from engine.memory.search.space import Space
from engine.memory.terms import TermKind
from engine.memory.weights import weights_of
from engine.model.architecture import Model

MAX_ROUNDS = 4
"""Buffers move with the layers: after so many rounds a split hardly changes."""


def best_shared(
    space: Space, model: Model, goal: Goal, offload: Offload
) -> tuple[Space, Choice | None]:
    """Give the best choice of a goal and its space: with llama.cpp's split, or with an even one."""
    best = best_choice(space, goal, offload)
    split = None if space.base.tensor_split else _split_for(space, model, best)
    if split is None:
        return space, best
    shared = space.with_base(replace(space.base, tensor_split=split))
    other = best_choice(shared, goal, offload)
    if other is None or (best is not None and not _is_better(space, goal, offload, other, best)):
        return space, best
    return shared, other


def _is_better(space: Space, goal: Goal, offload: Offload, other: Choice, best: Choice) -> bool:
    """Whether a choice is better for its goal: clearly faster placements come first."""
    by_speed = goal is not Goal.BALANCED and offload is not Offload.ANY
    by_speed = by_speed and (goal is not Goal.QUALITY or other[0].pair == best[0].pair)
    ours, theirs = other[0].placement, best[0].placement
    if by_speed and ours > last_as_fast(space, theirs):
        return False
    if by_speed and theirs > last_as_fast(space, ours):
        return True
    return rank(space, goal, *other) > rank(space, goal, *best)


def _split_for(space: Space, model: Model, best: Choice | None) -> tuple[float, ...] | None:
    """Give the even split at a choice, or, where none fits, at the smallest one."""
    knobs, steps = best or (space.choices()[-1], space.least)
    split: tuple[float, ...] | None = None
    try:
        estimate = space.estimate(knobs, steps)
        for _ in range(MAX_ROUNDS):
            better = even_split(model, estimate, space.margin_bytes)
            if better is None:
                return split
            split = better
            estimate = space.cost(replace(estimate.configuration, tensor_split=split))
    except PresetError:
        return None  # llama.cpp would refuse it, however it is split
    return split


def even_split(model: Model, estimate: Estimate, margin_bytes: int) -> tuple[float, ...] | None:
    """Give the layers of each GPU that leave equal room for more context.

    None where a change would move less than one layer, or a GPU has no room at all.
    """
    now = estimate.configuration
    devices = tuple(device.device for device in estimate.devices)
    gpus = tuple(device for device in devices if device.kind == "gpu")
    if len(gpus) < 2 or now.split_mode != "layer" or now.n_gpu_layers == 0:
        return None
    layers = _layers(model, estimate, gpus)
    growing = {
        d.device: d.term(TermKind.WEIGHTS).nbytes + d.term(TermKind.KV).nbytes
        for d in estimate.devices
    }
    n_layers = sum(layers.values())
    per_layer = sum(growing[gpu] for gpu in gpus) / n_layers
    room = [
        d.left_bytes - margin_bytes + layers[d.device] * per_layer
        for d in estimate.devices
        if d.device.kind == "gpu"
    ]
    if min(room) <= 0 or n_layers < len(gpus):
        return None
    found = _apportioned(n_layers, room)
    return None if found == [layers[gpu] for gpu in gpus] else tuple(map(float, found))


def _layers(model: Model, estimate: Estimate, gpus: tuple[Device, ...]) -> dict[Device, int]:
    """Give the number of layers on each GPU, the output layer counting as one."""
    now = estimate.configuration
    cpu = next(d.device for d in estimate.devices if d.device.kind == "cpu")
    weights = weights_of(model.file, now.tensor_overrides, now.n_cpu_moe)
    where = place(weights, now, gpus, cpu)
    lying = [*where.layer_devices, where.output_device]
    return {gpu: lying.count(gpu) for gpu in gpus}


def _apportioned(n: int, rooms: list[float]) -> list[int]:
    """Share layers so that the least room for each layer is the largest (D'Hondt's method)."""
    found = [1] * len(rooms)
    for _ in range(n - len(rooms)):
        ratios = [room / (count + 1) for room, count in zip(rooms, found, strict=True)]
        found[ratios.index(max(ratios))] += 1
    return found
