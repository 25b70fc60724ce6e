"""The numbers of an estimate: what each is for, how sure it is, and the device that holds it."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum

from engine.configuration import Target as Target
from engine.memory.hardware import Device, Vendor
from engine.memory.placement import MappedWeights
from engine.memory.units import GIB, MIB

TARGETS: tuple[Target, ...] = ("kvchat", "llama-server")
Bounds = tuple[int, int]
"""Bytes that an estimate may turn out to be: the least and the most."""

GPU_OVERHEAD_BYTES, GPU_OVERHEAD_SPREAD = (300 * MIB, 600 * MIB), 210 * MIB
"""Context, kernels and workspaces of CUDA on a small card and on a large one, and how far off that
may be. 107 to 555 MiB were reported, growing with the card; an H100 took 516 to 636 in 49 loads of
seven models (driver 580, CUDA 13.0, llama.cpp 0c1e57098: `benchmarks/gpu_truth.py`)."""
GPU_SIZES = (24 * GIB, 80 * GIB)
"""Memory of those cards; in between it is taken to grow in proportion."""
OTHER_OVERHEAD: dict[Vendor, tuple[int, Bounds]] = {
    "AMD": (280 * MIB, (100 * MIB, 500 * MIB)),
    "Intel": (280 * MIB, (100 * MIB, 500 * MIB)),
    "Apple": (0, (0, 0)),
}
"""What other makers' drivers take, and how much it may be. AMD: llama.cpp's breakdown on ROCm, as
users published it, left 253 MiB (MI50, three cards) and 313 MiB unaccounted for; Intel's is taken
for the same. Apple's is outside of the part of the memory that Metal gives."""
LIBRARY_BYTES = 26 * MIB
"""Resident code of Python and of the libraries in kvchat's worker, which other processes share."""
CPU_OVERHEAD_BYTES = {"kvchat": LIBRARY_BYTES + 49 * MIB, "llama-server": 33 * MIB}
TOKEN_BYTES = {"kvchat": 64, "llama-server": 200}
"""The process itself and each entry of its vocabulary: resident memory beyond llama.cpp's buffers.
Measured on Linux at vocabularies of 49k and 262k tokens: 78 and 91 MiB in kvchat's worker
(`benchmarks/process_memory.py`), 36 and 84 MiB in llama-server."""


def gpu_overhead(gpu: Device) -> tuple[int, Bounds]:
    """What a GPU's driver takes beyond llama.cpp's buffers, and what that may turn out to be."""
    if not gpu.runs_cuda:
        return OTHER_OVERHEAD[gpu.vendor]
    nbytes = cuda_overhead_bytes(gpu)
    return nbytes, (nbytes - GPU_OVERHEAD_SPREAD, nbytes + GPU_OVERHEAD_SPREAD)


def cuda_overhead_bytes(gpu: Device) -> int:
    """What CUDA's context takes on a card, by the size of its memory."""
    (small, large), (least, most) = GPU_OVERHEAD_BYTES, GPU_SIZES
    share = (gpu.total_bytes - least) / (most - least)
    mib = (small + (large - small) * min(max(share, 0.0), 1.0)) / MIB
    return round(mib) * MIB


class TermKind(StrEnum):
    """The parts of a device's memory, in the order of a bar."""

    WEIGHTS = "weights"
    KV = "kv"
    STATE = "state"
    COMPUTE = "compute"
    DRAFT = "draft"
    """A draft model with its cache, state and graph."""
    PROJECTOR = "projector"
    ADAPTERS = "adapters"
    OVERHEAD = "overhead"


class Source(StrEnum):
    """How sure a number is."""

    EXACT = "exact"
    """By a formula that was proven against llama.cpp."""
    MEASURED = "measured"
    """By llama.cpp's own dry run."""
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Term:
    """One number and where it comes from."""

    nbytes: int
    source: Source
    note: str = ""
    bounds: Bounds | None = None
    """What an estimate may turn out to be; None where the number is exact or measured."""

    @property
    def range(self) -> Bounds:
        """The least and the most: twice the number where it is sure."""
        return self.bounds or (self.nbytes, self.nbytes)


NOTHING = Term(0, Source.EXACT)


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """What one device has to hold."""

    device: Device
    terms: dict[TermKind, Term] = field(default_factory=dict)
    shared_bytes: int = 0
    """What GPUs hold of this memory because theirs is a part of it; not in `total_bytes`."""
    mapped: dict[TermKind, MappedWeights] = field(default_factory=dict)
    """How the weights of the model, and of its draft, are in RAM."""

    @property
    def total_bytes(self) -> int:
        return sum(term.nbytes for term in self.terms.values())

    @property
    def mapped_bytes(self) -> int:
        """Pages of model files that stay mapped."""
        return sum(weights.mapped for weights in self.mapped.values())

    @property
    def reclaimable_bytes(self) -> int:
        """Mapped pages that the system may take back, beyond `total_bytes`: `top` shows them."""
        return sum(weights.reclaimable for weights in self.mapped.values())

    @property
    def left_bytes(self) -> int:
        """Free memory that stays free; negative where it does not fit."""
        return self.device.free_bytes - self.total_bytes - self.shared_bytes

    def term(self, kind: TermKind) -> Term:
        """One part, zero bytes where the device has none of it."""
        return self.terms.get(kind, NOTHING)


def within(nbytes: int, share: float) -> Bounds:
    """Bounds as far below a number as above it, as a part of it."""
    return round(nbytes * (1 - share)), round(nbytes * (1 + share))


class Ledger:
    """Adds terms up by device; within `part`, everything counts as one kind."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self.all = devices
        self.gpus = tuple(device for device in devices if device.kind == "gpu")
        self.cpu = next(device for device in devices if device.kind == "cpu")
        self._terms: dict[Device, dict[TermKind, Term]] = defaultdict(dict)
        self._mapped: dict[TermKind, MappedWeights] = {}
        self._part: TermKind | None = None

    def part(self, kind: TermKind | None) -> None:
        """Count all that follows as one kind; None counts each as its own again."""
        self._part = kind

    def add(
        self,
        device: Device,
        kind: TermKind,
        nbytes: int,
        source: Source,
        note: str = "",
        bounds: Bounds | None = None,
    ) -> None:
        """Add a number, with its bounds where it is an estimate."""
        kind = self._part or kind
        low, high = bounds or (nbytes, nbytes)
        before = self._terms[device].get(kind)
        if before is not None:
            low, high = low + before.range[0], high + before.range[1]
            nbytes += before.nbytes
            source = max(source, before.source, key=list(Source).index)
            note = "; ".join(filter(None, dict.fromkeys((before.note, note))))
        spread = None if low == high else (low, high)
        self._terms[device][kind] = Term(nbytes, source, note, spread)

    def add_mapped(self, weights: MappedWeights) -> None:
        """How the weights are in RAM, in words."""
        self._mapped[self._part or TermKind.WEIGHTS] = weights

    def add_overhead(self, target: Target, n_vocab: int) -> None:
        """Add what each process and GPU context takes beyond llama.cpp's buffers."""
        own = CPU_OVERHEAD_BYTES[target] + n_vocab * TOKEN_BYTES[target]
        bounds, note = within(own, 0.6), "the process and its vocabulary"
        self.add(self.cpu, TermKind.OVERHEAD, own, Source.ESTIMATED, note, bounds)
        for gpu in self.gpus:
            nbytes, bounds = gpu_overhead(gpu)
            if self._terms[gpu] and nbytes:
                note = "GPU driver" + "; more on larger cards" * gpu.runs_cuda
                self.add(gpu, TermKind.OVERHEAD, nbytes, Source.ESTIMATED, note, bounds)

    def devices(self) -> tuple[DeviceEstimate, ...]:
        """What each device holds; RAM also has the parts of GPUs that share it."""
        found = [DeviceEstimate(device, self._terms[device]) for device in self.all]
        shared = sum(each.total_bytes for each in found if each.device.is_unified)
        return tuple(
            replace(each, shared_bytes=shared, mapped=self._mapped)
            if each.device == self.cpu
            else each
            for each in found
        )
