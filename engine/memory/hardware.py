"""The devices of this machine: GPUs as their drivers describe them, RAM, processor and cores.

AMD: kernel documentation, `gpu/amdgpu/driver-misc.rst` and `gpu/amdgpu/thermal.rst` (`gpu_metrics`,
whose format 2 and 3 are those of APUs: `drivers/gpu/drm/amd/include/kgd_pp_interface.h`); ROCm is
not needed.

Apple: Metal's `recommendedMaxWorkingSetSize` was 10.67 GiB of 16 and 48 of 64 in public logs
(llama.cpp issues 1870 and 5206, llama-cpp-python issue 687): two thirds up to 36 GiB, three
quarters above. macOS 26 gives more, 11.84 of 16 and 107.5 of 128 (llmfit pull request 754, ds4 pull
request 893); the smaller figures are planned with. `sysctl iogpu.wired_limit_mb` overrides it.

A container leaves less RAM: Linux control groups, version 2 and 1 (kernel documentation,
`admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`). A limit holds for all groups below it.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from engine.memory.units import GIB, MIB

Instructions = Literal["none", "avx2", "avx512", "arm"]
"""Instruction sets that llama.cpp repacks weights for: AVX2 and AVX-512 of x86, dot products of ARM
(`asimddp`: since Cortex A75, Graviton 2 and all of Apple's)."""
DeviceKind = Literal["gpu", "cpu"]
Vendor = Literal["NVIDIA", "AMD", "Intel", "Apple"]
T = TypeVar("T")
ROOT, SYSFS, SYSCTL = Path("/"), Path("/sys"), "/usr/sbin/sysctl"
AMD_VENDOR = "0x1002"
APU_METRICS = (b"\x02", b"\x03")  # formats of `gpu_metrics`
SMALL_MAC_BYTES = 36 * GIB
UNLIMITED = 1 << 60  # version 1 of control groups writes a number near 2^63 without a limit
GPU_LIBRARIES = tuple(
    f"libggml-{name}." for name in ("cuda", "hip", "vulkan", "metal", "sycl", "musa", "cann")
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device with memory for a model; `name` is shown to the user."""

    name: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int
    is_unified: bool = False
    """Whether a GPU's memory is a part of RAM, which then holds both."""
    instructions: Instructions = "avx2"
    """Instruction sets of a CPU, which decide what llama.cpp repacks."""
    worker: str = ""
    """The `host:port` of a GPU's RPC worker; empty for this machine's GPUs."""
    vendor: Vendor = "NVIDIA"
    """The maker of a GPU; NVIDIA if only the size is known."""

    @property
    def runs_cuda(self) -> bool:
        """Whether llama.cpp runs a GPU by CUDA; AMD's run by Vulkan or ROCm."""
        return self.kind == "gpu" and self.vendor == "NVIDIA"


class Processor(NamedTuple):
    """A processor: its model, else its architecture."""

    name: str
    features: frozenset[str] | None
    """The CPU's instruction sets by Linux's names; None if unknown."""


class GpuProcess(NamedTuple):
    """A process that holds memory of a GPU."""

    gpu: int
    pid: int
    used_bytes: int | None
    """Used memory; None if the driver does not report it, as on Windows."""


def devices() -> tuple[Device, ...]:
    """The GPUs, then the CPU."""
    return (*find_gpus(), find_cpu())


def usable_devices() -> tuple[Device, ...]:
    """The devices that the installed llama.cpp can use; no GPU if it was built without."""
    return devices() if has_gpu_backend() else (find_cpu(),)


def has_gpu_backend() -> bool:
    """Whether the installed llama-cpp-python carries a library for some kind of GPU."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        return any(file.name.startswith(GPU_LIBRARIES) for file in files("llama-cpp-python") or ())
    except PackageNotFoundError:
        return False


def find_gpus() -> tuple[Device, ...]:
    """The GPUs that drivers report: NVIDIA's and AMD's, and Apple's part of the memory.

    An integrated GPU is used only if there is no other, as in llama.cpp 0c1e57098.
    """
    amd = find_amd_gpus()
    own = (gpu for gpu in amd if not gpu.is_unified)
    found = (*find_nvidia_gpus(), *own, *_find_apple_gpu())
    if len(found) < 2:
        return found or amd
    # Two cards alike, both idle, would be one and the same device without their numbers.
    return tuple(replace(gpu, name=f"GPU {index} · {gpu.name}") for index, gpu in enumerate(found))


def find_nvidia_gpus() -> tuple[Device, ...]:
    """The NVIDIA GPUs that the driver reports; empty without a driver."""
    return _ask_nvml(lambda _, handle: [_nvidia_gpu(handle)])


def nvidia_processes() -> tuple[GpuProcess, ...]:
    """The processes that hold memory of NVIDIA GPUs, computing and drawing ones."""
    import pynvml

    def ask(gpu: int, handle: object) -> Iterable[GpuProcess]:
        computing = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        drawing = pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
        used = {int(each.pid): each.usedGpuMemory for each in (*computing, *drawing)}
        return (GpuProcess(gpu, pid, n if n is None else int(n)) for pid, n in used.items())

    return _ask_nvml(ask)


def _ask_nvml(question: Callable[[int, Any], Iterable[T]]) -> tuple[T, ...]:
    """Query all NVIDIA GPUs by number and handle; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return tuple(each for n, handle in enumerate(handles) for each in question(n, handle))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _nvidia_gpu(handle: object) -> Device:
    import pynvml

    name = pynvml.nvmlDeviceGetName(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:  # GB10 and Jetson share the machine's memory
        cpu = find_cpu()
        return Device(text, "gpu", cpu.total_bytes, cpu.free_bytes, is_unified=True)
    return Device(text, "gpu", int(memory.total), int(memory.free))


def find_amd_gpus(sysfs: Path = SYSFS) -> tuple[Device, ...]:
    """The AMD GPUs that the driver reports; an integrated one has its window of RAM too."""
    cards = sorted((sysfs / "class/drm").glob("card*/device"))
    return tuple(gpu for card in cards if (gpu := _amd_gpu(card)) is not None)


def _amd_gpu(card: Path) -> Device | None:
    total = _number(card / "mem_info_vram_total")
    if _text(card / "vendor") != AMD_VENDOR or not total:
        return None
    used, name = _number(card / "mem_info_vram_used") or 0, "AMD GPU"
    try:
        is_integrated = (card / "gpu_metrics").read_bytes()[2:3] in APU_METRICS
    except OSError:
        is_integrated = False
    if is_integrated:
        total += _number(card / "mem_info_gtt_total") or 0
        used += _number(card / "mem_info_gtt_used") or 0
        name = "AMD integrated GPU"
    name = _text(card / "product_name") or name
    return Device(name, "gpu", total, max(0, total - used), is_integrated, vendor="AMD")


def _find_apple_gpu() -> tuple[Device, ...]:
    if not has_apple_gpu():
        return ()
    cpu, limit = find_cpu(), sysctl("iogpu.wired_limit_mb")
    share = apple_share(cpu.total_bytes, int(limit) if limit.isdecimal() else 0)
    name, free = sysctl("machdep.cpu.brand_string") or "Apple GPU", min(share, cpu.free_bytes)
    return (Device(name, "gpu", share, free, is_unified=True, vendor="Apple"),)


def has_apple_gpu() -> bool:
    """Whether this is a Mac with Apple's own chip."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def apple_share(ram_bytes: int, wired_limit_mib: int = 0) -> int:
    """Bytes of a Mac's memory that the GPU may use.

    `wired_limit_mib` is `iogpu.wired_limit_mb`; 0 if the user has not set it.
    """
    if wired_limit_mib > 0:
        return min(wired_limit_mib * MIB, ram_bytes)
    return ram_bytes * 2 // 3 if ram_bytes <= SMALL_MAC_BYTES else ram_bytes * 3 // 4


def sysctl(key: str) -> str:
    """A macOS kernel value; empty if there is none."""
    command = [SYSCTL, "-n", key]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip()


def find_cpu() -> Device:
    """The RAM within the container's limit; free is what needs no swapping."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = memory_limit() or (memory.total, memory.available)
    total, free = min(total, int(memory.total)), min(free, int(memory.available))
    return Device("CPU", "cpu", total, free, instructions=instructions_here())


@cache
def this_processor() -> Processor:
    """The processor of this machine; macOS and Windows do not report its instructions."""
    return described_processor(_text(Path("/proc/cpuinfo")))


def described_processor(cpuinfo: str) -> Processor:
    """Facts about the first processor in the text of `/proc/cpuinfo`; empty if it has none."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    name = values.get("model name") or platform.processor() or platform.machine()
    features = values.get("flags") or values.get("Features") or ""  # x86, ARM
    return Processor(name, frozenset(features.split()) if cpuinfo else None)


def instructions_here() -> Instructions:
    """Instruction sets of this machine's processor; the common ones if unknown."""
    is_arm = platform.machine().lower() in ("arm64", "aarch64")
    features = this_processor().features
    return instructions_of({"asimddp", "avx2"} if features is None else features, is_arm=is_arm)


def instructions_of(features: Set[str], *, is_arm: bool) -> Instructions:
    """The instruction sets that llama.cpp repacks for, from Linux's feature names."""
    if is_arm:
        return "arm" if "asimddp" in features else "none"
    if "avx2" not in features:
        return "none"
    return "avx512" if "avx512f" in features else "avx2"


def usable_cores(root: Path = ROOT) -> tuple[int, int]:
    """Physical and logical cores that this process may compute on; each at least 1.

    A mask of processors (`taskset`, cpusets) and a container's quota of time leave fewer than the
    machine has.
    """
    import psutil

    n_logical = psutil.cpu_count() or 1
    n_physical = psutil.cpu_count(logical=False) or n_logical
    if hasattr(os, "sched_getaffinity"):
        n_logical = min(n_logical, len(os.sched_getaffinity(0)))
    quotas = [quota for group in _groups(root, "cpu") if (quota := _quota(group)) is not None]
    n_logical = max(1, min([n_logical, *(int(quota + 0.5) for quota in quotas)]))
    return min(n_physical, n_logical), n_logical


def thread_counts(n_decode: int | None, n_prefill: int | None) -> tuple[int, int]:
    """Threads of decode and of prefill; by default the physical cores for decode."""
    n_decode = n_decode or usable_cores()[0]
    return n_decode, n_prefill or n_decode


def _quota(group: Path) -> float | None:
    """CPU time in cores that a group may use; None if unlimited."""
    words = _text(group / "cpu.max").split()
    words = words or [_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    return int(words[0]) / max(int(words[1]), 1)


def memory_limit(root: Path = ROOT) -> tuple[int, int] | None:
    """The tightest memory limit of this process, and what is free below it without swapping."""
    found = [limit for group in _groups(root, "memory") if (limit := _limit(group)) is not None]
    return (min(total for total, _ in found), min(free for _, free in found)) if found else None


def _limit(group: Path) -> tuple[int, int] | None:
    total = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
    if total is None or total >= UNLIMITED:
        return None
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
    fields = dict(re.findall(r"^(\w+) (\d+)$", _text(group / "memory.stat"), re.MULTILINE))
    # File pages that nobody uses go before anything is refused.
    unused = int(fields.get("total_inactive_file") or fields.get("inactive_file") or 0)
    return total, max(0, total - max(0, used - unused))


def _groups(root: Path, controller: str) -> list[Path]:
    """The folders of the process's group of a controller and of those above it."""
    mounted = root / "sys/fs/cgroup"
    groups = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "-", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = mounted / controller if controllers else mounted
        group = top / path.lstrip("/")
        # Inside a container the path may be the host's, and only the top is there.
        groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]
    return list(dict.fromkeys(groups))


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # the kernel or the driver does not report it
