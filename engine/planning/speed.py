"""Upper bound of tokens per second by memory bandwidth, before a model is loaded.

A token reads its weights and the cache once, so bytes over bandwidth is its minimum time without
drafts. Only a measurement shows the real speed: small models and CPUs compute longer than they
read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from engine.configuration import Configuration
from engine.memory.bandwidth import Bandwidth
from engine.memory.estimate import Estimate
from engine.memory.hardware import Device
from engine.memory.placement import place
from engine.memory.terms import TermKind
from engine.memory.weights import tensor_parts
from engine.model.architecture import Model
from engine.model.speeds import ModelSpeed
from engine.model.tensor_table import EXPERT, expert_share, read_tensors

BandwidthOf = Callable[[Device], Bandwidth | None]


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """Bytes that one token reads from one device's memory."""

    device: str
    weight_bytes: int
    cache_bytes: int
    """Cache and recurrent state of one chat with a full context."""
    bandwidth: Bandwidth | None
    """Bandwidth of the device; None if unknown."""

    def seconds(self, cache_share: float) -> float | None:
        """Time to read the weights and a share of the cache; None if the bandwidth is unknown."""
        if self.bandwidth is None:
            return None
        return (self.weight_bytes + cache_share * self.cache_bytes) / self.bandwidth.bytes_per_s


@dataclass(frozen=True, slots=True)
class SpeedBound:
    """Upper bounds of tokens per second without drafts; None if a bandwidth is unknown."""

    reads: tuple[DeviceReads, ...]
    n_ctx: int
    """Tokens of a chat's full context."""
    least_tps: float = 0.0
    """Measured speed with the same settings; the bound is never lower."""

    @property
    def is_estimate(self) -> bool:
        """Whether a bandwidth is typical, or was measured only while other programs ran."""
        known = [each.bandwidth for each in self.reads if each.bandwidth is not None]
        return any(each.basis in ("typical", "measured while busy") for each in known)

    @property
    def doubt(self) -> str:
        """Why the speed is unknown; empty if it is known."""
        unknown = [each.device for each in self.reads if each.bandwidth is None]
        return f"the bandwidth of {' and '.join(unknown)} is unknown" if unknown else ""

    @property
    def tps(self) -> float | None:
        """Speed at the beginning of a chat."""
        found = self._rate(1, 0.0)
        return None if found is None else max(found, self.least_tps)

    @property
    def full_tps(self) -> float | None:
        """Speed with a full context."""
        return self._rate(1, 1.0)

    def at_depth(self, n_tokens: int) -> float | None:
        """Speed with `n_tokens` in the context."""
        return self._rate(1, min(n_tokens / max(self.n_ctx, 1), 1.0))

    def together(self, n_chats: int, n_tokens: int) -> float | None:
        """Total speed of `n_chats` decoded in one batch, each with `n_tokens` in its context.

        The weights are read once for all of them.
        """
        return self._rate(n_chats, n_chats * min(n_tokens / max(self.n_ctx, 1), 1.0))

    def _rate(self, n_tokens: int, cache_share: float) -> float | None:
        times = [each.seconds(cache_share) for each in self.reads]
        known = [seconds for seconds in times if seconds is not None]
        return n_tokens / sum(known) if len(known) == len(times) else None

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a token reads on all devices."""
        return sum(each.weight_bytes for each in self.reads)


def speed_bound(
    model: Model, cost: Estimate, bandwidth_of: BandwidthOf, measured: ModelSpeed | None = None
) -> SpeedBound | None:
    """The speed bound of a configuration; None if it reads nothing.

    Args:
        model: The model of the estimate.
        cost: Estimate of the configuration.
        bandwidth_of: Bandwidth of a device; None if unknown.
        measured: Measured speed on this machine; used without a GPU only, since layers may be
            placed differently.
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
        reads.append(DeviceReads(each.device.name, weight_bytes, cache // n_slots, bandwidth))
    if not sum(each.weight_bytes for each in reads):
        return None
    is_alike = measured is not None and len(cost.devices) == 1
    least = measured.decode_tps if measured is not None and is_alike else 0.0
    return SpeedBound(tuple(reads), cost.n_ctx // n_slots, least)


def _weight_reads(model: Model, cost: Estimate) -> dict[Device, float]:
    """Bytes of weights that a token reads on each device; torch stores them in its own type."""
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
    where = place(model.file, now, tuple(each.device for each in cost.devices))
    read = {tensor.name for tensor in read_tensors(model.file)}
    for part in tensor_parts(model.file, now.tensor_overrides, now.n_cpu_moe):
        if part.tensor.name in read:
            multiplies = part.is_tied and part.override is None
            device = where.output_device if multiplies else where.device_of(part)
            yield device, part.tensor.nbytes, bool(EXPERT.search(part.tensor.name))
