"""Which device computes each tensor of a graph, and what is copied between devices.

`ggml_backend_sched_split_graph` of `ggml/src/ggml-backend.cpp` (llama.cpp 0c1e57098). Devices are
numbers, the GPUs first and the CPU last.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.memory.tensor_graph import Kind, Tensor, TensorGraph


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
