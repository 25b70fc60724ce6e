"""Where the layers of a model may lie, from the fastest to the smallest on the GPU."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log2

from engine.configuration import Configuration
from engine.memory.estimate import Estimator
from engine.memory.hardware import Device
from engine.memory.weights import weights_of
from engine.model.architecture import Model
from engine.model.gguf import GgufFile, cached_by_header
from engine.planning.goals import Offload

EXPERT_TENSOR = re.compile(r"^blk\.(\d+)\.ffn_(up|down|gate|gate_up)_(ch|)exps")
"""The tensors that llama.cpp's `--n-cpu-moe` keeps in main memory."""

MEMORY_SPEED_RATIO = 12
"""How many times faster a GPU's memory is than main memory where the table of cards says nothing:
a dual-channel DDR5-5600 reads 90 GB/s, cards of 8 to 24 GiB read 250 to 1000."""


@dataclass(frozen=True, slots=True)
class Placement:
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
) -> tuple[Placement, ...]:
    """The placements that a search may choose, the fastest first.

    Experts leave the GPU before layers do: a token reads only a few of them, and its attention
    stays fast.
    """
    if not any(device.kind == "gpu" for device in devices):
        return (Placement(-1),)
    ladder = _ladder(model)
    match offload:
        case Offload.NONE:
            return ladder[:1]
        case Offload.FULL:
            return ladder[-1:]
        case Offload.PARTIAL | Offload.ANY:
            return ladder


def laid(configuration: Configuration, placement: Placement) -> Configuration:
    """The configuration with its layers where a placement has them."""
    return replace(
        configuration, n_gpu_layers=placement.n_gpu_layers, n_cpu_moe=placement.n_cpu_moe
    )


def fastest_fitting(
    configuration: Configuration,
    ladder: Iterable[Placement],
    cost: Estimator,
    margin_bytes: int,
) -> Configuration | None:
    """The configuration at the first of some placements that fits, None where none does.

    Each placement leaves less on the GPUs than the one before, so they are bisected for the first
    that the GPUs together hold; from there on they are tried in turn, until main memory is full.
    The first layer that leaves can cost a GPU more in buffers than it frees, and lets go of main
    memory where GPUs no longer work in a pipeline: the first placement is tried alone.

    Raises:
        PresetError: llama.cpp would refuse the configuration.
    """
    found = [laid(configuration, placement) for placement in ladder]
    if found and cost(found[0]).fits(margin_bytes):
        return found[0]

    def free_of_gpus(each: Configuration) -> list[int]:
        """What each GPU that holds something leaves beyond the margin."""
        used = (d for d in cost(each).devices if d.device.kind == "gpu" and d.total_bytes)
        return [device.left_bytes - margin_bytes for device in used]

    low = bisect_left(found, 1, lo=1, key=lambda each: int(sum(free_of_gpus(each)) >= 0))
    for each in found[low:]:
        if cost(each).fits(margin_bytes):
            return each
        if all(free >= 0 for free in free_of_gpus(each)):
            return None  # main memory only fills further
    return None


def placement_text(placement: Placement, model: Model) -> str:
    """Where the layers lie, such as `experts of 12 of 48 layers in main memory`."""
    n_layers, n_gpu_layers = model.architecture.n_layers, placement.n_gpu_layers
    if n_gpu_layers == 0:
        return "all layers in main memory"
    if 0 < n_gpu_layers <= n_layers:
        layers = f"{n_layers + 1 - n_gpu_layers} of {n_layers} layers in main memory"
        return f"all experts and {layers}" if placement.n_cpu_moe else layers
    if placement.n_cpu_moe:
        n_experts = n_moe_layers_in_main_memory(placement, model)
        return f"experts of {n_experts} of {n_layers} layers in main memory"
    return "all layers on the GPU"


def _ladder(model: Model) -> tuple[Placement, ...]:
    layers = _read_bytes(model)
    dense, experts = [layer[0] for layer in layers], [layer[1] for layer in layers]
    total = sum(dense) + sum(experts) or 1.0
    with_experts = [index for index, nbytes in enumerate(experts) if nbytes]

    def slowness(in_main_memory: float) -> float:
        return log2(1 + (MEMORY_SPEED_RATIO - 1) * in_main_memory / total)

    found = [Placement(-1)]
    found += (
        Placement(-1, index + 1, slowness(sum(experts[: index + 1]))) for index in with_experts[:-1]
    )
    n_cpu_moe = -1 if with_experts else 0
    if with_experts:
        found.append(Placement(-1, n_cpu_moe, slowness(sum(experts))))
    for n_gpu_layers in range(len(layers), -1, -1):
        n_main = len(layers) + 1 - n_gpu_layers
        moved = sum(dense[: min(n_main, len(layers))]) + sum(experts)
        found.append(Placement(n_gpu_layers, n_cpu_moe, slowness(moved)))
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
        match = EXPERT_TENSOR.match(tensor.name)
        if match:
            index = int(match[1])
            found[index] = found.get(index, 0) + tensor.nbytes
    return found


def n_moe_layers_in_main_memory(placement: Placement, model: Model) -> int:
    """How many layers keep their experts in main memory."""
    with_experts = expert_bytes(model.file)
    if placement.n_cpu_moe < 0:
        return len(with_experts)
    return sum(index < placement.n_cpu_moe for index in with_experts)
