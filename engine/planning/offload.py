"""Which layers go to the GPUs: levels from all on the GPUs to all in RAM."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from math import log2
from typing import NamedTuple

from engine.configuration import Configuration
from engine.memory.estimate import Estimate, Estimator
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.weights import layer_bytes
from engine.model.architecture import Model
from engine.model.gguf import GgufFile, cached_by_header
from engine.model.tensor_table import EXPERT, LAYER

MEMORY_SPEED_RATIO = 12
"""Assumed ratio of GPU to RAM bandwidth: dual-channel DDR5-5600 reads 90 GB/s, cards of 8 to 24 GiB
read 250 to 1000."""


class Offload(StrEnum):
    """Amount of a model's weights that may be in RAM although there is a GPU."""

    NONE = "none"
    """Nothing."""
    PARTIAL = "partial"
    """Move what the smallest context needs to RAM, or more if that hardly costs speed."""
    ANY = "any"
    """Move as many weights to RAM as the goal gains from, for example for a longer context."""
    FULL = "full"
    """All layers; the GPU helps with prompts only."""


@dataclass(frozen=True, slots=True)
class OffloadLevel:
    """Layers on the GPUs, and layers whose experts stay in RAM, as llama.cpp counts them."""

    n_gpu_layers: int
    """-1 is all; the output layer counts as one."""
    n_cpu_moe: int = 0
    """-1 is all."""
    slowness: float = 0.0
    """Log2 of the estimated time per token against all layers on the GPU; ranks levels only."""

    def of(self, configuration: Configuration) -> Configuration:
        """A configuration at this level."""
        return replace(configuration, n_gpu_layers=self.n_gpu_layers, n_cpu_moe=self.n_cpu_moe)


def offload_levels(
    model: Model, devices: tuple[Device, ...], offload: Offload
) -> tuple[OffloadLevel, ...]:
    """The levels that a search may choose, the fastest first.

    Experts leave the GPU before layers: a token reads only a few of them.
    """
    if not any(device.kind == "gpu" for device in devices):
        return (OffloadLevel(-1),)
    levels = _all_levels(model)
    match offload:
        case Offload.NONE:
            return levels[:1]
        case Offload.FULL:
            return levels[-1:]
    return levels


class FreeBytes(NamedTuple):
    """Bytes that stay free beyond the margin; negative if memory is short."""

    gpus: int
    """On the GPU with the fewest."""
    cpu: int
    together: int
    """On all GPUs, if layers could be split at will; falls with faster levels."""

    @property
    def least(self) -> int:
        """Free bytes of the device with the fewest."""
        return min(self.gpus, self.cpu)


REFUSED = FreeBytes(-1 << 62, -1 << 62, -1 << 62)
"""Result for a configuration that llama.cpp refuses."""
_WITH_LAYERS = (TermKind.WEIGHTS, TermKind.KV, TermKind.STATE)


def free_bytes(estimate: Estimate, margin_bytes: int) -> FreeBytes:
    """Free bytes of each device beyond the margin; an unused device never lacks memory."""
    left: dict[str, int] = {"gpu": 1 << 62, "cpu": 1 << 62}
    gpus = [each for each in estimate.devices if each.device.kind == "gpu"]
    for each in estimate.devices:
        if each.total_bytes:
            kind = each.device.kind
            left[kind] = min(left[kind], each.left_bytes - margin_bytes)
    held = sum(each.term(kind).nbytes for each in gpus for kind in _WITH_LAYERS)
    free = sum(max(0, each.device.free_bytes - margin_bytes) for each in gpus)
    return FreeBytes(left["gpu"], left["cpu"], free - held if len(gpus) > 1 else left["gpu"])


def first_fitting(free: Callable[[int], FreeBytes], first: int, last: int) -> int | None:
    """The fastest of some levels that fits; None if none does.

    Each level leaves more free on the GPUs than the one before, so the first that the GPUs together
    hold is bisected. Later ones are tried in turn, as one GPU of several can get a layer more. The
    first is tried alone: the first layer in RAM can cost a GPU more in buffers than it frees.
    """
    if free(first).least >= 0:
        return first
    low = bisect(first, last + 1, lambda level: free(level).together >= 0)
    for level in range(low, last + 1):
        found = free(level)
        if found.least >= 0:
            return level
        if found.cpu < 0 and level > first:
            return None  # RAM only fills further
    return None


def fastest_fitting(
    configuration: Configuration,
    levels: Sequence[OffloadLevel],
    cost: Estimator,
    margin_bytes: int,
) -> Configuration | None:
    """The configuration at the fastest level that fits, None if none does.

    Raises:
        PresetError: llama.cpp refuses the configuration.
    """
    found = [level.of(configuration) for level in levels]
    free = cache(lambda level: free_bytes(cost(found[level]), margin_bytes))
    level = first_fitting(free, 0, len(found) - 1)
    return None if level is None else found[level]


def filling(
    configuration: Configuration,
    levels: Sequence[OffloadLevel],
    cost: Estimator,
    margin_bytes: int,
) -> Configuration:
    """The configuration at the fastest level that fits the GPUs, if RAM had no limit.

    Raises:
        PresetError: llama.cpp refuses the configuration.
    """

    def gpus_alone(now: Configuration) -> Estimate:
        estimate = cost(now)
        gpus = (each for each in estimate.devices if each.device.kind == "gpu")
        return replace(estimate, devices=tuple(gpus))

    found = fastest_fitting(configuration, levels, gpus_alone, margin_bytes)
    return found or levels[-1].of(configuration)


def bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number from `low` on where a condition, once true, stays true; at most `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def level_text(n_gpu_layers: int, n_cpu_moe: int, model: Model) -> str:
    """The offload level in words, such as `experts of 12 of 48 layers in RAM`."""
    n_layers = model.architecture.n_layers
    if n_gpu_layers == 0:
        return "all layers in RAM"
    if 0 < n_gpu_layers <= n_layers:
        layers = f"{n_layers + 1 - n_gpu_layers} of {n_layers} layers in RAM"
        return f"all experts and {layers}" if n_cpu_moe else layers
    if n_cpu_moe:
        with_experts = expert_bytes(model.file)
        n_moved = sum(n_cpu_moe < 0 or index < n_cpu_moe for index in with_experts)
        return f"experts of {n_moved} of {n_layers} layers in RAM"
    return "all layers on the GPU"


def _all_levels(model: Model) -> tuple[OffloadLevel, ...]:
    architecture, sizes = model.architecture, layer_bytes(model.file)[:-1]
    held = expert_bytes(model.file)
    share = (architecture.n_experts_used / (architecture.n_experts or 1)) or 1.0
    experts = [held.get(index, 0) * share for index in range(len(sizes))]
    dense = [nbytes - held.get(index, 0) for index, nbytes in enumerate(sizes)]
    total = sum(dense) + sum(experts) or 1.0

    def slowness(in_ram: float) -> float:
        return log2(1 + (MEMORY_SPEED_RATIO - 1) * in_ram / total)

    all_experts = -1 if held else 0
    moved_experts = [sum(experts[: index + 1]) for index in sorted(held)]
    return (
        OffloadLevel(-1),
        *(
            OffloadLevel(-1, index + 1, slowness(moved))
            for index, moved in zip(sorted(held)[:-1], moved_experts, strict=False)
        ),
        *[OffloadLevel(-1, -1, slowness(sum(experts)))] * bool(held),
        *(  # the output layer leaves first
            OffloadLevel(
                len(sizes) + 1 - n_in_ram,
                all_experts,
                slowness(sum(dense[:n_in_ram]) + sum(experts)),
            )
            for n_in_ram in range(1, len(sizes) + 2)
        ),
    )


@cached_by_header(1)
def expert_bytes(file: GgufFile) -> dict[int, int]:
    """Bytes of the experts of each layer that has some: what `--n-cpu-moe` keeps in RAM."""
    found: dict[int, int] = {}
    for tensor in file.tensors:
        layer = LAYER.match(tensor.name)
        if layer and EXPERT.search(tensor.name):
            found[int(layer[1])] = found.get(int(layer[1]), 0) + tensor.nbytes
    return found
