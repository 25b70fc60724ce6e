"""Other machines that compute layers for llama-server through llama.cpp's RPC.

A worker is `ggml-rpc-server` of llama.cpp 0c1e57098 (`tools/rpc`); its client
(`ggml/src/ggml-rpc/ggml-rpc.cpp`) sends everything through the machine with llama-server, so data
from one worker to another crosses its network twice.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from engine.configuration import Configuration
from engine.memory.cards import TypedGpu, planned_devices
from engine.memory.estimate import Estimate, shape_for
from engine.memory.hardware import Device
from engine.memory.placement import place
from engine.memory.terms import TermKind
from engine.memory.units import FLOAT_BYTES, HALF_BYTES
from engine.model.architecture import Model

PROGRAM = "ggml-rpc-server"
PLACE_BYTES = 8
MESSAGE_BYTES = 320
"""A tensor's description with its command: 296 bytes of `rpc_tensor` and some lengths."""
N_INPUTS = 5
"""Small inputs sent to each device for a step: positions, cells, mask, output rows."""


@dataclass(frozen=True, slots=True)
class RpcWorker:
    """A machine that computes layers for another one's llama-server."""

    endpoint: str
    """`host:port`."""
    vram_bytes: tuple[int, ...] = ()
    """Memory of each GPU; without GPU, the RAM that the worker may use."""
    cards: tuple[str, ...] = ()
    """Names of the worker's other GPUs; they follow those of `vram_bytes`."""

    @property
    def host(self) -> str:
        """The worker's host name, without the port."""
        return self.endpoint.rpartition(":")[0]

    @property
    def n_gpus(self) -> int:
        """Number of GPUs of the worker."""
        return len(self.vram_bytes) + len(self.cards)

    def devices(self) -> tuple[Device, ...]:
        """The worker's GPUs, with the host in their names.

        Raises:
            HardwareError: a card is not known, or is a whole machine among others.
        """
        found = planned_devices(vram_bytes=self.vram_bytes, cards=self.cards)[:-1]
        return tuple(
            replace(gpu, name=self._title(gpu, index), is_unified=False, worker=self.endpoint)
            for index, gpu in enumerate(found)
        )

    def command(self) -> str:
        """The command that starts it; anyone who reaches its port can use it."""
        _, _, port = self.endpoint.rpartition(":")
        return shlex.join([PROGRAM, "--host", "0.0.0.0", "--port", port, "--cache"])

    def _title(self, gpu: Device, index: int) -> str:
        card = gpu.name.rpartition("· ")[2] if index >= len(self.vram_bytes) else ""
        number = f"GPU {index}" if self.n_gpus > 1 else ""
        return " · ".join(filter(None, (" ".join(filter(None, (self.host, number))), card)))


def workers_of(typed: Iterable[TypedGpu]) -> tuple[RpcWorker, ...]:
    """The workers that have some of these GPUs."""
    found: dict[str, RpcWorker] = {}
    for gpu in typed:
        if gpu.endpoint is not None:
            now = found.get(gpu.endpoint, RpcWorker(gpu.endpoint))
            sizes = now.vram_bytes if gpu.nbytes is None else (*now.vram_bytes, gpu.nbytes)
            cards = now.cards if gpu.card is None else (*now.cards, gpu.card)
            found[gpu.endpoint] = replace(now, vram_bytes=sizes, cards=cards)
    return tuple(found.values())


def with_workers(
    configuration: Configuration, model: Model, devices: tuple[Device, ...]
) -> Configuration:
    """Add the workers among `devices` and a fixed split of the layers.

    A fixed share does not depend on the free memory of a worker when llama-server starts.
    """
    where = place(model.file, configuration, devices)
    lying = [*where.layer_devices, where.output_device]
    split = configuration.tensor_split
    if not split and len(where.gpus) > 1 and any(gpu in lying for gpu in where.gpus):
        split = tuple(float(lying.count(gpu)) for gpu in where.gpus)
    endpoints = tuple(dict.fromkeys(gpu.worker for gpu in where.gpus if gpu.worker))
    return replace(configuration, tensor_split=split, rpc_workers=endpoints)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Network traffic of the machine with llama-server, in bytes."""

    load_bytes: int
    """Weights, sent once: a worker started with `--cache` stores them."""
    token_bytes: int
    """Each decoded token, at a full context."""
    prompt_bytes: int
    """Each token of a prompt."""
    n_waits: int
    """Round trips that a token waits for, each with the network's latency."""


def seconds_of(nbytes: int, gbps: float) -> float:
    """Transfer time of bytes at `gbps` 10^9 bits per second."""
    return nbytes * 8 / (gbps * 1e9)


def traffic(model: Model, cost: Estimate) -> Traffic | None:
    """The network traffic of a plan; None without workers."""
    now, devices = cost.configuration, tuple(each.device for each in cost.devices)
    held = {each.device: each.term(TermKind.WEIGHTS).nbytes for each in cost.devices}
    load_bytes = sum(nbytes for device, nbytes in held.items() if device.worker)
    if not load_bytes:
        return None
    where = place(model.file, now, devices)
    shape = shape_for(model.architecture, now, cost.target, devices)
    path = (where.cpu, *where.layer_devices, where.output_device)
    crossings = [(before, after) for before, after in pairwise(path) if before != after]
    n_passes = sum(  # a worker copies among its own GPUs
        bool(before.worker) + bool(after.worker)
        for before, after in crossings
        if before.worker != after.worker
    )
    crossed = n_passes * model.architecture.d_hidden * FLOAT_BYTES
    n_far = sum(bool(device.worker) for device in where.layers_of)
    mask = HALF_BYTES if now.flash_attention != "off" else FLOAT_BYTES
    # A token's row of the mask at a full context, and its positions.
    row = n_far * (shape.n_cells * mask + FLOAT_BYTES + 2 * PLACE_BYTES)
    described = MESSAGE_BYTES * (N_INPUTS * n_far + n_passes)
    answers = bool(where.output_device.worker)
    logits = answers * (model.architecture.n_vocab * FLOAT_BYTES + MESSAGE_BYTES)
    return Traffic(
        load_bytes,
        crossed + row + described + logits,
        crossed + row + described // max(shape.n_graph_tokens, 1),
        sum(bool(before.worker) for before, _ in crossings) + answers,
    )
