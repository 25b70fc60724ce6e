"""Who computes: the promise (`base`) and the programs that keep it."""

from pathlib import Path

TORCH_MISSING = (
    "the torch backend needs PyTorch, which is not installed here ({reason}): install it with "
    "`pip install 'kvchat[torch]'`, from a checkout `.venv/bin/python -m pip install -e '.[torch]'`"
    ", or use the backend llama.cpp"
)
"""What to say where torch or gguf cannot be imported."""


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
