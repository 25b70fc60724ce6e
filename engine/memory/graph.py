"""The buffers of the graph, device by device.

llama.cpp 0c1e57098 reserves one buffer for each backend, for the largest graph
(`sched_reserve`, `src/llama-context.cpp`); the scheduler adds copies of what crosses devices
(`ggml/src/ggml-backend.cpp`).
"""

from dataclasses import dataclass, field, replace

from engine.configuration import Configuration
from engine.memory.compute import (
    Place,
    attention_bytes,
    compute_bounds,
    compute_bytes,
    decay_bytes,
    has_rotated_keys,
    image_bytes,
    inner_bytes,
    input_bytes,
    layers_bytes,
    logits_bytes,
    mask_bytes,
    output_bytes,
    scores_width,
)
from engine.memory.cuda_kernels import (
    COPYING,
    attending_layers,
    cast_bytes,
    cast_shape,
    cuda_copy_bytes,
    leaves_gpus,
    scan_width,
    strays,
)
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, is_quantized, layers_kv_bytes
from engine.memory.placement import Placement, offloaded_tensor_bytes
from engine.memory.sparse_attention import FLOAT_BYTES, HALF_BYTES, transposed_values_bytes
from engine.memory.terms import Ledger, Source, TermKind
from engine.model.architecture import Architecture, Model
from engine.model.layers import StateRow

LEAST_TOKENS = 32
"""From how many tokens on weights of main memory visit the first GPU (`op_offload`)."""
MOST_COPIES = 30
"""Tensors that are copied to a device at once (`GGML_SCHED_MAX_SPLIT_INPUTS`)."""
PIPELINE_COPIES = 4
"""`GGML_SCHED_MAX_COPIES`: inputs are kept so often when several GPUs work in a pipeline."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A model's graph on the devices of a placement."""

    model: Model
    configuration: Configuration
    shape: CacheShape
    where: Placement
    architecture: Architecture = field(init=False)
    scan_width: int = field(init=False)
    """Elements of a token in a scan that the CPU runs for GPUs; 0 without one."""
    is_pipelined: bool = field(init=False)
    """Whether several GPUs work on different micro-batches at once, which multiplies inputs."""
    is_offloaded: bool = field(init=False)
    """Whether layers of main memory are computed on the first GPU when a batch is large: with no
    layer on a GPU, too, as long as llama.cpp finds one."""
    attends_on_cpu: bool = field(init=False)
    """Whether the CPU attends for layers of GPUs: it alone has a kernel."""
    transposes_late: bool = field(init=False)
    """Whether `auto` ended without flash attention: values are kept for it, and transposed."""

    def __post_init__(self) -> None:
        shape, architecture = self.shape, self.model.architecture
        by_cuda = not self.where.gpus or any(gpu.runs_cuda for gpu in self.where.gpus)
        found = {
            "architecture": architecture,
            "scan_width": scan_width(self.model) if by_cuda else 0,
            "is_pipelined": _is_pipelined(self.configuration, self.where),
            "is_offloaded": self.visited is not None and shape.n_graph_tokens >= LEAST_TOKENS,
            "attends_on_cpu": by_cuda and leaves_gpus(architecture, shape),
            "transposes_late": self.configuration.flash_attention == "auto"
            and architecture.has_flash_attention
            and not shape.flash_attention,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def visited(self) -> Device | None:
        """The GPU that weights of main memory visit: the first of this machine, no worker's."""
        return next((gpu for gpu in self.where.gpus if not gpu.worker), None)

    @property
    def n_copies(self) -> int:
        """How often each input is kept."""
        return PIPELINE_COPIES if self.is_pipelined else 1

    @property
    def has_cpu_layers(self) -> bool:
        """Whether layers lie in main memory."""
        return any(device.kind == "cpu" for device in self.where.distinct_devices)

    @property
    def is_whole(self) -> bool:
        """Whether model and cache lie on GPUs altogether."""
        is_moved = self.configuration.tensor_overrides or self.configuration.n_cpu_moe
        return self.configuration.offload_kqv and not is_moved and not self.has_cpu_layers

    def layers_on(self, device: Device) -> list[int]:
        """The layers of a device that a main context runs: not those of a next-token head."""
        return [
            index
            for first, end, other in self.where.spans
            if other == device
            for index in range(first, min(end, self.architecture.n_layers))
        ]

    def part(self, indices: list[int]) -> Architecture:
        """The model as if it had these layers alone."""
        architecture, chosen = self.architecture, set(indices)
        if len(chosen) >= architecture.n_layers:
            return architecture
        n_image_layers = architecture.n_image_rows  # features go to the first layers
        owners = {i: architecture.sharing.get(i, i) for i in sorted(chosen)}
        layers = {i: architecture.layers[o] for i, o in owners.items() if o in architecture.layers}
        states = {i: row for i, row in architecture.states.items() if i in chosen}
        return replace(
            architecture,
            layers=layers,
            states=states,
            layer_embedding_width=architecture.layer_embedding_width * (0 in chosen),
            n_image_rows=architecture.n_image_rows * (min(chosen, default=0) < n_image_layers),
        )


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
    visited = (graph.visited,) if graph.visited and graph.is_offloaded else ()
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
    _add_host_buffers(ledger, graph)
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
        return max(0, layers - _embedded_bytes(graph)), 0
    part = graph.part(own)
    layers += graph.n_copies * _masks_apart_bytes(graph, part)
    if not graph.is_pipelined:
        return max(0, layers - _embedded_bytes(graph)), 0
    crossing = PIPELINE_COPIES * _crossing_bytes(graph, part, device)
    layers += crossing - _input_bytes(graph, part)
    layers += PIPELINE_COPIES * _returning_bytes(graph, part, device)
    layers += PIPELINE_COPIES * _chosen_masks_bytes(graph, part, device)
    return layers, crossing


def _gpu_layers_bytes(graph: Graph, device: Device) -> int:
    """The buffer of the layers that a GPU runs, with the copies that CUDA and the scheduler make.

    The first GPU also runs the layers of main memory, whose weights visit it.
    """
    shape, visits = graph.shape, device == graph.visited and graph.is_offloaded
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
    layers = max(whole, attention + copied) if own else 0
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


def _crossing_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """What crosses to a GPU before its first layer: inputs, hidden states, gates of Mamba.

    Behind the first GPU hidden states cross as they are and normed, RWKV's with those of the
    tokens before.
    """
    is_first = device == graph.where.gpus[0]
    n_states = 1 if is_first or part.widths.is_normed_behind else 2
    n_states *= 2 if part.widths.mixtures and not part.widths.feed_forward else 1
    n_states += is_first and part.embeds_positions
    n_states += part.n_image_rows * (not is_first)
    width = n_states * part.d_hidden + part.streams_width
    is_hybrid = part.family.state == "mamba2" and bool(graph.architecture.layers)
    if min(graph.layers_on(device)) in part.states and not is_hybrid:
        width += part.widths.state_input // (2 if is_first else 1)
    embedded = graph.shape.n_graph_tokens * part.d_hidden * FLOAT_BYTES
    inputs = _input_bytes(graph, part) - embedded + decay_bytes(part, graph.shape)
    inputs += _of_other_layers_bytes(graph, device)
    return graph.shape.n_graph_tokens * width * FLOAT_BYTES + inputs


def _of_other_layers_bytes(graph: Graph, device: Device) -> int:
    """What layers of a GPU take from elsewhere (Gemma 3n and 4).

    Their own part of the embeddings for all layers, which the first GPU makes of whole ones, and
    caches of layers on another GPU. Streams come from the last GPU, where they are made.
    """
    whole, own = graph.architecture, set(graph.layers_on(device))
    if not whole.layer_embedding_width:
        return 0
    owners = {index: whole.sharing[index] for index in own & whole.sharing.keys()}
    shared = {i: whole.layers[owner] for i, owner in owners.items() if owner not in own}
    is_first = device == graph.where.gpus[0]
    share = 1 if is_first else len(own) / whole.n_blocks
    width = round(share * whole.layer_embedding_width) + whole.streams_width
    caches = layers_kv_bytes(whole, shared, graph.shape)
    return graph.shape.n_graph_tokens * width * FLOAT_BYTES + sum(caches.values())


def _returning_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """The results of attention and scans that the CPU ran, for each layer of a GPU."""
    nbytes = 0
    if graph.scan_width:
        nbytes += sum(_scan_bytes(graph, row) for row in part.states.values())
    if graph.attends_on_cpu:
        v_dim = max(part.v_head_dims)
        layers = attending_layers(part)[: len(graph.layers_on(device))]
        width = sum(layer.n_heads * (layer.v_head_dim or v_dim) for layer in layers)
        nbytes += graph.shape.n_graph_tokens * width * FLOAT_BYTES
    return nbytes


def _chosen_masks_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """The masks of chosen tokens that cross to the layers behind the first GPU.

    Those of one slot, or of slots with caches of their own: in a unified cache nothing is chosen.
    """
    shape = graph.shape
    is_sparse = shape.flash_attention and (shape.n_slots == 1 or not shape.kv_unified)
    if part.family.indexer != "blocks" or device == graph.where.gpus[0] or not is_sparse:
        return 0
    n_layers = sum(layer.indexer_k_width > 0 for layer in part.layers.values())
    return n_layers * shape.n_graph_tokens * shape.n_cells * FLOAT_BYTES


def _masks_apart_bytes(graph: Graph, part: Architecture) -> int:
    """The masks of sparse layers that are views of their own, beside the first."""
    if part.family.indexer != "latent pools":
        return 0
    n_layers = sum(layer.indexer_k_width > 0 for layer in part.layers.values())
    return max(0, n_layers - 1) * mask_bytes(part, graph.shape)


def _is_pipelined(configuration: Configuration, where: Placement) -> bool:
    return (
        len(where.gpus) > 1
        and configuration.split_mode == "layer"
        and configuration.offload_kqv
        and not configuration.tensor_overrides
        and not configuration.n_cpu_moe
        and all(device.kind == "gpu" for device in (*where.distinct_devices, where.output_device))
    )


def _embedded_bytes(graph: Graph) -> int:
    """The place of embeddings that nobody gives: beside GPUs it lies in main memory."""
    one = graph.shape.n_graph_tokens * graph.architecture.d_hidden * FLOAT_BYTES
    return one + image_bytes(graph.architecture, graph.shape)


def _input_bytes(graph: Graph, part: Architecture) -> int:
    """The inputs of a GPU: embedded tokens, positions, cells, masks."""
    embedded = graph.shape.n_graph_tokens * part.d_hidden * FLOAT_BYTES
    return embedded + (0 if graph.attends_on_cpu else _shared_input_bytes(graph, part))


def _shared_input_bytes(graph: Graph, part: Architecture) -> int:
    """The inputs of all devices: where `auto` ended, values are not transposed in the cache."""
    if graph.transposes_late:
        return mask_bytes(part, graph.shape)
    return input_bytes(part, graph.shape)


def _add_host_buffers(ledger: Ledger, graph: Graph) -> None:
    """Add what the CPU keeps for GPUs: inputs of the graph, and what it computes for them."""
    if not graph.where.gpus or (not graph.is_offloaded and graph.has_cpu_layers):
        return
    architecture, shape = graph.architecture, graph.shape
    embedded = _embedded_bytes(graph)
    inputs = embedded + _shared_input_bytes(graph, architecture)
    inputs = graph.n_copies * (inputs + decay_bytes(architecture, shape))
    hidden = shape.n_graph_tokens * architecture.d_hidden * FLOAT_BYTES
    inputs += max(hidden, _cached_rows_bytes(graph)) + architecture.embeds_positions * hidden
    computed = (_host_attention_bytes(graph), _host_scans_bytes(graph))
    inputs += sum(computed) if graph.is_pipelined else max(computed)
    note = "inputs of the graph"
    bounds = compute_bounds(
        architecture, shape, inputs, "host" if graph.is_whole else "visited host"
    )
    ledger.add(ledger.cpu, TermKind.COMPUTE, inputs, Source.ESTIMATED, note, bounds)


def _host_attention_bytes(graph: Graph) -> int:
    """The attention that the CPU runs for layers of GPUs, or of a hybrid in main memory."""
    architecture, shape = graph.architecture, graph.shape
    if graph.attends_on_cpu and graph.configuration.offload_kqv:
        return _visiting_attention_bytes(graph)
    if architecture.has_position_bias and graph.has_cpu_layers:
        return 2 * shape.n_graph_tokens * scores_width(architecture, shape) // 3 * FLOAT_BYTES
    if strays(architecture, graph.configuration) or _attends_before_state(graph):
        return attention_bytes(architecture, shape) - mask_bytes(architecture, shape)
    return 0


def _cached_rows_bytes(graph: Graph) -> int:
    """Keys and values that come from a GPU to a cache in main memory, in room of the embeddings.

    Values that are views of a fused row come with all of it; those that are rotated are tensors of
    their own. Where the CPU attends, queries come too, and its results are there.
    """
    architecture, shape = graph.architecture, graph.shape
    if graph.configuration.offload_kqv and not graph.has_cpu_layers:
        return 0
    row = architecture.widths.query if architecture.widths.is_fused else 0
    v_row = 0 if is_quantized(shape.type_v) and has_rotated_keys(architecture, shape) else row
    width = 0
    for layer in architecture.distinct_layers:
        stored = layer.k_width + max(layer.v_width, v_row)
        query = layer.n_heads * layer.k_head_dim
        result = layer.n_heads * layer.v_head_dim
        if graph.attends_on_cpu:
            stored = max(stored + query, query + result)
        width = max(width, stored)
    return shape.n_graph_tokens * width * FLOAT_BYTES


def _attends_before_state(graph: Graph) -> bool:
    """Whether a state in main memory follows a layer whose cache is there.

    The scheduler then leaves the attention between both on the CPU: only its scores count.
    """
    architecture = graph.architecture
    if graph.shape.flash_attention or architecture.is_moe:
        return False
    n_cpu = sum(len(graph.layers_on(d)) for d in graph.where.distinct_devices if d.kind == "cpu")
    if not graph.configuration.offload_kqv:
        n_cpu = architecture.n_layers
    return any(i + 1 in architecture.states and i + 1 < n_cpu for i in architecture.layers)


def _host_scans_bytes(graph: Graph) -> int:
    """The scans that the CPU runs: of each layer in a pipeline, else of one at a time."""
    architecture, shape = graph.architecture, graph.shape
    rows = list(architecture.states.values())
    if not rows:
        return 0
    nbytes = 0
    if graph.scan_width:
        scans = [_scan_bytes(graph, row) for row in rows]
        nbytes = PIPELINE_COPIES * sum(scans) if graph.is_pipelined else max(scans)
        nbytes += max(scans)
    elif graph.has_cpu_layers:
        widths = architecture.widths
        width = max(widths.state_input, widths.gated_delta_net, widths.delta_net)
        nbytes = shape.n_graph_tokens * width * FLOAT_BYTES
    return nbytes


def _scan_bytes(graph: Graph, row: StateRow) -> int:
    """What a scan takes from a GPU, and gives back: its tokens, and the states of all slots."""
    shape = graph.shape
    width = shape.n_graph_tokens * graph.scan_width + shape.n_slots * row.n_state
    return width * FLOAT_BYTES


def _visiting_attention_bytes(graph: Graph) -> int:
    """What visits the CPU for attention: queries, and caches with the values that are views.

    Of each layer in a pipeline. Caches in f32 come as the f16 copies that the graph makes of them.
    """
    architecture, shape = graph.architecture, cast_shape(graph.shape)
    n_tokens = shape.n_graph_tokens
    layers = attending_layers(architecture)
    kinds = dict(enumerate(dict.fromkeys(layers)))
    caches = layers_kv_bytes(architecture, kinds, shape)
    sizes = {}
    for index, layer in kinds.items():
        cache = caches[index]
        if architecture.attends_in_batch:
            cache = n_tokens * (layer.k_width + layer.v_width) * HALF_BYTES
        elif architecture.is_latent and not layer.v_head_dim:
            cache *= 2
        sizes[layer] = cache + n_tokens * layer.n_heads * layer.k_head_dim * FLOAT_BYTES
        if layer.indexer_k_width:
            sizes[layer] += n_tokens * shape.n_cells * HALF_BYTES
    if graph.is_pipelined:
        return PIPELINE_COPIES * sum(sizes[layer] for layer in layers)
    return max(sizes.values(), default=0)
