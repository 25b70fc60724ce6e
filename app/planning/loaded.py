"""What the engine has allocated, by the devices and parts of a plan."""

from collections.abc import Iterable, Mapping, Sequence

from app.planning.plan import device_index
from engine.events import BufferSize
from engine.memory.dry_run import KINDS
from engine.memory.terms import DeviceEstimate, TermKind

LoadedBytes = Mapping[str, Mapping[TermKind, int]]
"""Bytes by name of the device and part."""


def loaded_bytes(
    buffers: Iterable[BufferSize], devices: Sequence[DeviceEstimate]
) -> dict[str, dict[TermKind, int]]:
    """Sum the buffers that llama.cpp reported; those of a device that is not planned are left."""
    cpu = next(d.device.name for d in devices if d.device.kind == "cpu")
    gpus = [d.device.name for d in devices if d.device.kind == "gpu"]
    found: dict[str, dict[TermKind, int]] = {}
    for buffer in buffers:
        index = device_index(buffer)
        if buffer.kind not in KINDS or (index is not None and index >= len(gpus)):
            continue
        terms = found.setdefault(cpu if index is None else gpus[index], {})
        kind = KINDS[buffer.kind]
        terms[kind] = terms.get(kind, 0) + buffer.nbytes
    return found
