"""What a configuration costs, device by device, each number with its source.

Target programs differ: kvchat opens one sequence and reserves logits for its longest draft;
llama-server opens its slots and reserves logits for one draft in each.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from engine.configuration import MAX_DRAFT, Configuration, PredictorName
from engine.memory.compute import compute_bytes, output_bytes
from engine.memory.hardware import Device
from engine.memory.kv_cache import CacheShape, layer_kv_bytes
from engine.memory.placement import Placement, place
from engine.memory.units import MIB
from engine.memory.warnings import warnings_for
from engine.memory.weights import weights_of
from engine.model.architecture import Model

Target = Literal["kvchat", "llama-server"]
TARGETS: tuple[Target, ...] = ("kvchat", "llama-server")

GPU_OVERHEAD_BYTES = 300 * MIB
"""CUDA context and workspaces: 107 to 555 MiB were reported, growing with the card."""

CPU_OVERHEAD_BYTES = {"kvchat": 100 * MIB, "llama-server": 90 * MIB}
"""The process itself: resident memory beyond llama.cpp's buffers. Measured on Linux at vocabularies
of 49k and 262k tokens: 64 and 92 MiB in kvchat's worker, 36 and 84 MiB in llama-server."""


class TermKind(StrEnum):
    """The parts of a device's memory, in the order of a bar."""

    WEIGHTS = "weights"
    KV = "kv"
    STATE = "state"
    COMPUTE = "compute"
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


NOTHING = Term(0, Source.EXACT)


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """What one device has to hold."""

    device: Device
    terms: dict[TermKind, Term] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return sum(term.nbytes for term in self.terms.values())

    @property
    def left_bytes(self) -> int:
        """Free memory that stays free; negative where it does not fit."""
        return self.device.free_bytes - self.total_bytes

    def term(self, kind: TermKind) -> Term:
        """Give one part, zero bytes where the device has none of it."""
        return self.terms.get(kind, NOTHING)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a configuration in a target program."""

    target: Target
    configuration: Configuration
    n_ctx: int
    """Cells of all slots after llama.cpp's padding."""
    devices: tuple[DeviceEstimate, ...]
    warnings: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(device.total_bytes for device in self.devices)

    def fits(self, margin_bytes: int = 0) -> bool:
        """Whether every device keeps the margin free."""
        used = (device for device in self.devices if device.total_bytes)
        return all(device.left_bytes >= margin_bytes for device in used)


def estimate(
    model: Model,
    configuration: Configuration,
    devices: tuple[Device, ...],
    *,
    target: Target = "kvchat",
    draft: Model | None = None,
) -> Estimate:
    """Say what a configuration costs; `draft` is the model of `configuration.draft`.

    Raises:
        PresetError: a combination that llama.cpp refuses.
    """
    ledger = _Ledger(devices)
    shape = cache_shape(configuration, target)
    _add_model(ledger, model, configuration, shape, n_outputs(configuration, target))
    if draft is not None and configuration.draft is not None:
        _add_draft(ledger, draft, configuration, shape, target)
    ledger.add_overhead(target)
    n_ctx = shape.n_cells * shape.n_streams
    found = ledger.devices()
    return Estimate(
        target, configuration, n_ctx, found, warnings_for(model, configuration, shape, devices)
    )


def cache_shape(configuration: Configuration, target: Target) -> CacheShape:
    """Give the cache that the target opens; flash attention `auto` is on where it is needed."""
    n_slots = 1 if target == "kvchat" else configuration.n_slots
    return CacheShape(
        n_ctx=configuration.n_ctx,
        n_ubatch=min(configuration.n_batch, configuration.n_ubatch),
        type_k=configuration.type_k,
        type_v=configuration.type_v,
        flash_attention=configuration.flash_attention != "off",
        n_slots=n_slots,
        kv_unified=configuration.kv_unified and n_slots > 1,
        swa_full=configuration.swa_full,
    )


def n_outputs(configuration: Configuration, target: Target) -> int:
    """Give the most rows of logits in one batch: `n_outputs_max` of the target program."""
    if target == "kvchat":
        return 1 + MAX_DRAFT
    is_off = configuration.speculation.predictor is PredictorName.OFF
    n_draft = 0 if is_off else configuration.speculation.n_draft
    return configuration.n_slots * (1 + n_draft)


class _Ledger:
    """Adds terms up by device."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self.all = devices
        self.gpus = tuple(device for device in devices if device.kind == "gpu")
        self.cpu = next(device for device in devices if device.kind == "cpu")
        self._terms: dict[Device, dict[TermKind, Term]] = defaultdict(dict)

    def add(
        self, device: Device, kind: TermKind, nbytes: int, source: Source, note: str = ""
    ) -> None:
        before = self._terms[device].get(kind)
        if before is not None:
            nbytes += before.nbytes
            source = max(source, before.source, key=list(Source).index)
            note = "; ".join(filter(None, dict.fromkeys((before.note, note))))
        self._terms[device][kind] = Term(nbytes, source, note)

    def add_overhead(self, target: Target) -> None:
        self.add(
            self.cpu, TermKind.OVERHEAD, CPU_OVERHEAD_BYTES[target], Source.ESTIMATED, "the process"
        )
        for gpu in self.gpus:
            if self._terms[gpu]:
                note = "CUDA context, grows with the card"
                self.add(gpu, TermKind.OVERHEAD, GPU_OVERHEAD_BYTES, Source.ESTIMATED, note)

    def devices(self) -> tuple[DeviceEstimate, ...]:
        return tuple(DeviceEstimate(device, self._terms[device]) for device in self.all)


def _add_model(
    ledger: _Ledger, model: Model, configuration: Configuration, shape: CacheShape, rows: int
) -> None:
    architecture = model.architecture
    weights = weights_of(model.file)
    where = place(weights, configuration.n_gpu_layers, ledger.gpus, ledger.cpu)
    _add_weights(ledger, where)
    sizes = layer_kv_bytes(architecture, shape)
    source = Source.ESTIMATED if architecture.doubts else Source.EXACT
    for index, nbytes in sizes.items():
        device = where.layer_devices[index] if configuration.offload_kqv else ledger.cpu
        ledger.add(device, TermKind.KV, nbytes, source, "; ".join(architecture.doubts))
    graph = compute_bytes(architecture, shape, rows)
    for device in dict.fromkeys(where.layer_devices):
        note = "formula" if device.kind == "cpu" else "formula, not measured on this GPU"
        ledger.add(device, TermKind.COMPUTE, graph, Source.ESTIMATED, note)
    if where.output_device.kind == "gpu":
        inputs = shape.n_graph_tokens * architecture.d_hidden * 4
        ledger.add(ledger.cpu, TermKind.COMPUTE, inputs, Source.ESTIMATED, "inputs of the graph")
    ledger.add(
        ledger.cpu,
        TermKind.COMPUTE,
        output_bytes(architecture, rows),
        Source.ESTIMATED,
        "with rows of logits",
    )


def _add_weights(ledger: _Ledger, where: Placement) -> None:
    for device, nbytes in where.weight_bytes.items():
        ledger.add(device, TermKind.WEIGHTS, nbytes, Source.EXACT, "tensor table")


def _add_draft(
    ledger: _Ledger,
    draft: Model,
    configuration: Configuration,
    shape: CacheShape,
    target: Target,
) -> None:
    if configuration.draft is None:
        return
    n_ctx = configuration.draft.n_ctx if target == "kvchat" else configuration.n_ctx
    own = replace(
        configuration,
        n_ctx=n_ctx,
        n_gpu_layers=configuration.draft.n_gpu_layers,
    )
    cache = replace(
        shape, n_ctx=n_ctx, type_k=configuration.draft.type_k, type_v=configuration.draft.type_v
    )
    rows = 1 if target == "kvchat" else configuration.n_slots
    _add_model(ledger, draft, own, cache, rows)
