"""The buffers of the graph, device by device.

llama.cpp 0c1e57098 reserves one buffer for each backend, for the largest graph
(`sched_reserve`, `src/llama-context.cpp`); the scheduler adds copies of what crosses devices
(`ggml/src/ggml-backend.cpp`).
"""

from dataclasses import replace

from engine.configuration import Configuration
from engine.memory.compute import (
    Place,
    attention_bytes,
    compute_bounds,
    compute_bytes,
    inner_bytes,
    layers_bytes,
    logits_bytes,
    mask_bytes,
    output_bytes,
)
from engine.memory.cuda_kernels import COPYING, cast_bytes, cast_shape, cuda_copy_bytes
from engine.memory.hardware import Device
from engine.memory.host_buffers import add_host_buffers
from engine.memory.kv_cache import CacheShape, layers_kv_bytes
from engine.memory.pipeline import chosen_masks_bytes, crossing_bytes, returning_bytes
from engine.memory.placed_graph import PIPELINE_COPIES, Graph, embedded_bytes, gpu_input_bytes
from engine.memory.placement import Placement, offloaded_tensor_bytes
from engine.memory.sparse_attention import transposed_values_bytes
from engine.memory.terms import Ledger, Source, TermKind
from engine.model.architecture import Architecture, Model

MOST_COPIES = 30
"""Tensors that are copied to a device at once (`GGML_SCHED_MAX_SPLIT_INPUTS`)."""


def add_graph(
    ledger: Ledger,
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
    n_outputs: int,
) -> None:
    """Add the compute buffers of every device that runs a part of the model."""
    graph = Graph(model, configuration, shape, where)
    visited = (graph.visited_gpu,) if graph.visited_gpu and graph.is_offloaded else ()
    for device in dict.fromkeys((*where.distinct_devices, where.output_device, *visited)):
        layers, crossing = _layers_on_device_bytes(graph, device)
        logits = 0
        if device == where.output_device:
            logits = logits_bytes(graph.architecture, shape, n_outputs) + crossing
        nbytes = max(layers, logits)
        if not where.gpus:
            nbytes = compute_bytes(graph.architecture, shape, n_outputs)
        if nbytes:
            _add_buffer(ledger, graph, device, nbytes)
    add_host_buffers(ledger, graph)
    _add_output_rows(ledger, graph, n_outputs)


def _add_buffer(ledger: Ledger, graph: Graph, device: Device, nbytes: int) -> None:
    note = "formula" if device.kind == "cpu" else "formula, not measured on this GPU"
    place: Place = "cpu"
    if device.kind == "gpu":
        place = "gpu" if graph.is_whole else "visited gpu"
    elif graph.where.gpus:
        place = "visited host"
    bounds = compute_bounds(graph.architecture, graph.shape, nbytes, place)
    ledger.add(device, TermKind.COMPUTE, nbytes, Source.ESTIMATED, note, bounds)


def _add_output_rows(ledger: Ledger, graph: Graph, n_outputs: int) -> None:
    rows = output_bytes(graph.architecture, n_outputs)
    ledger.add(ledger.cpu, TermKind.COMPUTE, rows, Source.ESTIMATED, "rows of logits")


def _layers_on_device_bytes(graph: Graph, device: Device) -> tuple[int, int]:
    """The buffer of a device's layers, and the copies of what crosses to it that are in it."""
    if device.kind == "cpu":
        is_idle = graph.is_offloaded or device not in graph.where.distinct_devices
        return (0 if is_idle else layers_bytes(graph.architecture, graph.shape)), 0
    layers = _gpu_layers_bytes(graph, device)
    own = graph.layers_on(device)
    if not own:
        return max(0, layers - embedded_bytes(graph)), 0
    part = graph.part(own)
    layers += graph.n_copies * _masks_apart_bytes(graph, part)
    if not graph.is_pipelined:
        return max(0, layers - embedded_bytes(graph)), 0
    crossing = PIPELINE_COPIES * crossing_bytes(graph, part, device)
    layers += crossing - gpu_input_bytes(graph, part)
    layers += PIPELINE_COPIES * returning_bytes(graph, part, device)
    layers += PIPELINE_COPIES * chosen_masks_bytes(graph, part, device)
    return layers, crossing


def _gpu_layers_bytes(graph: Graph, device: Device) -> int:
    """The buffer of the layers that a GPU runs, with the copies that CUDA and the scheduler make.

    The first GPU also runs the layers of main memory, whose weights visit it.
    """
    shape, visits = graph.shape, device == graph.visited_gpu and graph.is_offloaded
    own = graph.layers_on(device)
    visiting = [i for cpu in graph.where.distinct_devices if cpu.kind == "cpu" and visits
                for i in graph.layers_on(cpu)]  # fmt: skip
    if not own and not visits:
        return 0
    part = graph.part([*own, *visiting]) if own or visiting else graph.architecture
    seen = _without_attention(shape) if graph.attends_on_cpu else shape
    attention = attention_bytes(part, seen) + _late_values_bytes(graph, part)
    is_alone = _is_last_layer(graph, [*own, *visiting])
    whole = attention if is_alone else layers_bytes(part, seen)
    if graph.attends_on_cpu:
        attention, whole = (n - mask_bytes(part, seen) for n in (attention, whole))
    is_copied = bool(visiting) or not graph.configuration.offload_kqv
    copied = cuda_copy_bytes(part, shape) if device.vendor in COPYING else 0
    beside = whole if part.widths.is_parallel else attention  # a block runs before its result
    layers = max(whole, beside + copied) if own else 0
    if graph.attends_on_cpu and (cast := cast_bytes(part, shape)):
        layers = max(layers, attention + cast + is_copied * _copied_cache_bytes(graph, part))
    tensor = offloaded_tensor_bytes(graph.model, graph.configuration, graph.where)
    if visits and tensor:
        beside = whole if is_alone else _beside_tensor_bytes(graph, part)
        layers = max(layers, whole, beside + tensor)
    if is_copied and not graph.attends_on_cpu:
        copies = _copied_cache_bytes(graph, part) + copied
        layers = max(layers, (attention + whole) // 2 + copies)
    return layers


def _beside_tensor_bytes(graph: Graph, part: Architecture) -> int:
    """What is there with a tensor that visits a GPU: no scores, nor all activations of a block."""
    shape = _without_attention(graph.shape)
    layers = layers_bytes(part, shape)
    return max(attention_bytes(part, shape), layers - inner_bytes(part, shape))


def _without_attention(shape: CacheShape) -> CacheShape:
    """The cache of layers for which the CPU attends: a GPU has no scores and no casts."""
    return replace(cast_shape(shape), flash_attention=True)


def _late_values_bytes(graph: Graph, architecture: Architecture) -> int:
    if not graph.transposes_late:
        return 0
    return transposed_values_bytes(architecture, graph.shape)


def _is_last_layer(graph: Graph, indices: list[int]) -> bool:
    """Whether a GPU runs the last layer and no other: behind attention few tokens are left.

    Not so for a state, for mixed streams, and where a next-token head wants all hidden states.
    """
    architecture, last = graph.architecture, graph.architecture.n_layers - 1
    is_cut = architecture.n_blocks == architecture.n_layers and not architecture.n_streams
    return is_cut and last not in architecture.states and indices == [last]


def _copied_cache_bytes(graph: Graph, part: Architecture) -> int:
    """A layer's cache that lies in main memory, copied to a GPU.

    What else is alive then lies between attention alone and the whole layer: the mean came close
    on 192 models. Layers that use the caches of others follow each other without a break, and
    theirs are all copied before the first of them, as many as llama.cpp takes at once.
    """
    architecture, shape = graph.architecture, graph.shape
    layers = dict(enumerate(part.distinct_layers))
    largest = max(layers_kv_bytes(part, layers, shape).values(), default=0)
    owners = list(architecture.sharing.values())[: MOST_COPIES // 2]
    shared = {index: architecture.layers[owner] for index, owner in enumerate(owners)}
    return max(largest, sum(layers_kv_bytes(architecture, shared, shape).values()))


def _masks_apart_bytes(graph: Graph, part: Architecture) -> int:
    """The masks of sparse layers that are views of their own, beside the first."""
    if part.family.indexer != "latent pools":
        return 0
    n_layers = sum(layer.indexer_k_width > 0 for layer in part.layers.values())
    return max(0, n_layers - 1) * mask_bytes(part, graph.shape)
