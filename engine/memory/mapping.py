"""How the weights of a model are in RAM: mapped from the file, copied, or both.

llama.cpp reads a file through its pages. Weights that it repacks for the processor or sends to a
GPU are copied out of them and need their pages no more, but it unmaps only what lies before the
first tensor that is used in place and after the last (0c1e57098, `get_mapping_range` and
`unmap_fragment`, `src/llama-model-loader.cpp`). The pages between stay resident, so `top` shows
them, until the system wants them for something else.
"""

from dataclasses import dataclass, replace

from engine.configuration import Configuration
from engine.memory.hardware import Device, Instructions, is_repacked
from engine.memory.placement import Placement, device_named, repacks
from engine.memory.weights import (
    OUTPUT_PREFIXES,
    layer_of,
    loaded_tensors,
    moved_tensors,
    output_as_embeddings,
    padded_bytes,
    tied_embeddings,
)
from engine.model.architecture import layer_counts
from engine.model.gguf import GgufFile, HeaderKeys, cached_by_header
from engine.model.tensor_table import LOOKED_UP

Spans = tuple[tuple[int, int, Device], ...]


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Bytes of weights in RAM."""

    mapped: int
    """Pages of the file that stay mapped; 0 where the file is read into memory instead."""
    reclaimable: int
    """Those among them that the system may take back: their weights lie elsewhere, too."""
    repacked: int
    """Weights that are rearranged for the processor, in memory of the process."""
    doubled: int = 0
    """Weights that lie twice where the file is read into memory, and once where it is mapped."""


def mapped_weights(
    file: GgufFile,
    configuration: Configuration,
    where: Placement,
    gpus: tuple[Device, ...],
    cpu: Device,
    *,
    with_head: bool = False,
) -> MappedWeights:
    """How the weights of a placed model are in RAM."""
    moved = moved_tensors(file, configuration.tensor_overrides, configuration.n_cpu_moe)
    devices = tuple((name, device_named(device, gpus, cpu)) for name, device in moved)
    instructions = cpu.instructions if repacks(configuration, gpus, cpu) else "none"
    layers = (*where.spans, (len(where.layer_devices), 1 << 30, where.output_device))
    found = _mapped_weights(file, layers, devices, instructions, with_head)
    if not configuration.use_mmap:
        return MappedWeights(0, 0, found.repacked)
    stays = found.mapped - found.reclaimable + found.repacked
    return replace(found, doubled=max(0, where.weight_bytes[cpu] - stays))


def _range_bytes(file: GgufFile, in_place: set[str]) -> int:
    """From the first to the last tensor that is used in place, in each file of a model."""
    spans: dict[int, tuple[int, int]] = {}
    number = -1
    for tensor in file.tensors:
        number += tensor.offset == 0
        if tensor.name in in_place:
            end = tensor.offset + tensor.nbytes
            first, last = spans.get(number, (tensor.offset, end))
            spans[number] = min(first, tensor.offset), max(last, end)
    return sum(last - first for first, last in spans.values())


@cached_by_header(32)
def _mapped_weights(
    file: GgufFile,
    layers: Spans,
    moved: tuple[tuple[str, Device], ...],
    instructions: Instructions,
    with_head: bool,
) -> MappedWeights:
    n_blocks, _ = layer_counts(HeaderKeys(file))
    by_index = [device for first, end, device in layers for _ in range(first, min(end, n_blocks))]
    output, overridden = layers[-1][2], dict(moved)
    looked_up, tied = output_as_embeddings(file), tied_embeddings(file)
    in_place: set[str] = set()
    needed = repacked = 0
    for tensor in loaded_tensors(file, with_head=with_head):
        index = layer_of(tensor.name, n_blocks)
        device = overridden.get(tensor.name)
        if device is None and index is not None:
            device = by_index[index]
        elif device is None and tensor.name.startswith(OUTPUT_PREFIXES):
            device = output
        if device is not None and device.kind == "gpu":
            needed += padded_bytes(tensor) * device.is_unified
            continue
        is_row = tensor is looked_up or bool(LOOKED_UP.search(tensor.name))
        is_multiplied = not is_row or (tensor is tied and output.kind == "cpu")
        is_copied = is_multiplied and is_repacked(tensor, instructions)
        repacked += padded_bytes(tensor) * is_copied
        if is_row or not is_copied:
            in_place.add(tensor.name)
            needed += padded_bytes(tensor)
    mapped = _range_bytes(file, in_place)
    return MappedWeights(mapped, max(0, mapped - needed), repacked)
