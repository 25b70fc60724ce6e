"""A graph of tensors as ggml holds it, which device computes each, and what is copied between them.

`ggml_build_forward_expand` of `ggml/src/ggml.c` and `ggml_backend_sched_split_graph` of
`ggml/src/ggml-backend.cpp` (llama.cpp 0c1e57098). Sizes are names, so that one graph serves every
context of a model. Devices are numbers, the GPUs first and the CPU last.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

Size = tuple[int, str]
"""Whose tensor it is (a layer by its number, or one of the numbers below zero), and which."""


class Kind(Enum):
    """Where the data of a tensor are."""

    COMPUTED = auto()
    VIEW = auto()
    """In another tensor."""
    INPUT = auto()
    """Written by the program before the graph runs."""
    WEIGHT = auto()
    CACHE = auto()


@dataclass(slots=True, eq=False)
class Tensor:
    """One tensor; `size` is None where it takes no room of its own."""

    size: Size | None
    sources: tuple["Tensor", ...] = ()
    kind: Kind = Kind.COMPUTED
    device: int | None = None
    """The device that computes or holds it; None where the scheduler chooses."""
    replaces: tuple["Tensor", ...] = ()
    """Sources of the same layout: it takes the room of the first that nobody else needs."""
    gpu_size: Size | None = None
    """Its size on a GPU, where a kernel keeps more there."""
    is_cpu_only: bool = False
    """Whether no GPU has a kernel for it."""
    is_kept: bool = False
    """Whether its room is never given to others."""


@dataclass(slots=True)
class TensorGraph:
    """Tensors in the order in which they are computed."""

    nodes: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    _known: set[Tensor] = field(default_factory=set)

    def expand(self, tensor: Tensor) -> Tensor:
        """Add a tensor behind all that it is made of, sources from first to last."""
        if tensor in self._known:
            return tensor
        self._known.add(tensor)
        path = [(tensor, iter(tensor.sources))]
        while path:
            node, sources = path[-1]
            source = next((source for source in sources if source not in self._known), None)
            if source is not None:
                self._known.add(source)
                path.append((source, iter(source.sources)))
                continue
            path.pop()
            if node.kind is Kind.INPUT:
                self.inputs.append(node)
            elif node.kind in (Kind.COMPUTED, Kind.VIEW):
                self.nodes.append(node)
        return tensor


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tensors with their devices, copies among them."""

    leading: list[Tensor]
    """Tensors that have room before all others."""
    steps: list[Tensor]


def schedule(graph: TensorGraph, n_devices: int, n_copies: int) -> Schedule:
    """Choose the devices of a graph's tensors, and copy what a device lacks.

    Args:
        graph: The graph; its tensors get their devices, and copies as their sources.
        n_devices: The GPUs and the CPU.
        n_copies: How often inputs of devices are kept (`GGML_SCHED_MAX_COPIES` in a pipeline).
    """
    cpu = n_devices - 1
    if cpu:
        for gpus_only in (True, False):
            _spread(graph.nodes, cpu, gpus_only=gpus_only)
            _spread(reversed(graph.nodes), cpu, gpus_only=gpus_only)
    for node in graph.nodes:
        if node.device is None:
            node.device = node.sources[0].device if node.kind is Kind.VIEW else cpu
    steps, copies = _split(graph.nodes, is_pipelined=n_copies > 1)
    leading = graph.inputs
    if n_copies > 1:
        leading = [tensor for tensor in (*leading, *copies) for _ in range(n_copies)]
        for tensor in leading:
            tensor.is_kept = True
    return Schedule(leading, steps)


def _spread(nodes: Iterable[Tensor], cpu: int, *, gpus_only: bool) -> None:
    """Neighbours of a node go to its device if they can run there."""
    device = None
    for node in nodes:
        if node.kind is Kind.VIEW:
            continue
        if node.device is not None:
            device = None if gpus_only and node.device == cpu else node.device
        elif device is not None and (device == cpu or not node.is_cpu_only):
            node.device = device


def _split(nodes: list[Tensor], *, is_pipelined: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Runs of nodes on one device, each behind copies of what it takes from others.

    A weight that visits a device begins a run of its own, so that the one before makes room.
    """
    copies: dict[tuple[Tensor, int | None], Tensor] = {}
    steps: list[Tensor] = []
    crossing: list[Tensor] = []
    run: list[Tensor] = []
    device = None
    for node in nodes:
        if node.kind is Kind.VIEW:
            run.append(node)
            continue
        is_visited = any(s.kind is Kind.WEIGHT and s.device != node.device for s in node.sources)
        if device != node.device or (crossing and is_visited):
            steps += crossing + run
            crossing, run, device = [], [], node.device
        for source in node.sources:
            if source.device != device and (source, device) not in copies:
                kept = Tensor(None, (source,), device=source.device)
                copy = Tensor(source.size, device=device, is_kept=is_pipelined)
                copies[source, device] = copy
                crossing += [kept, copy]
        node.sources = tuple(copies.get((source, device), source) for source in node.sources)
        node.replaces = tuple(copies.get((source, device), source) for source in node.replaces)
        run.append(node)
    return steps + crossing + run, list(copies.values())
