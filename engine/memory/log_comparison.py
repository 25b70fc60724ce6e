"""Planned bytes beside those that a server's log tells, device by device and term by term."""

from collections import defaultdict
from dataclasses import dataclass

from engine.memory.dry_run import MeasuredBuffer
from engine.memory.estimate import Estimate, n_outputs
from engine.memory.measured import KINDS, device_of
from engine.memory.server_log import ServerLog
from engine.memory.terms import DeviceEstimate, TermKind

OWNERS = {"draft": TermKind.DRAFT, "projector": TermKind.PROJECTOR}
SETTINGS = {
    "n_ctx": "context",
    "n_seq_max": "slots",
    "n_ubatch": "micro-batch",
    "n_outputs_max": "rows of logits (slots times drafted tokens and one)",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One term of one device."""

    device: str
    kind: str
    """Value of a `TermKind`; `kv + state` where the log has them as one number."""
    planned_bytes: int
    measured_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Bytes planned too many; negative where too few."""
        return self.planned_bytes - self.measured_bytes


def compare_log(planned: Estimate, log: ServerLog) -> tuple[Compared, ...]:
    """Give every term that was planned or measured, in the order of devices and terms.

    GPUs are matched by their number, everything in main memory with the CPU. Overhead is in no
    log and left out.
    """
    if not log.buffers:
        return _by_rows(planned, log)
    measured: dict[tuple[str, TermKind], int] = defaultdict(int)
    for buffer in log.buffers:
        device = device_of(buffer, planned.devices)
        kind = OWNERS.get(buffer.owner) or KINDS[buffer.kind]
        measured[device or buffer.device, kind] += buffer.nbytes
    names = dict.fromkeys([*(d.device.name for d in planned.devices), *(n for n, _ in measured)])
    by_name = {device.device.name: device for device in planned.devices}
    found = (
        Compared(name, kind.value, _planned(by_name.get(name), kind), measured[name, kind])
        for name in names
        for kind in TermKind
        if kind is not TermKind.OVERHEAD
    )
    return tuple(row for row in found if row.planned_bytes or row.measured_bytes)


def settings_that_differ(planned: Estimate, log: ServerLog) -> tuple[str, ...]:
    """Say where the log is of another configuration than the one that is planned."""
    configuration = planned.configuration
    wanted = {
        "n_ctx": planned.n_ctx,
        "n_seq_max": configuration.n_slots,
        "n_ubatch": min(configuration.n_ubatch, configuration.n_batch),
        "n_outputs_max": n_outputs(configuration, planned.target),
    }
    return tuple(
        f"{SETTINGS[name]} is {value} in the plan, but {log.settings[name]} in the log"
        for name, value in wanted.items()
        if log.settings.get(name, str(value)) != str(value)
    )


def _planned(device: DeviceEstimate | None, kind: TermKind) -> int:
    return 0 if device is None else device.term(kind).nbytes


def _by_rows(planned: Estimate, log: ServerLog) -> tuple[Compared, ...]:
    measured: dict[tuple[str, str], int] = defaultdict(int)
    for row in log.devices:
        name = "CPU" if row.name == "Host" else row.name
        device = device_of(MeasuredBuffer(name, "model", 0), planned.devices) or row.name
        measured[device, "weights"] += row.model_bytes
        measured[device, "kv + state"] += row.context_bytes
        measured[device, "compute"] += row.compute_bytes
    by_name = {device.device.name: device for device in planned.devices}
    parts = {
        "weights": (TermKind.WEIGHTS,),
        "kv + state": (TermKind.KV, TermKind.STATE),
        "compute": (TermKind.COMPUTE,),
    }
    return tuple(
        Compared(name, part, sum(_planned(by_name.get(name), k) for k in parts[part]), nbytes)
        for (name, part), nbytes in measured.items()
        if nbytes or any(_planned(by_name.get(name), k) for k in parts[part])
    )
