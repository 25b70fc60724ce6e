"""Tokens per second before anything is loaded: the bound that memory sets.

Each token reads the weights that it uses and the cache once: bytes over bandwidth is the least time
it takes, and no program is faster without drafts. How far below it a model stays is for a
measurement to say: small models and processors compute longer than they read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from engine.configuration import Configuration
from engine.memory.bandwidth import Bandwidth
from engine.memory.estimate import Estimate
from engine.memory.hardware import Device
from engine.memory.placement import device_named, place
from engine.memory.terms import TermKind
from engine.memory.weights import layer_of, overridden, override_rules, weights_of
from engine.model.architecture import Model
from engine.model.tensor_table import EXPERT, expert_share, read_tensors

BandwidthOf = Callable[[Device], Bandwidth | None]


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """What a token reads of one device's memory, in bytes."""

    device: str
    weight_bytes: int
    cache_bytes: int
    """Of the cache of one chat when its context is full, with its recurrent state."""
    bandwidth: Bandwidth

    def seconds(self, cache_share: float) -> float:
        """The time to read the weights and a share of the cache."""
        return (self.weight_bytes + cache_share * self.cache_bytes) / self.bandwidth.bytes_per_s


@dataclass(frozen=True, slots=True)
class SpeedBound:
    """The most tokens per second without drafts."""

    reads: tuple[DeviceReads, ...]
    n_ctx: int
    """Tokens of a chat's full context."""

    @property
    def tps(self) -> float:
        """At the beginning of a chat."""
        return self.behind(0)

    @property
    def full_tps(self) -> float:
        """Behind a full context."""
        return self.behind(self.n_ctx)

    def behind(self, n_tokens: int) -> float:
        """Behind so many tokens."""
        share = min(n_tokens / max(self.n_ctx, 1), 1.0)
        return 1.0 / sum(each.seconds(share) for each in self.reads)

    def together(self, n_chats: int, n_tokens: int) -> float:
        """Of so many chats that decode in one batch, each behind so many tokens.

        The weights are read once for all, each cache for its own.
        """
        share = n_chats * min(n_tokens / max(self.n_ctx, 1), 1.0)
        return n_chats / sum(each.seconds(share) for each in self.reads)

    @property
    def weight_bytes(self) -> int:
        """Weights that a token reads, of all devices."""
        return sum(each.weight_bytes for each in self.reads)


def speed_bound(model: Model, cost: Estimate, bandwidth_of: BandwidthOf) -> SpeedBound | None:
    """The bound of a configuration; None where a device that is read of has no known bandwidth.

    Args:
        model: The model of the estimate.
        cost: What the configuration holds, and where.
        bandwidth_of: The bandwidth of a device, None where it is not known.
    """
    weights = _weight_reads(model, cost)
    n_slots = max(cost.configuration.n_slots, 1)
    reads = []
    for each in cost.devices:
        cache = each.term(TermKind.KV).nbytes + each.term(TermKind.STATE).nbytes
        weight_bytes = round(weights.get(each.device, 0))
        if not weight_bytes and not cache:
            continue
        bandwidth = bandwidth_of(each.device)
        if bandwidth is None:
            return None
        reads.append(DeviceReads(each.device.name, weight_bytes, cache // n_slots, bandwidth))
    if not sum(each.weight_bytes for each in reads):
        return None
    return SpeedBound(tuple(reads), cost.n_ctx // n_slots)


def _weight_reads(model: Model, cost: Estimate) -> dict[Device, float]:
    """Bytes of weights that a token reads on each device; torch holds no type of the file."""
    if cost.configuration.backend == "torch" and cost.target == "kvchat":
        n_read = sum(prod(tensor.shape) for tensor in read_tensors(model.file))
        n_held = sum(prod(tensor.shape) for tensor in model.file.tensors)
        held = ((each.device, each.term(TermKind.WEIGHTS).nbytes) for each in cost.devices)
        return {device: nbytes * n_read / n_held for device, nbytes in held}
    share = expert_share(model.file)
    found: dict[Device, float] = defaultdict(float)
    for device, nbytes, is_expert in _placed(model, cost.configuration, cost):
        found[device] += nbytes * share if is_expert else nbytes
    return found


def _placed(model: Model, now: Configuration, cost: Estimate) -> Iterator[tuple[Device, int, bool]]:
    """Device, bytes, and whether it is all experts of a layer, of each tensor that is read."""
    devices = [each.device for each in cost.devices]
    gpus = tuple(device for device in devices if device.kind == "gpu")
    cpu = next(device for device in devices if device.kind == "cpu")
    weights = weights_of(model.file, now.tensor_overrides, now.n_cpu_moe)
    where = place(weights, now, gpus, cpu)
    rules = override_rules(now.tensor_overrides, now.n_cpu_moe)
    n_blocks = len(weights.layer_bytes)
    for tensor in read_tensors(model.file):
        index, named = layer_of(tensor.name, n_blocks), overridden(tensor.name, rules)
        if named is not None:
            device = device_named(named, gpus, cpu)
        else:
            device = where.output_device if index is None else where.layer_devices[index]
        yield device, tensor.nbytes, bool(EXPERT.search(tensor.name))
