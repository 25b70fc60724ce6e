"""The buffers of the graph, device by device.

llama.cpp 0c1e57098 reserves one buffer for each backend, for the largest graph
(`sched_reserve`, `src/llama-context.cpp`); the scheduler adds copies of what crosses devices
(`ggml/src/ggml-backend.cpp`).
"""

from engine.configuration import Configuration
from engine.memory.compute import (
    FLOAT_BYTES,
    attention_bytes,
    layers_bytes,
    logits_bytes,
    mask_bytes,
    output_bytes,
    relative_spread,
)
from engine.memory.flash_attention import UNSCANNED, cuda_copy_bytes, leaves_gpus, strays
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, layer_state_bytes, layers_kv_bytes
from engine.memory.placement import LEAST_TOKENS, Placement, offloaded_tensor_bytes
from engine.memory.terms import Ledger, Source, TermKind
from engine.model.architecture import Architecture, Model

CELL_BYTES = 8
"""The number of a cell, as an input of the graph."""
SHARED_COPIES = 4
"""Copies of a shared cache that were alive at once, on stand-ins for GPUs."""
MASKS_CROSS = frozenset({"minimax-m3"})
"""Architectures whose masks of chosen tokens are made on the first GPU for all layers."""
PIPELINE_COPIES = 4
"""`GGML_SCHED_MAX_COPIES`: inputs are kept so often when several GPUs work in a pipeline."""


def add_graph(
    ledger: Ledger,
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
    n_outputs: int,
) -> None:
    """Add the compute buffers of every device that runs a part of the model."""
    architecture = model.architecture
    is_copied = is_pipelined(configuration, where)
    visited = where.gpus[:1] if is_offloaded(shape, where) else ()
    for device in dict.fromkeys((*where.distinct_devices, where.output_device, *visited)):
        layers, note = 0, "formula"
        if device.kind == "gpu":
            layers = gpu_layers_bytes(model, configuration, shape, where, device)
            note = "formula, not measured on this GPU"
        elif device in where.distinct_devices and not is_offloaded(shape, where):
            layers = layers_bytes(architecture, shape)
        crossing = 0
        if is_copied and device in where.distinct_devices:
            crossing = crossing_bytes(architecture, shape, where, device)
        if layers and crossing:
            layers += PIPELINE_COPIES * crossing - input_bytes(architecture, shape)
            layers += PIPELINE_COPIES * returning_bytes(architecture, shape, where, device)
            layers += PIPELINE_COPIES * chosen_masks_bytes(architecture, shape, where, device)
        logits = 0
        if device == where.output_device:
            logits = logits_bytes(architecture, shape, n_outputs) + PIPELINE_COPIES * crossing
        nbytes = max(layers, logits)
        if nbytes:
            spread = relative_spread(architecture, shape, nbytes)
            spread = max(spread, visiting_spread(architecture, configuration, where))
            ledger.add(device, TermKind.COMPUTE, nbytes, Source.ESTIMATED, note, spread)
    _add_host_buffers(ledger, model, configuration, shape, where)
    rows = output_bytes(architecture, n_outputs)
    ledger.add(ledger.cpu, TermKind.COMPUTE, rows, Source.ESTIMATED, "rows of logits")


def visiting_spread(
    architecture: Architecture, configuration: Configuration, where: Placement
) -> float:
    """Give how far a buffer may be off, as a part of it: more where layers or caches visit GPUs.

    The scatter of 95 % of shapes of all architectures against dry runs (`docs/accuracy.md`).
    """
    if not where.gpus:
        return 0.0
    if _is_whole(configuration, where):
        return 0.35 if architecture.states else 0.25
    return 0.5


def _is_whole(configuration: Configuration, where: Placement) -> bool:
    """Whether model and cache lie on GPUs altogether."""
    is_moved = configuration.tensor_overrides or configuration.n_cpu_moe
    return configuration.offload_kqv and not is_moved and not _has_layers_on_cpu(where)


def crossing_bytes(
    architecture: Architecture, shape: CacheShape, where: Placement, device: Device
) -> int:
    """Give what crosses to a GPU before its first layer: inputs, hidden states, gates of Mamba.

    Behind the first GPU hidden states cross as they are and normed.
    """
    is_first = device == where.gpus[0]
    width = (1 if is_first else 2) * architecture.d_hidden + architecture.side_width
    first = next((first for first, _, other in where.spans if other == device), None)
    if first in architecture.states:
        width += architecture.widths.state_input // (2 if is_first else 1)
    inputs = _cell_bytes(architecture, shape) + mask_bytes(architecture, shape)
    return shape.n_graph_tokens * width * FLOAT_BYTES + inputs


def returning_bytes(
    architecture: Architecture, shape: CacheShape, where: Placement, device: Device
) -> int:
    """Give the results of attention and scans that the CPU ran, for each layer of a GPU."""
    on_device = [i for i, other in enumerate(where.layer_devices) if other == device]
    width = 0
    if architecture.name in UNSCANNED:
        width = len(architecture.states.keys() & on_device) * architecture.widths.state_input // 2
    if leaves_gpus(architecture, shape):
        heads = [architecture.layers[i].n_heads for i in on_device if i in architecture.layers]
        width += sum(heads) * max(architecture.v_head_dims)
    return shape.n_graph_tokens * width * FLOAT_BYTES


def chosen_masks_bytes(
    architecture: Architecture, shape: CacheShape, where: Placement, device: Device
) -> int:
    """Give the masks of chosen tokens that cross to the layers behind the first GPU.

    Those of one slot, or of slots with caches of their own: in a unified cache nothing is chosen.
    """
    is_sparse = shape.flash_attention and (shape.n_slots == 1 or not shape.kv_unified)
    if architecture.name not in MASKS_CROSS or device == where.gpus[0] or not is_sparse:
        return 0
    sparse = {i for i, layer in architecture.layers.items() if layer.indexer_k_width}
    n_layers = sum(i in sparse for i, other in enumerate(where.layer_devices) if other == device)
    return n_layers * shape.n_graph_tokens * shape.n_cells * FLOAT_BYTES


def gpu_layers_bytes(
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
    device: Device,
) -> int:
    """Give the buffer of a GPU's layers: with the copies that CUDA and the scheduler make."""
    architecture, layers = model.architecture, 0
    is_first, whole = device == where.gpus[0], layers_bytes(architecture, shape)
    if _has_last_layer_alone(where, device):
        whole = attention_bytes(architecture, shape)
    if device in where.distinct_devices:
        attention = attention_bytes(architecture, shape) + cuda_copy_bytes(architecture, shape)
        layers = max(whole, attention)
        layers -= mask_bytes(architecture, shape) * leaves_gpus(architecture, shape)
    visits = is_first and is_offloaded(shape, where)
    if visits:
        visiting = offloaded_tensor_bytes(model, configuration, where)
        layers = max(layers, whole + visiting if visiting else 0)
    if not configuration.offload_kqv or (visits and _has_layers_on_cpu(where)):
        layers = max(layers, attention_over_copies_bytes(architecture, shape))
    elif device == where.output_device:
        layers += shared_cache_bytes(architecture, configuration, shape, where)
    return layers


def _has_last_layer_alone(where: Placement, device: Device) -> bool:
    """Whether a GPU has the last layer and no other: behind attention few tokens are left."""
    first, end, last = where.spans[-1]
    return last == device and end - first == 1 and device not in where.layer_devices[:first]


def is_offloaded(shape: CacheShape, where: Placement) -> bool:
    """Whether layers of main memory are computed on the first GPU when a batch is large.

    So it is with no layer on a GPU, too, as long as llama.cpp finds one.
    """
    return bool(where.gpus) and shape.n_graph_tokens >= LEAST_TOKENS


def attention_over_copies_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give attention on a GPU over a layer's cache that lies in main memory, and is copied.

    What else is alive then lies between attention alone and the whole layer: the mean came close
    on 192 models.
    """
    n_copies = SHARED_COPIES if architecture.n_sharing else 1
    beside = attention_bytes(architecture, shape) + layers_bytes(architecture, shape)
    cache = n_copies * _largest_cache_bytes(architecture, shape)
    return beside // 2 + cache + cuda_copy_bytes(architecture, shape)


def shared_cache_bytes(
    architecture: Architecture, configuration: Configuration, shape: CacheShape, where: Placement
) -> int:
    """Give the copies of a cache that layers of another GPU share (Gemma 3n and 4)."""
    n_owning = len(where.layer_devices) - architecture.n_sharing
    owners = set(where.layer_devices[max(0, n_owning - 2) : n_owning])
    sharing = set(where.layer_devices[n_owning:])
    if not sharing or owners == sharing:
        return 0
    n_copies = SHARED_COPIES * (2 if is_pipelined(configuration, where) else 1)
    return n_copies * _largest_cache_bytes(architecture, shape)


def _largest_cache_bytes(architecture: Architecture, shape: CacheShape) -> int:
    layers = dict(enumerate(architecture.distinct_layers))
    return max(layers_kv_bytes(architecture, layers, shape).values(), default=0)


def _has_layers_on_cpu(where: Placement) -> bool:
    return any(device.kind == "cpu" for device in where.distinct_devices)


def is_pipelined(configuration: Configuration, where: Placement) -> bool:
    """Whether several GPUs work on different micro-batches at once, which multiplies inputs."""
    return (
        len(where.gpus) > 1
        and configuration.split_mode == "layer"
        and configuration.offload_kqv
        and not configuration.tensor_overrides
        and not configuration.n_cpu_moe
        and all(device.kind == "gpu" for device in (*where.distinct_devices, where.output_device))
    )


def input_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the inputs of the graph: embedded tokens, masks, and where transposed values go."""
    embedded = shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES
    return embedded + _cell_bytes(architecture, shape) + mask_bytes(architecture, shape)


def _cell_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give the cells that values go to one by one: transposed, in each of a model's caches."""
    if shape.flash_attention:
        return 0
    n_caches = len({layer.window is None for layer in architecture.distinct_layers})
    return n_caches * shape.n_graph_tokens * architecture.v_width_max * CELL_BYTES


def _add_host_buffers(
    ledger: Ledger,
    model: Model,
    configuration: Configuration,
    shape: CacheShape,
    where: Placement,
) -> None:
    """Add what the CPU keeps for GPUs: inputs of the graph, and what it computes for them."""
    is_alone = not where.gpus
    if is_alone or (not is_offloaded(shape, where) and _has_layers_on_cpu(where)):
        return
    architecture = model.architecture
    n_copies = PIPELINE_COPIES if is_pipelined(configuration, where) else 1
    embedded = architecture.d_hidden + architecture.layer_embedding_width
    inputs = n_copies * input_bytes(architecture, shape)
    inputs += shape.n_graph_tokens * embedded * FLOAT_BYTES
    if not configuration.offload_kqv:
        inputs += shape.n_graph_tokens * architecture.widths.key_value * FLOAT_BYTES
    if leaves_gpus(architecture, shape) and configuration.offload_kqv:
        inputs += _visiting_attention_bytes(architecture, shape, n_copies)
    if any(
        device.kind == "cpu" and i in architecture.states
        for i, device in enumerate(where.layer_devices)
    ):
        inputs += shape.n_graph_tokens * architecture.widths.state_input * FLOAT_BYTES
    if architecture.name in UNSCANNED and n_copies > 1:
        inputs += n_copies * _visiting_scans_bytes(architecture, shape)
    if strays(architecture, configuration):
        inputs += attention_bytes(architecture, shape)
    note = "inputs of the graph"
    spread = 0.25 if _is_whole(configuration, where) else 0.5
    ledger.add(ledger.cpu, TermKind.COMPUTE, inputs, Source.ESTIMATED, note, spread)


def _visiting_scans_bytes(architecture: Architecture, shape: CacheShape) -> int:
    """Give activations and states that visit the CPU for a scan, of each recurrent layer."""
    states = layer_state_bytes(architecture, shape)
    activations = shape.n_graph_tokens * architecture.widths.state_input // 2 * FLOAT_BYTES
    return len(states) * activations + sum(states.values())


def _visiting_attention_bytes(architecture: Architecture, shape: CacheShape, n_copies: int) -> int:
    """Give queries and caches that visit the CPU for attention: of each layer in a pipeline."""
    caches = layers_kv_bytes(architecture, architecture.layers, shape)
    k_dim = max(architecture.k_head_dims)
    query = shape.n_graph_tokens * k_dim * FLOAT_BYTES
    sizes = [caches[i] + query * layer.n_heads for i, layer in architecture.layers.items()]
    return n_copies * sum(sizes) if n_copies > 1 else max(sizes, default=0)
