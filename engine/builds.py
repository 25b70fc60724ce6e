"""Identity of the machine and of a backend's build, on which measured times depend."""

import os
import platform
from pathlib import Path


def machine() -> tuple[object, ...]:
    """Identity of this machine: host name, architecture and number of CPUs."""
    return platform.node(), platform.machine(), os.cpu_count()


def installed_build(backend: str = "llama.cpp") -> str:
    """Version and installation time of a backend's library, found without importing it."""
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
