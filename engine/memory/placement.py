"""Which device each layer lies on, the weights that follow it, and those that visit a GPU.

Rules of llama.cpp 0c1e57098 (`load_tensors` in `src/llama-model.cpp`): the last layers go to the
GPUs, the output layer counting as one more; several GPUs share them by free memory or by given
shares, or one takes all; embeddings stay on the CPU, and a GPU with the output layer gets a copy of
tied ones. From 32 tokens on llama.cpp multiplies weights in RAM on the first GPU
(`op_offload`): its compute buffer then holds a copy of the largest such tensor.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from engine.configuration import Configuration, TensorOverride
from engine.errors import PresetError
from engine.memory.hardware import Device
from engine.memory.weights import CPU, Weights, layer_of, overridden, override_rules
from engine.model.architecture import Model, layer_counts
from engine.model.gguf import GgufFile, HeaderKeys, cached_by_header

UNEVEN_FACTOR = 1.85
"""Layers that differ in their operations leave holes that the next tensor does not fit: nearly two
are there at once."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of every layer and of the output layer, and the weights that each device holds."""

    layer_devices: tuple[Device, ...]
    output_device: Device
    weight_bytes: dict[Device, int]
    gpus: tuple[Device, ...]
    """The GPUs that llama.cpp would use."""
    spans: tuple[tuple[int, int, Device], ...]
    """Runs of layers on one device: the first, the one after the last, and the device."""
    is_repacked: bool = False
    """Whether the CPU holds tied embeddings twice: as rows, and repacked as the output layer."""

    @property
    def distinct_devices(self) -> tuple[Device, ...]:
        """The devices of layers, in their order."""
        return tuple(dict.fromkeys(device for _, _, device in self.spans))


def place(
    weights: Weights, configuration: Configuration, gpus: tuple[Device, ...], cpu: Device
) -> Placement:
    """Place a model's tensors; a negative number of layers is all of them.

    Raises:
        PresetError: a GPU is named that is not there, or shares that do not fit the GPUs.
    """
    used = _used_gpus(configuration, gpus)
    bounds = tuple(_bounds(configuration, used))
    copies = repacks(configuration, gpus, cpu)
    return _place(weights, configuration.n_gpu_layers, used, bounds, gpus, cpu, repacks=copies)


def repacks(configuration: Configuration, gpus: tuple[Device, ...], cpu: Device) -> bool:
    """Whether llama.cpp repacks weights for the processor.

    Beside a GPU with pinned memory it does not (`make_cpu_buft_list`); Apple's have none, nor
    workers.
    """
    own = [gpu for gpu in gpus if not gpu.worker]
    has_pinned = any(not gpu.is_unified for gpu in own) or (own and cpu.instructions != "arm")
    return configuration.use_extra_buffers and not has_pinned


def device_named(name: str, gpus: tuple[Device, ...], cpu: Device) -> Device:
    """The device of an override: `CPU`, or a GPU by its number.

    Raises:
        PresetError: there is no such device.
    """
    digits = "".join(character for character in name if character.isdigit())
    if name.upper() == CPU:
        return cpu
    if not digits:
        raise PresetError(f"{name!r} is not a device: write CPU, or GPU 0, GPU 1 and so on")
    if not gpus:
        return cpu
    if int(digits) >= len(gpus):
        raise PresetError(
            f"a tensor override uses {name}, but the last GPU is number {len(gpus) - 1}"
        )
    return gpus[int(digits)]


def cached_bytes(
    sizes: dict[int, int], configuration: Configuration, where: Placement, cpu: Device
) -> dict[Device, int]:
    """Cache bytes of layers, by device; entries after the last layer follow the CPU."""
    if not configuration.offload_kqv:
        return {cpu: sum(sizes.values())} if sizes else {}
    n_layers, totals = len(where.layer_devices), dict.fromkeys(where.distinct_devices, 0)
    for first, end, device in where.spans:
        totals[device] += sum(sizes.get(index, 0) for index in range(first, end))
    rest = sum(nbytes for index, nbytes in sizes.items() if index >= n_layers)
    if rest:
        totals[cpu] = totals.get(cpu, 0) + rest
    return {device: nbytes for device, nbytes in totals.items() if nbytes}


def offloaded_tensor_bytes(model: Model, configuration: Configuration, where: Placement) -> int:
    """Bytes of the largest tensors that are copied to the first GPU at once; 0 if none is.

    A block without a gate leaves a hole of its first matrix, which a second that is larger does not
    fit; in a model that runs its layers in loops all stay.
    """
    overrides, n_cpu_moe = configuration.tensor_overrides, configuration.n_cpu_moe
    by_layer, moved = _visiting_bytes(model.file, overrides, n_cpu_moe)
    on_cpu = [by_layer[i] for i, device in enumerate(where.layer_devices) if device.kind == "cpu"]
    architecture = model.architecture
    family = architecture.family
    is_uneven = bool(architecture.states) if family.is_uneven is None else family.is_uneven
    if n_cpu_moe and is_uneven:
        moved = round(moved * UNEVEN_FACTOR)
    n_loops = model.file.integer(f"{architecture.name}.num_loops") or 1
    if family.loops == "always" or (family.loops and n_loops > 1):
        return sum(layer.total for layer in on_cpu)
    is_gated = architecture.widths.is_gated
    return max([moved, *(layer.largest if is_gated else layer.unfitting for layer in on_cpu)])


@lru_cache(maxsize=512)
def _place(
    weights: Weights,
    n_wanted: int,
    used: tuple[Device, ...],
    bounds: tuple[float, ...],
    gpus: tuple[Device, ...],
    cpu: Device,
    *,
    repacks: bool,
) -> Placement:
    n_layers = len(weights.layer_bytes)
    n_offloaded = n_layers + 1 if n_wanted < 0 else min(n_wanted, n_layers + 1)
    first = n_layers + 1 - n_offloaded if used else n_layers + 1
    devices = [
        cpu if index < first else used[_share(index - first, n_offloaded, bounds)]
        for index in range(n_layers + 1)
    ]
    held: dict[Device, int] = defaultdict(int)
    held[cpu] += weights.input_bytes
    for device, nbytes in zip(devices, weights.layer_bytes, strict=False):
        held[device] += nbytes
    output = devices[n_layers]
    held[output] += weights.output_bytes
    is_repacked = output == cpu and repacks and cpu.instructions in weights.repacked_by
    if output.kind == "gpu" or is_repacked:
        held[output] += weights.tied_bytes
    for name, nbytes in weights.moved_bytes:
        held[device_named(name, gpus, cpu)] += nbytes
    spans = tuple(_spans(devices[:n_layers]))
    return Placement(tuple(devices[:n_layers]), output, dict(held), used, spans, is_repacked)


def _spans(devices: list[Device]) -> Iterator[tuple[int, int, Device]]:
    start = 0
    for index in range(1, len(devices) + 1):
        if index == len(devices) or devices[index] is not devices[start]:
            yield start, index, devices[start]
            start = index


def _used_gpus(configuration: Configuration, gpus: tuple[Device, ...]) -> tuple[Device, ...]:
    if configuration.split_mode == "layer" or not gpus:
        return gpus
    if configuration.main_gpu >= len(gpus):
        raise PresetError(
            f"main_gpu is {configuration.main_gpu}, but the last GPU is number {len(gpus) - 1}"
        )
    return (gpus[configuration.main_gpu],)


def _bounds(configuration: Configuration, gpus: tuple[Device, ...]) -> list[float]:
    """The end of each GPU's share, from 0 to 1."""
    shares = [float(gpu.free_bytes) for gpu in gpus]
    if configuration.tensor_split and len(gpus) > 1:
        if len(configuration.tensor_split) > len(gpus):
            raise PresetError(
                f"tensor_split has {len(configuration.tensor_split)} shares for {len(gpus)} GPUs"
            )
        missing = len(gpus) - len(configuration.tensor_split)
        given = [*configuration.tensor_split, *[0.0] * missing]
        shares = given if any(given) else shares
    total = sum(shares)
    return [part / total for part in accumulate(shares)] if total else [1.0] * len(gpus)


def _share(index: int, n_offloaded: int, bounds: tuple[float, ...]) -> int:
    return min(bisect_right(bounds, index / n_offloaded), len(bounds) - 1)


@dataclass(frozen=True, slots=True)
class VisitingLayer:
    """Bytes of a layer's tensors that visit a GPU."""

    total: int
    largest: int
    unfitting: int
    """Both matrices of a feed-forward block whose second is larger than the first."""


@cached_by_header(64)
def _visiting_bytes(
    file: GgufFile, overrides: tuple[TensorOverride, ...], n_cpu_moe: int
) -> tuple[tuple[VisitingLayer, ...], int]:
    """The tensors of each layer, and the largest that overrides keep on the CPU."""
    n_blocks, _ = layer_counts(HeaderKeys(file))
    rules = override_rules(overrides, n_cpu_moe)
    sizes: list[dict[str, int]] = [{} for _ in range(n_blocks)]
    moved = 0
    for tensor in file.tensors:
        index = layer_of(tensor.name, n_blocks)
        device = overridden(tensor.name, rules)
        if device is not None:
            moved = max(moved, tensor.nbytes) if device.upper() == CPU else moved
        elif index is not None:
            sizes[index][tensor.name.split(".", 2)[-1]] = tensor.nbytes
    return tuple(map(_visiting_layer, sizes)), moved


def _visiting_layer(sizes: dict[str, int]) -> VisitingLayer:
    largest = max(sizes.values(), default=0)
    up, down = sizes.get("ffn_up.weight", 0), sizes.get("ffn_down.weight", 0)
    return VisitingLayer(sum(sizes.values()), largest, max(largest, up + down if up < down else 0))
