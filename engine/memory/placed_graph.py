"""A model's graph on the devices of a placement, and what all of its buffers ask of it."""

from dataclasses import dataclass, field, replace

from engine.configuration import Configuration
from engine.memory.compute import image_bytes, input_bytes, mask_bytes
from engine.memory.cuda_kernels import leaves_gpus, scan_width
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape
from engine.memory.placement import Placement
from engine.memory.units import FLOAT_BYTES
from engine.model.architecture import Architecture, Model
from engine.model.layers import StateRow

LEAST_TOKENS = 32
"""From how many tokens on weights of main memory visit the first GPU (`op_offload`)."""
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
            "is_offloaded": self.visited_gpu is not None and shape.n_graph_tokens >= LEAST_TOKENS,
            "attends_on_cpu": by_cuda and leaves_gpus(architecture, shape),
            "transposes_late": self.configuration.flash_attention == "auto"
            and architecture.has_flash_attention
            and not shape.flash_attention,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def visited_gpu(self) -> Device | None:
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


def _is_pipelined(configuration: Configuration, where: Placement) -> bool:
    return (
        len(where.gpus) > 1
        and configuration.split_mode == "layer"
        and configuration.offload_kqv
        and not configuration.tensor_overrides
        and not configuration.n_cpu_moe
        and all(device.kind == "gpu" for device in (*where.distinct_devices, where.output_device))
    )


def embedded_bytes(graph: Graph) -> int:
    """The place of embeddings that nobody gives: beside GPUs it lies in main memory."""
    one = graph.shape.n_graph_tokens * graph.architecture.d_hidden * FLOAT_BYTES
    return one + image_bytes(graph.architecture, graph.shape)


def gpu_input_bytes(graph: Graph, part: Architecture) -> int:
    """The inputs of a GPU: embedded tokens, positions, cells, masks."""
    embedded = graph.shape.n_graph_tokens * part.d_hidden * FLOAT_BYTES
    return embedded + (0 if graph.attends_on_cpu else shared_input_bytes(graph, part))


def shared_input_bytes(graph: Graph, part: Architecture) -> int:
    """The inputs of all devices: where `auto` ended, values are not transposed in the cache."""
    if graph.transposes_late:
        return mask_bytes(part, graph.shape)
    return input_bytes(part, graph.shape)


def scan_bytes(graph: Graph, row: StateRow) -> int:
    """What a scan takes from a GPU, and gives back: its tokens, and the states of all slots."""
    shape = graph.shape
    width = shape.n_graph_tokens * graph.scan_width + shape.n_slots * row.n_state
    return width * FLOAT_BYTES
