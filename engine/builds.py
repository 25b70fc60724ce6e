"""What a measured time depends on beside model and settings: the machine, and a library's build."""

import os
import platform
from pathlib import Path


def machine() -> tuple[object, ...]:
    """What tells this machine from others."""
    return platform.node(), platform.machine(), os.cpu_count()


def installed_build(backend: str = "llama.cpp") -> str:
    """Version and time of installation of a backend's library, found without importing it."""
    from importlib.metadata import PackageNotFoundError, distribution, version

    try:
        if backend == "torch":
            return f"torch {version('torch')}"
        found = distribution("llama-cpp-python")
    except PackageNotFoundError:
        return "not installed"
    library = Path(str(found.locate_file("llama_cpp/lib/libllama.so")))
    stamp = int(library.stat().st_mtime) if library.exists() else 0
    return f"{found.version}@{stamp}"
