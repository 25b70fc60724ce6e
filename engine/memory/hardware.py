"""The devices of this machine, or of one that is planned for."""

from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import HardwareError
from engine.memory.repacking import Instructions, instructions_here

DeviceKind = Literal["gpu", "cpu"]

GPU_LIBRARIES = tuple(
    f"libggml-{name}." for name in ("cuda", "hip", "vulkan", "metal", "sycl", "musa", "cann")
)


@dataclass(frozen=True, slots=True)
class Device:
    """Memory that a model can lie in; `name` is shown to the user."""

    name: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int
    is_unified: bool = False
    """Whether a GPU's memory is a part of main memory, which then holds both."""
    instructions: Instructions = "avx2"
    """What a CPU can: it decides which weights llama.cpp repacks."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    gpu: int
    pid: int
    used_bytes: int | None
    """None where the driver does not tell, as on Windows."""


def devices(
    *, vram_bytes: tuple[int, ...] = (), ram_bytes: int | None = None
) -> tuple[Device, ...]:
    """Give the GPUs, then the CPU; sizes name memory to plan for instead of what was found.

    Raises:
        HardwareError: a size is zero or negative.
    """
    for nbytes in (*vram_bytes, *(() if ram_bytes is None else (ram_bytes,))):
        if nbytes <= 0:
            raise HardwareError(f"a device of {nbytes} bytes holds nothing: write a size above 0")
    gpus = tuple(
        Device(f"GPU {index}", "gpu", nbytes, nbytes) for index, nbytes in enumerate(vram_bytes)
    )
    cpu = find_cpu() if ram_bytes is None else _cpu(ram_bytes, ram_bytes)
    return (*(gpus or find_gpus()), cpu)


def usable_devices() -> tuple[Device, ...]:
    """Give the devices that the installed llama.cpp can use: no GPU where it was built without."""
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
    """Give the GPUs that drivers report: NVIDIA's and AMD's, and Apple's part of the memory.

    An integrated GPU counts only where there is no other, as in llama.cpp 0c1e57098.
    """
    from engine.memory.amd import find_amd_gpus

    amd = find_amd_gpus()
    own = tuple(
        Device(gpu.name, "gpu", gpu.total_bytes, gpu.free_bytes)
        for gpu in amd
        if not gpu.is_integrated
    )
    found = (*find_nvidia_gpus(), *own, *_find_apple_gpu())
    if found:
        return _told_apart(found)
    return tuple(
        Device(gpu.name, "gpu", gpu.total_bytes, gpu.free_bytes, is_unified=True) for gpu in amd
    )


def _told_apart(gpus: tuple[Device, ...]) -> tuple[Device, ...]:
    """Give several GPUs their numbers: two alike, both idle, would be one and the same device."""
    if len(gpus) == 1:
        return gpus
    return tuple(replace(gpu, name=f"GPU {index} · {gpu.name}") for index, gpu in enumerate(gpus))


def find_nvidia_gpus() -> tuple[Device, ...]:
    """Give the NVIDIA GPUs that the driver reports; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_nvidia_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def gpu_processes() -> tuple[GpuProcess, ...]:
    """Give the processes that hold memory of NVIDIA GPUs, computing and drawing ones."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found: dict[tuple[int, int], GpuProcess] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for process in (
                *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
                *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
            ):
                used = process.usedGpuMemory
                found[index, process.pid] = GpuProcess(
                    index, int(process.pid), None if used is None else int(used)
                )
        return tuple(found.values())
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _nvidia_gpu(index: int) -> Device:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:  # GB10 and Jetson share the machine's memory
        cpu = find_cpu()
        return Device(text, "gpu", cpu.total_bytes, cpu.free_bytes, is_unified=True)
    return Device(text, "gpu", int(memory.total), int(memory.free))


def _find_apple_gpu() -> tuple[Device, ...]:
    from engine.memory.apple import chip_name, gpu_share, has_unified_memory, wired_limit_mib

    if not has_unified_memory():
        return ()
    cpu = find_cpu()
    share = gpu_share(cpu.total_bytes, wired_limit_mib())
    return (Device(chip_name(), "gpu", share, min(share, cpu.free_bytes), is_unified=True),)


def find_cpu() -> Device:
    """Give the main memory, as far as a container allows; free is what needs no swapping."""
    import psutil

    from engine.memory.container import memory_limit

    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit = memory_limit()
    if limit is not None:
        total, free = min(total, limit.total_bytes), min(free, limit.free_bytes)
    return _cpu(total, free)


def _cpu(total_bytes: int, free_bytes: int) -> Device:
    return Device("CPU", "cpu", total_bytes, free_bytes, instructions=instructions_here())
