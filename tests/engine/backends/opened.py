"""Backends on small made models, opened with settings by name and closed together."""

from dataclasses import replace
from pathlib import Path

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import Configuration

N_BATCH = 64


def settings(path: Path, **changes: object) -> Configuration:
    """The settings of small contexts, with others by their names."""
    base = Configuration(
        path, n_ctx=512, n_batch=N_BATCH, n_ubatch=N_BATCH, flash_attention="on", n_threads=1
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by name


class Opened:
    """Opens the models of a folder by their names, and closes them."""

    def __init__(self, folder: Path, log: NativeLog) -> None:
        self._folder, self._log = folder, log
        self._backends: list[LlamaCppBackend] = []

    def __call__(self, name: str, **changes: object) -> LlamaCppBackend:
        backend = LlamaCppBackend(settings(self._folder / f"{name}.gguf", **changes), self._log)
        self._backends.append(backend)
        return backend

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
