"""Whether there is a GPU, and whether llama.cpp was built for it."""

from app.doctor.check import Check

GIB = 1 << 30


def check_gpu(*, has_gpu_build: bool | None) -> Check:
    """Compare the NVIDIA devices with what llama.cpp can use.

    Args:
        has_gpu_build: Whether llama.cpp can put layers on a GPU; None if that is unknown.
    """
    names = nvidia_devices()
    if not names:
        detail = "no NVIDIA GPU was found: "
        return Check(
            "gpu",
            "ok",
            detail + ("another GPU may be used" if has_gpu_build else "the CPU is used"),
        )
    detail = ", ".join(names)
    if has_gpu_build is False:
        return Check(
            "gpu",
            "note",
            f"{detail}; llama.cpp was built for the CPU only",
            "build it again where the CUDA toolkit (nvcc) is on the path: "
            "CMAKE_ARGS=-DGGML_CUDA=ON pip install --force-reinstall --no-cache-dir "
            "--no-binary llama-cpp-python llama-cpp-python",
        )
    return Check("gpu", "ok", detail)


def nvidia_devices() -> list[str]:
    """Give name and memory of each NVIDIA GPU, none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return [_describe(handle) for handle in handles]
    except pynvml.NVMLError as error:
        return [f"a GPU that cannot be read ({error})"]
    finally:
        pynvml.nvmlShutdown()


def _describe(handle: object) -> str:
    import pynvml

    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    return f"{name} ({memory.free / GIB:.1f} of {memory.total / GIB:.1f} GiB free)"
