"""An estimate with measured numbers in the place of formulas."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from engine.memory.dry_run import MeasuredBuffer, draft_alone
from engine.memory.estimate import Estimate, estimate
from engine.memory.terms import DeviceEstimate, Source, Term, TermKind
from engine.model.architecture import Model

KINDS = {
    "model": TermKind.WEIGHTS,
    "KV": TermKind.KV,
    "RS": TermKind.STATE,
    "compute": TermKind.COMPUTE,
    "output": TermKind.COMPUTE,
}
ROUNDING_BYTES = 16 * 1024
"""The log prints 0.01 MiB, once for each of a few caches."""

Found = Mapping[tuple[str, TermKind], int]


def with_measured(
    planned: Estimate, buffers: tuple[MeasuredBuffer, ...], draft: Model | None = None
) -> Estimate:
    """Put what llama.cpp laid out in the place of formulas; where it told nothing, those stay.

    Only for an estimate of the devices that llama.cpp found. A cache is told as one number: where
    several devices hold it, they share it as the formula says, or else as they share the weights.

    Args:
        planned: What the formulas say.
        buffers: Of the target and, where there is one, of the draft.
        draft: The draft model of the configuration, for its weights.
    """
    measured = [b for b in buffers if b.owner == "target"]
    if planned.configuration.n_mtp_draft:  # a dry run leaves out the weights of a model's own head
        measured = [buffer for buffer in measured if buffer.kind != "model"]
    own = _measured_devices(planned.devices, measured)
    alone = draft_alone(planned.configuration, planned.target)
    if draft is None or alone is None:
        return replace(planned, devices=own)
    devices = tuple(device.device for device in planned.devices)
    formula = estimate(draft, alone, devices, target=planned.target)
    beside = _measured_devices(formula.devices, [b for b in buffers if b.owner == "draft"])
    return replace(planned, devices=tuple(map(_with_draft, own, beside)))


def _with_draft(device: DeviceEstimate, draft: DeviceEstimate) -> DeviceEstimate:
    if TermKind.DRAFT not in device.terms:
        return device
    nbytes = draft.total_bytes - draft.term(TermKind.OVERHEAD).nbytes
    term = Term(nbytes, Source.MEASURED, "llama.cpp's dry run, and the tensor table")
    return replace(device, terms={**device.terms, TermKind.DRAFT: term})


def _measured_devices(
    devices: tuple[DeviceEstimate, ...], buffers: list[MeasuredBuffer]
) -> tuple[DeviceEstimate, ...]:
    found: dict[tuple[str, TermKind], int] = defaultdict(int)
    shared: dict[TermKind, int] = defaultdict(int)
    for buffer in buffers:
        kind = KINDS.get(buffer.kind)
        device = device_of(buffer, devices)
        if kind is not None and device is not None:
            found[device, kind] += buffer.nbytes
        elif kind is not None and not buffer.device:
            shared[kind] += buffer.nbytes
    for kind, nbytes in shared.items():
        planned = {device.device.name: device.term(kind).nbytes for device in devices}
        if not any(planned.values()):  # the formula knows of none: it lies with the weights
            planned = {
                device.device.name: device.term(TermKind.WEIGHTS).nbytes for device in devices
            }
        whole = sum(planned.values())
        found |= {(name, kind): nbytes * part // whole for name, part in planned.items() if part}
    return tuple(_measured_device(device, found) for device in devices)


def _measured_device(device: DeviceEstimate, found: Found) -> DeviceEstimate:
    terms = dict(device.terms)
    for kind in dict.fromkeys(KINDS.values()):
        nbytes = found.get((device.device.name, kind))
        if nbytes is not None:
            terms[kind] = _measured_term(terms.get(kind), nbytes)
    return replace(device, terms=terms)


def _measured_term(before: Term | None, nbytes: int) -> Term:
    """Keep an exact number that the rounded measurement confirms."""
    if (
        before is not None
        and before.source is Source.EXACT
        and abs(before.nbytes - nbytes) <= ROUNDING_BYTES
    ):
        return before
    return Term(nbytes, Source.MEASURED, "llama.cpp's dry run")


def device_of(buffer: MeasuredBuffer, devices: tuple[DeviceEstimate, ...]) -> str | None:
    """Give the name of the device that a buffer lies on.

    A cache that is told without one lies where only one device has any. Everything of the host,
    pinned and repacked buffers too, lies on the CPU.
    """
    if not buffer.device:
        kinds = (TermKind.KV, TermKind.STATE)
        holders = [d.device.name for d in devices if any(d.term(kind).nbytes for kind in kinds)]
        return holders[0] if len(holders) == 1 else None
    if buffer.device.startswith(("CPU", "AMX")) or buffer.device.endswith("_Host"):
        return next(d.device.name for d in devices if d.device.kind == "cpu")
    digits = "".join(character for character in buffer.device if character.isdigit())
    gpus = [d.device.name for d in devices if d.device.kind == "gpu"]
    return gpus[int(digits or 0)] if int(digits or 0) < len(gpus) else None
