"""Where the layers of a model may lie, from the fastest to the smallest on the GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from typing import NamedTuple

from engine.configuration import Configuration
from engine.memory.estimate import Estimate, Estimator
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.weights import weights_of
from engine.model.architecture import Model
from engine.model.gguf import GgufFile, cached_by_header
from engine.model.tensor_table import EXPERT, LAYER
from engine.planning.goals import Offload

MEMORY_SPEED_RATIO = 12
"""How many times faster a GPU's memory is than main memory where the table of cards says nothing:
a dual-channel DDR5-5600 reads 90 GB/s, cards of 8 to 24 GiB read 250 to 1000."""


@dataclass(frozen=True, slots=True)
class OffloadLevel:
    """Layers on the GPUs, and layers whose experts stay in main memory, as llama.cpp takes them."""

    n_gpu_layers: int
    """-1 is all, the output layer counting as one."""
    n_cpu_moe: int = 0
    """-1 is all."""
    slowness: float = 0.0
    """Halvings of the speed of decoding, against all on the GPUs, by the bytes that a token reads;
    a guess that ranks placements and is never shown."""


def placements(
    model: Model, devices: tuple[Device, ...], offload: Offload
) -> tuple[OffloadLevel, ...]:
    """The placements that a search may choose, the fastest first.

    Experts leave the GPU before layers do: a token reads only a few of them, and its attention
    stays fast.
    """
    if not any(device.kind == "gpu" for device in devices):
        return (OffloadLevel(-1),)
    ladder = _ladder(model)
    match offload:
        case Offload.NONE:
            return ladder[:1]
        case Offload.FULL:
            return ladder[-1:]
        case Offload.PARTIAL | Offload.ANY:
            return ladder


def laid(configuration: Configuration, placement: OffloadLevel) -> Configuration:
    """The configuration with its layers where a placement has them."""
    return replace(
        configuration, n_gpu_layers=placement.n_gpu_layers, n_cpu_moe=placement.n_cpu_moe
    )


class Room(NamedTuple):
    """The bytes that an estimate leaves beyond the margin, negative where some are short."""

    gpus: int
    """On the GPU that has least."""
    cpu: int
    together: int
    """On the GPUs if layers could be shared at will: none of a faster placement has more."""

    @property
    def least(self) -> int:
        return min(self.gpus, self.cpu)


REFUSED = Room(-1 << 62, -1 << 62, -1 << 62)
LYING = (TermKind.WEIGHTS, TermKind.KV, TermKind.STATE)
"""What moves with the layers."""


def room_of(estimate: Estimate, margin_bytes: int) -> Room:
    """What an estimate leaves beyond a margin; a device that holds nothing is not short."""
    left: dict[str, int] = {"gpu": 1 << 62, "cpu": 1 << 62}
    gpus = [each for each in estimate.devices if each.device.kind == "gpu"]
    for each in estimate.devices:
        if each.total_bytes:
            kind = each.device.kind
            left[kind] = min(left[kind], each.left_bytes - margin_bytes)
    lying = sum(each.term(kind).nbytes for each in gpus for kind in LYING)
    free = sum(max(0, each.device.free_bytes - margin_bytes) for each in gpus)
    return Room(left["gpu"], left["cpu"], free - lying if len(gpus) > 1 else left["gpu"])


def first_fitting(room: Callable[[int], Room], first: int, last: int) -> int | None:
    """The fastest of some placements that fits, None where none does.

    Each placement leaves less on the GPUs than the one before, so they are bisected for the first
    that the GPUs together hold. From there on they are tried in turn: the borders between several
    GPUs move, and one can get a layer more. The first layer that leaves can cost a GPU more in
    buffers than it frees, and frees RAM where GPUs no longer work in a pipeline: the first
    placement is tried alone.
    """
    if room(first).least >= 0:
        return first
    low = bisect(first, last + 1, lambda index: room(index).together >= 0)
    for index in range(low, last + 1):
        found = room(index)
        if found.least >= 0:
            return index
        if found.cpu < 0 and index > first:
            return None  # RAM only fills further
    return None


def fastest_fitting(
    configuration: Configuration,
    ladder: Sequence[OffloadLevel],
    cost: Estimator,
    margin_bytes: int,
) -> Configuration | None:
    """The configuration at the first of some placements that fits, None where none does.

    Raises:
        PresetError: llama.cpp would refuse the configuration.
    """
    found = [laid(configuration, placement) for placement in ladder]
    index = first_fitting(cache(lambda n: room_of(cost(found[n]), margin_bytes)), 0, len(found) - 1)
    return None if index is None else found[index]


def filling(
    configuration: Configuration,
    ladder: Sequence[OffloadLevel],
    cost: Estimator,
    margin_bytes: int,
) -> Configuration:
    """The first of some placements that every GPU can hold, though RAM cannot; else the last.

    Raises:
        PresetError: llama.cpp would refuse the configuration.
    """

    def gpus_alone(now: Configuration) -> Estimate:
        estimate = cost(now)
        gpus = (each for each in estimate.devices if each.device.kind == "gpu")
        return replace(estimate, devices=tuple(gpus))

    found = fastest_fitting(configuration, ladder, gpus_alone, margin_bytes)
    return found or laid(configuration, ladder[-1])


def bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number from low on where something holds that stays true; at most high."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def placement_text(placement: OffloadLevel, model: Model) -> str:
    """Where the layers lie, such as `experts of 12 of 48 layers in main memory`."""
    n_layers, n_gpu_layers = model.architecture.n_layers, placement.n_gpu_layers
    if n_gpu_layers == 0:
        return "all layers in RAM"
    if 0 < n_gpu_layers <= n_layers:
        layers = f"{n_layers + 1 - n_gpu_layers} of {n_layers} layers in RAM"
        return f"all experts and {layers}" if placement.n_cpu_moe else layers
    if placement.n_cpu_moe:
        n_experts = n_moe_layers_in_main_memory(placement, model)
        return f"experts of {n_experts} of {n_layers} layers in RAM"
    return "all layers on the GPU"


def _ladder(model: Model) -> tuple[OffloadLevel, ...]:
    layers = _read_bytes(model)
    dense, experts = [layer[0] for layer in layers], [layer[1] for layer in layers]
    total = sum(dense) + sum(experts) or 1.0
    with_experts = [index for index, nbytes in enumerate(experts) if nbytes]

    def slowness(in_main_memory: float) -> float:
        return log2(1 + (MEMORY_SPEED_RATIO - 1) * in_main_memory / total)

    found = [OffloadLevel(-1)]
    found += (
        OffloadLevel(-1, index + 1, slowness(sum(experts[: index + 1])))
        for index in with_experts[:-1]
    )
    n_cpu_moe = -1 if with_experts else 0
    if with_experts:
        found.append(OffloadLevel(-1, n_cpu_moe, slowness(sum(experts))))
    for n_gpu_layers in range(len(layers), -1, -1):
        n_main = len(layers) + 1 - n_gpu_layers
        moved = sum(dense[: min(n_main, len(layers))]) + sum(experts)
        found.append(OffloadLevel(n_gpu_layers, n_cpu_moe, slowness(moved)))
    return tuple(found)


def _read_bytes(model: Model) -> list[tuple[float, float]]:
    """The bytes that one token reads of each layer: without experts, and of experts."""
    architecture = model.architecture
    share = architecture.n_experts_used / architecture.n_experts if architecture.n_experts else 0.0
    experts = expert_bytes(model.file)
    sizes = weights_of(model.file).layer_bytes
    return [
        (nbytes - experts.get(index, 0), experts.get(index, 0) * (share or 1.0))
        for index, nbytes in enumerate(sizes)
    ]


@cached_by_header(1)
def expert_bytes(file: GgufFile) -> dict[int, int]:
    """The bytes of the experts of each layer that has some."""
    found: dict[int, int] = {}
    for tensor in file.tensors:
        layer = LAYER.match(tensor.name)
        if layer and EXPERT.search(tensor.name):  # what `--n-cpu-moe` keeps in RAM
            found[int(layer[1])] = found.get(int(layer[1]), 0) + tensor.nbytes
    return found


def n_moe_layers_in_main_memory(placement: OffloadLevel, model: Model) -> int:
    """How many layers keep their experts in main memory."""
    with_experts = expert_bytes(model.file)
    if placement.n_cpu_moe < 0:
        return len(with_experts)
    return sum(index < placement.n_cpu_moe for index in with_experts)
