"""The devices of this machine and its processor, and which weights llama.cpp rearranges for one.

Tied embeddings of such a type lie in memory twice: as rows that tokens are looked up in, and
repacked as the output layer. Types and rows are those of llama.cpp 0c1e57098
(`ggml_repack_get_optimal_repack_type`, `ggml/src/ggml-cpu/repack.cpp`); the layouts of Intel's AMX,
RISC-V and KleidiAI are left out.

A container leaves less RAM: Linux control groups, version 2 and 1 (kernel documentation,
`admin-guide/cgroup-v2.rst`: `memory.max`, `memory.current`, `memory.stat`, and
`cgroup-v1/memory.rst`). A limit holds for all groups below it, so the smallest on the way up
counts.
"""

import os
import platform
from collections.abc import Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from engine.errors import HardwareError
from engine.memory import gpus
from engine.model.gguf import TensorInfo

Instructions = Literal["none", "avx2", "avx512", "arm"]
"""What a processor can: AVX2 and AVX-512 of x86, the dot products of ARM (`asimddp`: since Cortex
A75, Graviton 2 and all of Apple's); older ones repack nothing."""

AVX2 = {"q4_0": 8, "q4_K": 8, "iq4_nl": 8, "mxfp4": 8}
ROW_MULTIPLES: dict[Instructions, dict[str, int]] = {
    "none": {},
    "avx2": AVX2,
    "avx512": AVX2 | {"q2_K": 8},
    "arm": {
        "q4_0": 4, "q4_K": 8, "q5_K": 8, "q6_K": 8, "iq4_nl": 4, "mxfp4": 4, "q8_0": 4, "q1_0": 4,
    },
}  # fmt: skip
"""Types that are repacked, and of what their number of rows must be a multiple. On ARM the matrix
products (i8mm) and vectors of 256 bits (SVE) change the layout only."""

DeviceKind = Literal["gpu", "cpu"]
Vendor = Literal["NVIDIA", "AMD", "Intel", "Apple"]
ROOT = Path("/")
UNLIMITED = 1 << 60
"""Version 1 of control groups writes a number near 2^63 where there is no limit."""
GPU_LIBRARIES = tuple(
    f"libggml-{name}." for name in ("cuda", "hip", "vulkan", "metal", "sycl", "musa", "cann")
)


def is_repacked(tensor: TensorInfo, instructions: Instructions) -> bool:
    """Whether a matrix, or the matrices of experts, are rearranged for these instructions."""
    multiple = ROW_MULTIPLES[instructions].get(tensor.type.name)
    n_dimensions = 3 if "exps" in tensor.name else 2
    return (
        multiple is not None
        and len(tensor.shape) == n_dimensions
        and tensor.shape[1] % multiple == 0
    )


@dataclass(frozen=True, slots=True)
class Processor:
    """What is known of a processor."""

    name: str
    """The model, else the architecture."""
    features: frozenset[str] | None
    """Its instruction sets by Linux's names; None where they cannot be asked for."""


@cache
def this_processor() -> Processor:
    """The processor of this machine; macOS and Windows do not report its instructions."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Processor(platform.processor() or platform.machine(), None)
    return described_processor(text)


def described_processor(cpuinfo: str) -> Processor:
    """The first processor of a text as `/proc/cpuinfo` has it."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    name = values.get("model name") or platform.processor() or platform.machine()
    features = values.get("flags") or values.get("Features") or ""  # x86, ARM
    return Processor(name, frozenset(features.split()))


def instructions_here() -> Instructions:
    """What the processor of this machine can; where it cannot be asked, what most can."""
    is_arm = platform.machine().lower() in ("arm64", "aarch64")
    features = this_processor().features
    if features is None:
        return "arm" if is_arm else "avx2"
    return instructions_of(features, is_arm=is_arm)


def instructions_of(features: Set[str], *, is_arm: bool) -> Instructions:
    """The instructions that are repacked for, by the features that Linux names."""
    if is_arm:
        return "arm" if "asimddp" in features else "none"
    if "avx2" not in features:
        return "none"
    return "avx512" if "avx512f" in features else "avx2"


@dataclass(frozen=True, slots=True)
class Device:
    """Memory that a model can lie in; `name` is shown to the user."""

    name: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int
    is_unified: bool = False
    """Whether a GPU's memory is a part of RAM, which then holds both."""
    instructions: Instructions = "avx2"
    """What a CPU can: it decides which weights llama.cpp repacks."""
    worker: str = ""
    """The `host:port` of the RPC worker that a GPU is reached by; empty for this machine's."""
    vendor: Vendor = "NVIDIA"
    """The maker of a GPU; one of which the size alone is known is planned as NVIDIA's."""

    @property
    def runs_cuda(self) -> bool:
        """Whether llama.cpp runs a GPU by CUDA; AMD's run by Vulkan or ROCm."""
        return self.kind == "gpu" and self.vendor == "NVIDIA"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a control group may use, and what it could still get without swapping."""

    total_bytes: int
    free_bytes: int


def devices(
    *, vram_bytes: tuple[int, ...] = (), ram_bytes: int | None = None
) -> tuple[Device, ...]:
    """The GPUs, then the CPU; sizes name memory to plan for instead of what was found.

    Raises:
        HardwareError: a size is zero or negative.
    """
    for nbytes in (*vram_bytes, *(() if ram_bytes is None else (ram_bytes,))):
        if nbytes <= 0:
            raise HardwareError(f"a device of {nbytes} bytes has no memory: write a size above 0")
    sized = tuple(
        Device(f"GPU {index}", "gpu", nbytes, nbytes) for index, nbytes in enumerate(vram_bytes)
    )
    cpu = find_cpu() if ram_bytes is None else _cpu(ram_bytes, ram_bytes)
    return (*(sized or find_gpus()), cpu)


def usable_devices() -> tuple[Device, ...]:
    """The devices that the installed llama.cpp can use: no GPU where it was built without."""
    return devices() if has_gpu_backend() else (find_cpu(),)


def has_gpu_backend() -> bool:
    """Whether the installed llama-cpp-python carries a library for some kind of GPU."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution("llama-cpp-python").files or ()
    except PackageNotFoundError:
        return False
    return any(file.name.startswith(GPU_LIBRARIES) for file in files)


def find_gpus() -> tuple[Device, ...]:
    """The GPUs that drivers report: NVIDIA's and AMD's, and Apple's part of the memory.

    An integrated GPU counts only where there is no other, as in llama.cpp 0c1e57098.
    """
    amd = gpus.amd_gpus()
    own = tuple(_gpu(gpu, "AMD") for gpu in amd if not gpu.is_integrated)
    found = (*find_nvidia_gpus(), *own, *_find_apple_gpu())
    if not found:
        return tuple(_gpu(gpu, "AMD") for gpu in amd)
    if len(found) == 1:
        return found
    # Two cards alike, both idle, would be one and the same device without their numbers.
    return tuple(replace(gpu, name=f"GPU {index} · {gpu.name}") for index, gpu in enumerate(found))


def find_nvidia_gpus() -> tuple[Device, ...]:
    """The NVIDIA GPUs that the driver reports; none where there is no driver."""
    return tuple(_gpu(gpu, "NVIDIA") for gpu in gpus.nvidia_gpus())


def find_cpu() -> Device:
    """The RAM within the container's limit; free is what needs no swapping."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit = memory_limit()
    if limit is not None:
        total, free = min(total, limit.total_bytes), min(free, limit.free_bytes)
    return _cpu(total, free)


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The tightest limit on this process's memory; None where there is none."""
    found = [limit for group in _groups(root) if (limit := _limit(group)) is not None]
    if not found:
        return None
    return MemoryLimit(
        min(limit.total_bytes for limit in found), min(limit.free_bytes for limit in found)
    )


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
    """Threads of steps and of prompts: by themselves a step's are the physical cores."""
    n_decode = n_decode or usable_cores()[0]
    return n_decode, n_prefill or n_decode


def _quota(group: Path) -> float | None:
    """Cores' worth of time that a group may use; None where it may use all."""
    words = _text(group / "cpu.max").split()
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal():
        return int(words[0]) / max(int(words[1]), 1)
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _gpu(gpu: gpus.Gpu, vendor: Vendor) -> Device:
    total, free, is_unified = gpu.total_bytes, gpu.free_bytes, gpu.is_integrated
    if total is None or free is None:
        cpu = find_cpu()
        total, free, is_unified = cpu.total_bytes, cpu.free_bytes, True
    return Device(gpu.name, "gpu", total, free, is_unified, vendor=vendor)


def _find_apple_gpu() -> tuple[Device, ...]:
    if not gpus.has_apple_gpu():
        return ()
    cpu = find_cpu()
    share = gpus.apple_share(cpu.total_bytes, gpus.apple_wired_limit_mib())
    free = min(share, cpu.free_bytes)
    return (Device(gpus.apple_chip(), "gpu", share, free, is_unified=True, vendor="Apple"),)


def _cpu(total_bytes: int, free_bytes: int) -> Device:
    return Device("CPU", "cpu", total_bytes, free_bytes, instructions=instructions_here())


def _groups(root: Path, controller: str = "memory") -> list[Path]:
    """The folders of the process's group of a controller and of those above it."""
    mounted = root / "sys/fs/cgroup"
    groups = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers == "":
            top = mounted
        elif controller in controllers.split(","):
            top = mounted / controller
        else:
            continue
        group = top / path.lstrip("/")
        # Inside a container the path may be the host's, and only the top is there.
        groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]
    return list(dict.fromkeys(groups))


def _limit(group: Path) -> MemoryLimit | None:
    total = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
    if total is None or total >= UNLIMITED:
        return None
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
    return MemoryLimit(total, max(0, total - max(0, used - _reclaimable(group))))


def _reclaimable(group: Path) -> int:
    """The bytes of file pages that nobody uses now: they go before anything is refused."""
    fields = dict(
        line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line
    )
    value = fields.get("total_inactive_file", fields.get("inactive_file", "0")).strip()
    return int(value) if value.isdecimal() else 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""  # no such file: the kernel has no such group
