"""The compute buffers of a graph, device by device.

llama.cpp 0c1e57098 reserves one buffer for each backend, for the largest graph (`sched_reserve`,
`src/llama-context.cpp`); the scheduler adds copies of what crosses devices
(`ggml/src/ggml-backend.cpp`).
"""

from dataclasses import dataclass, replace

from engine.configuration import Configuration
from engine.memory.compute import (
    COPYING,
    Place,
    attention_bytes,
    compute_bounds,
    compute_bytes,
    cuda_copy_bytes,
    float_mask_bytes,
    has_rotated_keys,
    inner_bytes,
    input_bytes,
    layers_bytes,
    logits_bytes,
)
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, is_quantized, layers_kv_bytes
from engine.memory.placement import Placement, offloaded_tensor_bytes
from engine.memory.terms import Ledger, Source, TermKind
from engine.memory.units import FLOAT_BYTES
from engine.model.architecture import Architecture, Model

MIN_OFFLOAD_TOKENS = 32  # from which weights in RAM are copied to the first GPU (`op_offload`)
PIPELINE_COPIES = 4  # of each input if several GPUs work in a pipeline (`GGML_SCHED_MAX_COPIES`)
MAX_COPIES = 30  # tensors that are copied to a device at once (`GGML_SCHED_MAX_SPLIT_INPUTS`)


@dataclass(frozen=True, slots=True)
class Graph:
    """A model's graph on the devices of a placement."""

    model: Model
    configuration: Configuration
    shape: CacheShape
    where: Placement

    @property
    def architecture(self) -> Architecture:
        return self.model.architecture

    @property
    def is_pipelined(self) -> bool:
        """Whether several GPUs work on different ubatches at once, which multiplies inputs."""
        is_split = len(self.where.gpus) > 1 and self.configuration.split_mode == "layer"
        return is_split and self.where.output_device.kind == "gpu" and not self.is_mixed

    @property
    def first_gpu(self) -> Device | None:
        """The GPU that weights in RAM are copied to: the first of this machine, no RPC worker."""
        return next((gpu for gpu in self.where.gpus if not gpu.worker), None)

    @property
    def is_offloaded(self) -> bool:
        """Whether layers in RAM are computed on the first GPU for large batches."""
        return self.first_gpu is not None and self.shape.n_graph_tokens >= MIN_OFFLOAD_TOKENS

    @property
    def has_cpu_layers(self) -> bool:
        """Whether layers are in RAM."""
        return any(device.kind == "cpu" for device in self.where.layers_of)

    @property
    def is_mixed(self) -> bool:
        """Whether parts of model or cache are in RAM."""
        is_moved = self.configuration.tensor_overrides or self.configuration.n_cpu_moe
        return bool(is_moved) or not self.configuration.offload_kqv or self.has_cpu_layers

    @property
    def hidden_bytes(self) -> int:
        """The hidden states of all tokens."""
        return self.shape.n_graph_tokens * self.architecture.d_hidden * FLOAT_BYTES

    @property
    def embedded_bytes(self) -> int:
        """The embeddings of all tokens, and the image features beside them (DeepStack)."""
        return (1 + self.architecture.n_image_rows) * self.hidden_bytes

    def layers_on(self, device: Device) -> list[int]:
        """The layers of a device, without those of an MTP head."""
        layers = self.where.layers_of.get(device, ())
        return [index for index in layers if index < self.architecture.n_layers]

    def part(self, indices: list[int]) -> Architecture:
        """The model with these layers only."""
        architecture, chosen = self.architecture, set(indices)
        if len(chosen) >= architecture.n_layers:
            return architecture
        owners = {i: architecture.sharing.get(i, i) for i in sorted(chosen)}
        layers = {i: architecture.layers[o] for i, o in owners.items() if o in architecture.layers}
        return replace(
            architecture,
            layers=layers,
            states={i: row for i, row in architecture.states.items() if i in chosen},
            layer_embedding_width=architecture.layer_embedding_width * (0 in chosen),
            n_image_rows=architecture.n_image_rows * (min(chosen) < architecture.n_image_rows),
        )


def add_graph(ledger: Ledger, graph: Graph, n_outputs: int) -> None:
    """Add the compute buffers of every device that runs a part of the model."""
    architecture, shape, where, gpu = graph.architecture, graph.shape, graph.where, graph.first_gpu

    def add(device: Device, place: Place, nbytes: int, note: str) -> None:
        bounds = compute_bounds(architecture, shape, nbytes, place)
        ledger.add(device, TermKind.COMPUTE, nbytes, Source.ESTIMATED, note, bounds)

    if not where.gpus:
        add(ledger.cpu, "cpu", compute_bytes(architecture, shape, n_outputs), "formula")
    offloading = (gpu,) if gpu and graph.is_offloaded else ()
    used = dict.fromkeys((*where.layers_of, where.output_device, *offloading))
    for device in used if where.gpus else ():
        nbytes, crossing = _device_bytes(graph, device)
        if device == where.output_device:
            nbytes = max(nbytes, logits_bytes(architecture, shape, n_outputs) + crossing)
        if nbytes and device.kind == "cpu":
            add(device, "mixed host", nbytes, "formula")
        elif nbytes:
            place: Place = "mixed gpu" if graph.is_mixed else "gpu"
            add(device, place, nbytes, "formula, not measured on this GPU")
    if where.gpus and (graph.is_offloaded or not graph.has_cpu_layers):
        place = "mixed host" if graph.is_mixed else "host"
        add(ledger.cpu, place, _host_input_bytes(graph), "inputs of the graph")
    rows = n_outputs * architecture.n_vocab * FLOAT_BYTES
    ledger.add(ledger.cpu, TermKind.COMPUTE, rows, Source.ESTIMATED, "rows of logits")


def _device_bytes(graph: Graph, device: Device) -> tuple[int, int]:
    """The buffer of a device's layers, and the copies of crossing tensors that are in it."""
    if device.kind == "cpu":
        is_idle = graph.is_offloaded or device not in graph.where.layers_of
        return (0 if is_idle else layers_bytes(graph.architecture, graph.shape)), 0
    layers, own = _gpu_layers_bytes(graph, device), graph.layers_on(device)
    if not own:
        return max(0, layers - graph.embedded_bytes), 0
    part = graph.part(own)
    masks = _mask_copies_bytes(graph, part, device)
    if not graph.is_pipelined:
        return max(0, layers - graph.embedded_bytes) + masks, 0
    crossing = PIPELINE_COPIES * (_crossing_bytes(graph, part, device) + masks)
    inputs = graph.hidden_bytes + input_bytes(part, graph.shape)
    return layers + crossing - inputs, crossing


def _mask_copies_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """The mask of MiniMax M3, made on the first GPU, of which each layer of others has a copy."""
    is_local = device == graph.where.gpus[0] or not graph.configuration.offload_kqv
    if is_local or graph.configuration.n_cpu_moe < 0:  # experts in RAM divide the graph by layers
        return 0
    n_layers = sum(layer.indexer_k_width > 0 for layer in part.layers.values())
    return n_layers * float_mask_bytes(graph.architecture, graph.shape)


def _gpu_layers_bytes(graph: Graph, device: Device) -> int:
    """The buffer of a GPU's layers, with the copies that CUDA and the scheduler make.

    The first GPU also computes layers in RAM, whose weights are copied to it.
    """
    shape, offloads = graph.shape, device == graph.first_gpu and graph.is_offloaded
    own = graph.layers_on(device)
    moved = [i for cpu in graph.where.layers_of if cpu.kind == "cpu" and offloads
             for i in graph.layers_on(cpu)]  # fmt: skip
    if not own and not offloads:
        return 0
    part = graph.part([*own, *moved]) if own or moved else graph.architecture
    attention, whole = attention_bytes(part, shape), layers_bytes(part, shape)
    copied = cuda_copy_bytes(part, shape) if device.vendor in COPYING else 0
    beside = whole if part.widths.is_parallel else attention  # a block runs before its result
    layers = max(whole, beside + copied) if own else 0
    tensor = offloaded_tensor_bytes(graph.model, graph.configuration, graph.where)
    if offloads and tensor:
        dense = replace(shape, flash_attention=True)  # no scores beside the copied tensor
        rest = layers_bytes(part, dense) - inner_bytes(part, dense)
        layers = max(layers, whole, max(attention_bytes(part, dense), rest) + tensor)
    if moved or not graph.configuration.offload_kqv:
        copies = _copied_cache_bytes(graph, part) + copied
        layers = max(layers, (attention + whole) // 2 + copies)
    return layers


def _copied_cache_bytes(graph: Graph, part: Architecture) -> int:
    """A layer's cache in RAM that is copied to a GPU.

    Layers that use the caches of others follow each other, and all those caches are copied before
    the first of them.
    """
    architecture, shape = graph.architecture, graph.shape
    layers = dict(enumerate(part.distinct_layers))
    largest = max(layers_kv_bytes(part, layers, shape).values(), default=0)
    owners = list(architecture.sharing.values())[: MAX_COPIES // 2]
    shared = {index: architecture.layers[owner] for index, owner in enumerate(owners)}
    return max(largest, sum(layers_kv_bytes(architecture, shared, shape).values()))


def _crossing_bytes(graph: Graph, part: Architecture, device: Device) -> int:
    """Copies sent to a pipelined GPU before its first layer: inputs and hidden states.

    After the first GPU hidden states cross plain and normed.
    """
    is_first = device == graph.where.gpus[0]
    n_states = 1 if is_first or part.widths.is_post_norm else 2
    n_states += part.n_image_rows * (not is_first)
    width = n_states * part.d_hidden + part.streams_width
    if min(graph.layers_on(device)) in part.states and not graph.architecture.layers:
        width += part.widths.state_input // (2 if is_first else 1)
    return graph.shape.n_graph_tokens * width * FLOAT_BYTES + input_bytes(part, graph.shape)


def _host_input_bytes(graph: Graph) -> int:
    """The inputs of the graph that RAM holds for the GPUs."""
    architecture, shape, hidden = graph.architecture, graph.shape, graph.hidden_bytes
    n_copies = PIPELINE_COPIES if graph.is_pipelined else 1
    inputs = n_copies * (graph.embedded_bytes + input_bytes(architecture, shape))
    return inputs + max(hidden, _cached_rows_bytes(graph))


def _cached_rows_bytes(graph: Graph) -> int:
    """Keys and values copied from a GPU to a cache in RAM."""
    architecture, shape = graph.architecture, graph.shape
    if graph.configuration.offload_kqv and not graph.has_cpu_layers:
        return 0
    row = architecture.widths.query if architecture.widths.is_fused else 0
    v_row = 0 if is_quantized(shape.type_v) and has_rotated_keys(architecture, shape) else row
    layers = architecture.distinct_layers
    width = max((layer.k_width + max(layer.v_width, v_row) for layer in layers), default=0)
    return shape.n_graph_tokens * width * FLOAT_BYTES
