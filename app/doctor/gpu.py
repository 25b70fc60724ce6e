"""Whether there is a GPU, and whether llama.cpp was built for it."""

from app.doctor.check import Check
from engine.memory.hardware import find_nvidia_gpus
from engine.memory.units import format_bytes


def check_gpu(*, has_gpu_build: bool | None) -> Check:
    """Compare the NVIDIA devices with what llama.cpp can use.

    Args:
        has_gpu_build: Whether llama.cpp can put layers on a GPU; None if that is unknown.
    """
    gpus = find_nvidia_gpus()
    if not gpus:
        detail = "no NVIDIA GPU was found: "
        return Check(
            "gpu",
            "ok",
            detail + ("another GPU may be used" if has_gpu_build else "the CPU is used"),
        )
    detail = ", ".join(
        f"{gpu.name} ({format_bytes(gpu.free_bytes)} of {format_bytes(gpu.total_bytes)} free)"
        for gpu in gpus
    )
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
