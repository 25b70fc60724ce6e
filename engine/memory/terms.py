"""The terms of an estimate: purpose, source and device of each number."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.configuration import Target as Target
from engine.memory.hardware import Device, Vendor
from engine.memory.placement import MappedWeights
from engine.memory.units import GIB, MIB

TARGETS: tuple[Target, ...] = ("kvchat", "llama-server")
Bounds = tuple[int, int]
"""Lower and upper bound of an estimate in bytes."""

GPU_SIZES, GPU_OVERHEAD_BYTES = (24 * GIB, 80 * GIB), (300 * MIB, 600 * MIB)
GPU_OVERHEAD_TOLERANCE = 210 * MIB
"""Context, kernels and workspaces of CUDA by the memory of a card, in proportion between two sizes.
107 to 555 MiB were reported, growing with the card; an H100 took 516 to 636 in 49 loads of seven
models (driver 580, CUDA 13.0, llama.cpp 0c1e57098: `benchmarks/gpu_truth.py`)."""
OTHER_OVERHEAD: dict[Vendor, tuple[int, Bounds]] = {
    "AMD": (280 * MIB, (100 * MIB, 500 * MIB)),
    "Intel": (280 * MIB, (100 * MIB, 500 * MIB)),
    "Apple": (0, (0, 0)),
}
"""What other makers' drivers use, with bounds. AMD: llama.cpp's breakdown on ROCm, as users
published it, left 253 MiB (MI50, three cards) and 313 MiB unaccounted for; Intel is assumed equal.
Apple's is outside of the part of the memory that Metal gives."""
LIBRARY_BYTES = 26 * MIB
"""Resident code of Python and of the libraries in kvchat's worker, which other processes share."""
CPU_OVERHEAD_BYTES = {"kvchat": LIBRARY_BYTES + 49 * MIB, "llama-server": 33 * MIB}
TOKEN_BYTES = {"kvchat": 64, "llama-server": 200}
"""The process itself and each entry of its vocabulary: resident memory beyond llama.cpp's buffers.
Measured on Linux at vocabularies of 49k and 262k tokens: 78 and 91 MiB in kvchat's worker
(`benchmarks/process_memory.py`), 36 and 84 MiB in llama-server."""


def gpu_overhead(gpu: Device) -> tuple[int, Bounds]:
    """Bytes that a GPU's driver uses beside llama.cpp's buffers, and their bounds."""
    if not gpu.runs_cuda:
        return OTHER_OVERHEAD[gpu.vendor]
    (small, large), (low, high) = GPU_OVERHEAD_BYTES, GPU_SIZES
    share = min(max((gpu.total_bytes - low) / (high - low), 0.0), 1.0)
    nbytes = round((small + (large - small) * share) / MIB) * MIB
    return nbytes, (nbytes - GPU_OVERHEAD_TOLERANCE, nbytes + GPU_OVERHEAD_TOLERANCE)


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
    """Source of a number, the most exact first."""

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
    """Lower and upper bound; None if the number is exact or measured."""

    @property
    def range(self) -> Bounds:
        """Lower and upper bound; both are `nbytes` if it is exact."""
        return self.bounds or (self.nbytes, self.nbytes)


NOTHING = Term(0, Source.EXACT)


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """The terms of one device."""

    device: Device
    terms: Mapping[TermKind, Term] = field(default_factory=dict)
    shared_bytes: int = 0
    """Bytes of integrated GPUs in this memory; not in `total_bytes`."""
    mapped: Mapping[TermKind, MappedWeights] = field(default_factory=dict)
    """Mapped bytes of the model's and the draft model's weights in RAM."""

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
    """Bounds at the same distance below and above a number, as a share of it."""
    return round(nbytes * (1 - share)), round(nbytes * (1 + share))


class Ledger:
    """Adds terms up by device; `part` is the kind that all of them count as, if any."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self.devices = devices
        *self.gpus, self.cpu = devices
        self.part: TermKind | None = None
        self._terms: dict[Device, dict[TermKind, Term]] = defaultdict(dict)
        self._mapped: dict[TermKind, MappedWeights] = {}

    def add(
        self,
        device: Device,
        kind: TermKind,
        nbytes: int,
        source: Source,
        note: str = "",
        bounds: Bounds | None = None,
    ) -> None:
        """Add a number, with its bounds if it is an estimate."""
        kind = self.part or kind
        before = self._terms[device].get(kind, NOTHING)
        low, high = bounds or (nbytes, nbytes)
        low, high = low + before.range[0], high + before.range[1]
        self._terms[device][kind] = Term(
            before.nbytes + nbytes,
            max(source, before.source, key=list(Source).index),
            "; ".join(filter(None, dict.fromkeys((before.note, note)))),
            None if low == high else (low, high),
        )

    def add_mapped(self, weights: MappedWeights) -> None:
        """Add how the weights of a model are in RAM."""
        self._mapped[self.part or TermKind.WEIGHTS] = weights

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

    def totals(self) -> tuple[DeviceEstimate, ...]:
        """Planned bytes on each device; bytes of GPUs with unified memory also count as RAM."""
        gpus = [DeviceEstimate(gpu, self._terms[gpu]) for gpu in self.gpus]
        shared = sum(each.total_bytes for each in gpus if each.device.is_unified)
        return (*gpus, DeviceEstimate(self.cpu, self._terms[self.cpu], shared, self._mapped))
