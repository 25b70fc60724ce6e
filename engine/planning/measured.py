"""Memory that llama.cpp reports, for comparison with a plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from engine.events import BufferSize
from engine.memory.dry_run import DryRun, measured_bytes, with_measured
from engine.memory.hardware import nvidia_processes
from engine.memory.terms import DeviceEstimate, TermKind
from engine.memory.units import format_bytes
from engine.model.architecture import read_model
from engine.planning.planner import Plan


def measured_plan(plan: Plan, dry_run: DryRun | None = None) -> Plan:
    """Replace a plan's figures by llama.cpp's dry run, where it can measure them.

    It measures this machine's own devices, not typed sizes. A draft model is measured separately
    and added. The largest context stays the formula's.

    Args:
        plan: The plan.
        dry_run: A running process to use; None starts one.

    Raises:
        WorkerError: llama.cpp refuses the configuration, or does not work here.
        ModelFileError: the draft model cannot be read.
    """
    if not can_measure(plan):
        return plan
    if dry_run is None:
        with DryRun() as own:
            return measured_plan(plan, own)
    configuration = plan.setup.configuration
    buffers = dry_run.measure(configuration, plan.setup.target)
    draft = None if configuration.draft is None else read_model(configuration.draft.model_path)
    return replace(plan, estimate=with_measured(plan.estimate, buffers, draft))


def can_measure(plan: Plan) -> bool:
    """Whether the plan is for this machine and the model is a local file."""
    return plan.setup.machine.is_here and plan.setup.configuration.model_path.is_file()


LoadedBytes = Mapping[str, Mapping[TermKind, int]]
"""Bytes by name of the device and part."""


def loaded_bytes(
    buffers: Iterable[BufferSize], devices: Sequence[DeviceEstimate]
) -> dict[str, dict[TermKind, int]]:
    """Allocated bytes by device and part, as a plan counts them."""
    names = {each.device.name for each in devices}
    found: dict[str, dict[TermKind, int]] = {}
    for (name, kind), nbytes in measured_bytes(buffers, devices).items():
        if name in names:
            found.setdefault(name, {})[kind] = nbytes
    return found


def holders() -> list[str]:
    """A line for each process on an NVIDIA GPU, the largest first; none without one."""
    found = sorted(nvidia_processes(), key=lambda process: -(process.used_bytes or 0))
    return [
        f"{_program(process.pid)} (process {process.pid}) uses "
        f"{'memory' if process.used_bytes is None else format_bytes(process.used_bytes)} of "
        f"GPU {process.gpu}"
        for process in found
    ]


def _program(pid: int) -> str:
    import psutil

    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "another user's program"
