"""GPUs as their drivers describe them: NVIDIA's by NVML, AMD's by sysfs, Apple's by sysctl.

AMD: kernel documentation, `gpu/amdgpu/driver-misc.rst` (`mem_info_vram_total`,
`mem_info_gtt_total`) and `gpu/amdgpu/thermal.rst` (`gpu_metrics`, whose format 2 and 3 are those of
APUs: `drivers/gpu/drm/amd/include/kgd_pp_interface.h`); ROCm is not needed.

Apple has one pool of memory, of which Metal gives a GPU a part. Metal's
`recommendedMaxWorkingSetSize`, which llama.cpp prints when it starts, was 10.67 GiB of 16 and 48 of
64 in public logs (llama.cpp issues 1870 and 5206, llama-cpp-python issue 687): two thirds up to 36
GiB, three quarters above. macOS 26 gives more, 11.84 of 16 and 107.5 of 128 (llmfit pull request
754, ds4 pull request 893); the smaller figures are planned with. `sysctl iogpu.wired_limit_mb`
overrides it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from platform import machine

from engine.memory.units import GIB, MIB

SYSFS = Path("/sys")
AMD_VENDOR = "0x1002"
APU_METRICS = (2, 3)
SMALL_MAC_BYTES = 36 * GIB
SYSCTL = "/usr/sbin/sysctl"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver describes it."""

    name: str
    total_bytes: int | None
    """With an APU's window of RAM; None where the GPU shares all of the machine's."""
    free_bytes: int | None
    is_integrated: bool = False
    """Whether it is part of a processor that may stand beside a card."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    gpu: int
    pid: int
    used_bytes: int | None
    """None if the driver does not report it, as on Windows."""


def nvidia_gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that the driver reports; none where there is no driver."""
    import pynvml

    with _driver() as handles:
        try:
            return tuple(map(_nvidia_gpu, handles))
        except pynvml.NVMLError:
            return ()


def nvidia_processes() -> tuple[GpuProcess, ...]:
    """The processes that hold memory of NVIDIA GPUs, computing and drawing ones."""
    import pynvml

    found: dict[tuple[int, int], GpuProcess] = {}
    with _driver() as handles:
        try:
            for index, handle in enumerate(handles):
                for process in (
                    *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
                    *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
                ):
                    used = process.usedGpuMemory
                    found[index, process.pid] = GpuProcess(
                        index, int(process.pid), None if used is None else int(used)
                    )
        except pynvml.NVMLError:
            return ()
    return tuple(found.values())


def amd_gpus(sysfs: Path = SYSFS) -> tuple[Gpu, ...]:
    """The AMD GPUs that the driver reports; none on other systems."""
    cards = (sysfs / "class/drm").glob("card*/device")
    found = [gpu for device in sorted(cards) if (gpu := _amd_gpu(device)) is not None]
    return tuple(found)


def has_apple_gpu() -> bool:
    """Whether this is a Mac with Apple's own chip."""
    return sys.platform == "darwin" and machine() == "arm64"


def apple_share(ram_bytes: int, wired_limit_mib: int = 0) -> int:
    """The bytes that the GPU may take of a Mac's memory; 0 is no limit set by hand."""
    if wired_limit_mib > 0:
        return min(wired_limit_mib * MIB, ram_bytes)
    return ram_bytes * 2 // 3 if ram_bytes <= SMALL_MAC_BYTES else ram_bytes * 3 // 4


def apple_chip() -> str:
    """The chip's name, such as `Apple M4 Max`."""
    return _sysctl("machdep.cpu.brand_string") or "Apple GPU"


def apple_wired_limit_mib() -> int:
    """The limit that the user set, in MiB; 0 where none is."""
    text = _sysctl("iogpu.wired_limit_mb")
    return int(text) if text.isdecimal() else 0


@contextmanager
def _driver() -> Iterator[list[object]]:
    """NVML with a handle for each GPU; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        yield _handles()
    finally:
        pynvml.nvmlShutdown()


def _handles() -> list[object]:
    import pynvml

    try:
        return [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return []


def _nvidia_gpu(handle: object) -> Gpu:
    import pynvml

    name = pynvml.nvmlDeviceGetName(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:  # GB10 and Jetson share the machine's memory
        return Gpu(text, None, None)
    return Gpu(text, int(memory.total), int(memory.free))


def _amd_gpu(device: Path) -> Gpu | None:
    total = _number(device / "mem_info_vram_total")
    if _text(device / "vendor") != AMD_VENDOR or not total:
        return None
    used = _number(device / "mem_info_vram_used")
    is_integrated = _is_integrated(device)
    if is_integrated:
        total += _number(device / "mem_info_gtt_total")
        used += _number(device / "mem_info_gtt_used")
    name = _text(device / "product_name") or ("AMD integrated GPU" if is_integrated else "AMD GPU")
    return Gpu(name, total, max(0, total - used), is_integrated)


def _is_integrated(device: Path) -> bool:
    try:
        header = (device / "gpu_metrics").read_bytes()[:4]
    except OSError:
        return False
    return len(header) == 4 and header[2] in APU_METRICS


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # the driver does not report it


def _sysctl(key: str) -> str:
    import subprocess

    try:
        run = subprocess.run(
            [SYSCTL, "-n", key], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip()
