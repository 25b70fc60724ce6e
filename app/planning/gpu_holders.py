"""Who holds memory of this machine's GPUs: what ends them frees."""

from engine.memory.gpus import nvidia_processes
from engine.memory.units import format_bytes


def holders() -> list[str]:
    """Give a line for each process on an NVIDIA GPU, the largest first; none without one."""
    found = sorted(nvidia_processes(), key=lambda process: -(process.used_bytes or 0))
    return [
        f"{_program(process.pid)} (process {process.pid}) holds "
        f"{'memory' if process.used_bytes is None else format_bytes(process.used_bytes)} "
        f"of GPU {process.gpu}"
        for process in found
    ]


def _program(pid: int) -> str:
    import psutil

    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "another user's program"
