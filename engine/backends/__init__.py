"""Who computes: the promise (`base`) and the programs that keep it."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def installed_build() -> str:
    """Version and time of installation of llama-cpp-python, found without importing it."""
    try:
        found = distribution("llama-cpp-python")
    except PackageNotFoundError:
        return "not installed"
    library = Path(str(found.locate_file("llama_cpp/lib/libllama.so")))
    stamp = int(library.stat().st_mtime) if library.exists() else 0
    return f"{found.version}@{stamp}"
