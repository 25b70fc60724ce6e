"""The device of each layer and its weights, and the weights that are copied to a GPU for a batch.

Rules of llama.cpp 0c1e57098 (`load_tensors` in `src/llama-model.cpp`): the last layers go to the
GPUs, the output layer counting as one more; several GPUs share them by free memory or by given
shares, or one takes all; embeddings stay on the CPU, and a GPU with the output layer gets a copy of
tied ones. From 32 tokens on llama.cpp multiplies weights in RAM on the first GPU
(`op_offload`): its compute buffer then holds a copy of the largest such tensor.

The file is read through its pages. Weights that are repacked for the processor or sent to a GPU are
copied out of them and need their pages no more, but only what lies before the first tensor that is
used in place and after the last is unmapped (`get_mapping_range` and `unmap_fragment`,
`src/llama-model-loader.cpp`). The pages between stay resident, so `top` shows them, until the
system wants them for something else.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from engine.configuration import Configuration, TensorOverride
from engine.errors import PresetError
from engine.memory.hardware import Device, Instructions
from engine.memory.weights import (
    CPU,
    TensorPart,
    is_repacked,
    tensor_parts,
)
from engine.model.architecture import Model, layer_counts
from engine.model.architectures import family_of
from engine.model.gguf import GgufFile, HeaderKeys, cached_by_header
from engine.model.tensor_table import LOOKED_UP

LAID_OUT = (
    "n_gpu_layers", "n_cpu_moe", "tensor_overrides", "split_mode", "main_gpu", "tensor_split",
    "use_mmap", "use_extra_buffers",
)  # fmt: skip
"""Settings that determine the placement of weights."""
UNEVEN_FACTOR = 1.85
"""Layers with different operations leave gaps in the buffer, so that nearly two are held at
once."""


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Bytes of weights in RAM."""

    mapped: int
    """Pages of the file that stay mapped; 0 where the file is read into memory instead."""
    reclaimable: int
    """Mapped bytes that the system can free, because their weights were copied."""
    repacked: int
    """Weights that are rearranged for the processor, in memory of the process."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of every layer and of the output layer, and the weights that each device holds."""

    layer_devices: tuple[Device, ...]
    output_device: Device
    layers_of: Mapping[Device, Sequence[int]]
    """The layers of each device that has any, in their order."""
    gpus: tuple[Device, ...]
    """The GPUs that llama.cpp would use."""
    cpu: Device
    named: Mapping[str, Device]
    """The devices that tensor overrides name."""
    weight_bytes: Mapping[Device, int]
    is_repacked: bool
    """Whether the CPU holds tied embeddings twice: as rows, and repacked as the output layer."""
    mapped: MappedWeights = MappedWeights(0, 0, 0)

    def device_of(self, part: TensorPart) -> Device:
        """The device of a tensor."""
        if part.override is not None:
            return self.named[part.override]
        if part.layer is not None:
            return self.layer_devices[part.layer]
        return self.output_device if part.is_output else self.cpu


def place(
    file: GgufFile,
    configuration: Configuration,
    devices: tuple[Device, ...],
    *,
    with_head: bool = False,
) -> Placement:
    """Place a model's tensors on GPUs and the CPU; a negative number of layers is all of them.

    Raises:
        PresetError: a GPU is named that is not there, or shares that do not fit the GPUs.
    """
    settings = {name: getattr(configuration, name) for name in LAID_OUT}
    return _place(file, Configuration(Path(), 0, **settings), devices, with_head)


@cached_by_header(256)
def _place(
    file: GgufFile, now: Configuration, devices: tuple[Device, ...], with_head: bool
) -> Placement:
    *gpus, cpu = devices
    used = _used_gpus(now, gpus)
    *layers, output = _layer_devices(now, used, cpu, layer_counts(HeaderKeys(file))[0])
    parts = tensor_parts(file, now.tensor_overrides, now.n_cpu_moe)
    loaded = [part for part in parts if with_head or not part.is_head]
    instructions = cpu.instructions if _repacks(now, gpus, cpu) else "none"
    always_copies = family_of(file.architecture).sharing is not None
    is_tied_copied = any(part.is_tied and is_repacked(part.tensor, instructions) for part in parts)
    names = {part.override for part in parts if part.override is not None}
    where = Placement(
        tuple(layers),
        output,
        layers_of := defaultdict(list),
        used,
        cpu,
        {name: _device_named(name, gpus, cpu) for name in names},
        held := dict.fromkeys(devices, 0),
        is_repacked=output == cpu and is_tied_copied and not always_copies,
    )
    for index, device in enumerate(layers):
        layers_of[device].append(index)
    has_copy = output.kind == "gpu" or where.is_repacked or always_copies
    held[output] += has_copy * sum(part.nbytes for part in parts if part.is_tied)
    held[cpu] += sum(part.nbytes for part in loaded if part.is_embedding)
    mapped = _add_weights(held, file, where, loaded, instructions)
    if not now.use_mmap:
        return replace(where, mapped=MappedWeights(0, 0, mapped.repacked))
    held[cpu] = min(held[cpu], mapped.mapped - mapped.reclaimable + mapped.repacked)
    return replace(where, mapped=mapped)


def _layer_devices(
    now: Configuration, gpus: tuple[Device, ...], cpu: Device, n_layers: int
) -> Iterator[Device]:
    n_wanted = now.n_gpu_layers if gpus else 0
    n_offloaded = n_layers + 1 if n_wanted < 0 else min(n_wanted, n_layers + 1)
    ends = _share_ends(now, gpus)
    yield from [cpu] * (n_layers + 1 - n_offloaded)
    for index in range(n_offloaded):
        yield gpus[min(bisect_right(ends, index / n_offloaded), len(gpus) - 1)]


def _add_weights(
    held: dict[Device, int],
    file: GgufFile,
    where: Placement,
    parts: Sequence[TensorPart],
    instructions: Instructions,
) -> MappedWeights:
    """Add the tensors to their devices; returns how those in RAM are mapped."""
    in_place: set[str] = set()
    needed = repacked = 0
    for part in parts:
        tensor, nbytes, device = part.tensor, part.nbytes, where.device_of(part)
        held[device] += nbytes
        if device.kind == "gpu":
            needed += nbytes * device.is_unified
            continue
        is_row = part.is_embedding or bool(LOOKED_UP.search(tensor.name))
        is_multiplied = not is_row or (part.is_tied and where.output_device.kind == "cpu")
        is_copied = is_multiplied and is_repacked(tensor, instructions)
        repacked += nbytes * is_copied
        if is_row or not is_copied:
            in_place.add(tensor.name)
            needed += nbytes
    mapped = _range_bytes(file, in_place)
    return MappedWeights(mapped, max(0, mapped - needed), repacked)


def _range_bytes(file: GgufFile, in_place: set[str]) -> int:
    """From the first to the last tensor that is used in place, in each file of a model."""
    ends: dict[int, list[int]] = defaultdict(list)
    number = 0
    for tensor in file.tensors:
        number += tensor.offset == 0
        if tensor.name in in_place:
            ends[number] += (tensor.offset, tensor.offset + tensor.nbytes)
    return sum(max(each) - min(each) for each in ends.values())


def _repacks(now: Configuration, gpus: Sequence[Device], cpu: Device) -> bool:
    """Whether llama.cpp repacks weights for the processor.

    Next to a GPU with pinned memory it does not (`make_cpu_buft_list`); Apple's have none, nor do
    those of RPC workers.
    """
    own = [gpu for gpu in gpus if not gpu.worker]
    has_pinned = any(not gpu.is_unified for gpu in own) or (own and cpu.instructions != "arm")
    return now.use_extra_buffers and not has_pinned


def _device_named(name: str, gpus: Sequence[Device], cpu: Device) -> Device:
    """The device of an override: `CPU`, or a GPU by its number."""
    digits = "".join(character for character in name if character.isdigit())
    if name.upper() == CPU:
        return cpu
    if not digits:
        raise PresetError(f"{name!r} is not a device: write CPU, or GPU 0, GPU 1 and so on")
    if not gpus:
        return cpu
    if int(digits) >= len(gpus):
        raise PresetError(
            f"a tensor override uses {name}: write a GPU number from 0 to {len(gpus) - 1}"
        )
    return gpus[int(digits)]


def _used_gpus(now: Configuration, gpus: Sequence[Device]) -> tuple[Device, ...]:
    if now.split_mode == "layer" or not gpus:
        return tuple(gpus)
    if now.main_gpu >= len(gpus):
        raise PresetError(f"main_gpu is {now.main_gpu}: write a number from 0 to {len(gpus) - 1}")
    return (gpus[now.main_gpu],)


def _share_ends(now: Configuration, gpus: tuple[Device, ...]) -> list[float]:
    shares = [float(gpu.free_bytes) for gpu in gpus]
    if len(gpus) > 1 and any(now.tensor_split):
        shares = [*now.tensor_split, *[0.0] * (len(gpus) - len(now.tensor_split))]
    if len(shares) > len(gpus):
        n_shares = len(now.tensor_split)
        raise PresetError(f"tensor_split has {n_shares} shares: write {len(gpus)}, one per GPU")
    total = sum(shares)
    return [part / total for part in accumulate(shares)] if total else [1.0] * len(gpus)


def cached_bytes(
    sizes: Mapping[int, int], configuration: Configuration, where: Placement
) -> dict[Device, int]:
    """Cache bytes of layers, by device; entries after the last layer are on the CPU."""
    layers_of = where.layers_of if configuration.offload_kqv else {}
    totals = {device: sum(sizes.get(i, 0) for i in own) for device, own in layers_of.items()}
    rest = sum(sizes.values()) - sum(totals.values())
    totals[where.cpu] = totals.get(where.cpu, 0) + rest
    return {device: nbytes for device, nbytes in totals.items() if nbytes}


def offloaded_tensor_bytes(model: Model, configuration: Configuration, where: Placement) -> int:
    """Bytes of the largest tensors that are copied to the first GPU at once; 0 if none is.

    Without a gate the second matrix of a feed-forward block, if it is larger, does not fit into the
    space of the first; models that run their layers in loops hold all tensors of these.
    """
    architecture, family = model.architecture, model.architecture.family
    overrides, n_cpu_moe = configuration.tensor_overrides, configuration.n_cpu_moe
    layers, moved = _layer_tensors(model.file, overrides, n_cpu_moe)
    on_cpu = [layers[i] for i, device in enumerate(where.layer_devices) if device.kind == "cpu"]
    n_loops = model.file.integer(f"{architecture.name}.num_loops") or 1
    if family.loops == "always" or (family.loops and n_loops > 1):
        return sum(total for total, _, _ in on_cpu)
    is_uneven = bool(architecture.states) if family.is_uneven is None else family.is_uneven
    if n_cpu_moe and is_uneven:
        moved = round(moved * UNEVEN_FACTOR)
    is_gated = architecture.widths.is_gated
    return max([moved, *(gated if is_gated else ungated for _, gated, ungated in on_cpu)])


@cached_by_header(64)
def _layer_tensors(
    file: GgufFile, overrides: tuple[TensorOverride, ...], n_cpu_moe: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Tensors of each layer, and the largest that overrides keep on the CPU, in bytes.

    Of a layer: the sum, the largest with a gate, and the largest without.
    """
    layers: list[dict[str, int]] = [{} for _ in range(layer_counts(HeaderKeys(file))[0])]
    moved = 0
    for part in tensor_parts(file, overrides, n_cpu_moe):
        tensor = part.tensor
        if part.override is not None:
            moved = max(moved, tensor.nbytes * (part.override.upper() == CPU))
        elif part.layer is not None:
            layers[part.layer][tensor.name.split(".", 2)[-1]] = tensor.nbytes
    found = []
    for sizes in layers:
        largest = max(sizes.values(), default=0)
        up, down = sizes.get("ffn_up.weight", 0), sizes.get("ffn_down.weight", 0)
        found.append((sum(sizes.values()), largest, max(largest, (up + down) * (up < down))))
    return found, moved
