"""The split of layers that fills the free memory of several GPUs evenly."""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from engine.memory.estimate import Estimate, shape_for
from engine.memory.hardware import Device
from engine.memory.kv_cache import layer_cache_bytes
from engine.memory.placement import place
from engine.memory.terms import DeviceEstimate
from engine.memory.weights import layer_bytes
from engine.model.architecture import Model

SHARE_STEPS = 30
"""Bisections of the filled share, which end at a billionth."""


def even_split(model: Model, estimate: Estimate, margin_bytes: int) -> tuple[float, ...] | None:
    """The number of layers of each GPU that fills the same share of its free memory.

    None if the split is even already, there is one GPU, or a GPU has no free memory.
    """
    gpus = _gpus_to_split(estimate)
    if not gpus or len(layers := _layers(model, estimate)) < len(gpus):
        return None
    free = [
        each.left_bytes - margin_bytes + sum(n for device, n in layers if device == each.device)
        for each in gpus
    ]
    if min(free) <= 0:
        return None
    found = _apportioned([nbytes for _, nbytes in layers], free)
    return None if found == _present(layers, gpus) else tuple(map(float, found))


def splits_beside(model: Model, estimate: Estimate) -> Iterator[tuple[float, ...]]:
    """The splits with one layer moved between neighbouring GPUs."""
    if not (gpus := _gpus_to_split(estimate)):
        return
    present = _present(_layers(model, estimate), gpus)
    for left, right in pairwise(range(len(gpus))):
        for giver, taker in ((left, right), (right, left)):
            if present[giver] > 1:
                counts = list(map(float, present))
                counts[giver] -= 1
                counts[taker] += 1
                yield tuple(counts)


def _gpus_to_split(estimate: Estimate) -> list[DeviceEstimate]:
    """The GPUs among which llama.cpp splits layers; none if there are fewer than two."""
    now = estimate.configuration
    gpus = [each for each in estimate.devices if each.device.kind == "gpu"]
    is_split = len(gpus) > 1 and now.split_mode == "layer" and now.n_gpu_layers != 0
    return gpus if is_split else []


def _present(layers: list[tuple[Device, int]], gpus: list[DeviceEstimate]) -> list[int]:
    return [sum(device == each.device for device, _ in layers) for each in gpus]


def _layers(model: Model, estimate: Estimate) -> list[tuple[Device, int]]:
    """Device and bytes of each layer on a GPU, with the cache that moves with it."""
    now = estimate.configuration
    devices = tuple(each.device for each in estimate.devices)
    where = place(model.file, now, devices)
    cached: dict[int, int] = {}
    if now.offload_kqv:
        shape = shape_for(model.architecture, now, estimate.target, devices)
        cached = layer_cache_bytes(model.architecture, shape)
    weights = layer_bytes(model.file, now.tensor_overrides, now.n_cpu_moe)
    sizes = [nbytes + cached.get(index, 0) for index, nbytes in enumerate(weights)]
    layers = zip((*where.layer_devices, where.output_device), sizes, strict=True)
    return [(device, nbytes) for device, nbytes in layers if device.kind == "gpu"]


def _apportioned(sizes: list[int], free: list[int]) -> list[int]:
    """Layers of each GPU, in order, so that the largest used share is smallest."""

    def counts_at(share: float) -> list[int] | None:
        counts, rest = [], deque(sizes)
        for nbytes in free:
            held = count = 0
            while rest and held + rest[0] <= share * nbytes:
                held += rest.popleft()
                count += 1
            counts.append(count)
        return None if rest else counts

    low, high = 0.0, sum(sizes) / min(free)
    for _ in range(SHARE_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if counts_at(middle) else (middle, high)
    return counts_at(high * (1 + 1e-6)) or []
