"""The devices of this machine, or of one that is planned for."""

from dataclasses import dataclass
from typing import Literal

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


def devices(*, vram_bytes: tuple[int, ...] = ()) -> tuple[Device, ...]:
    """Give the GPUs, then the CPU; `vram_bytes` names GPUs to plan for instead of those found."""
    gpus = tuple(
        Device(f"GPU {index}", "gpu", nbytes, nbytes) for index, nbytes in enumerate(vram_bytes)
    )
    return (*(gpus or find_gpus()), find_cpu())


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
    """Give the NVIDIA GPUs that the driver reports; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Device:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    return Device(text, "gpu", int(memory.total), int(memory.free))


def find_cpu() -> Device:
    """Give the main memory; free is what can be had without swapping."""
    import psutil

    memory = psutil.virtual_memory()
    return Device("CPU", "cpu", int(memory.total), int(memory.available))
