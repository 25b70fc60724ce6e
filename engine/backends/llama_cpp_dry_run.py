"""llama.cpp's own dry run: what it would allocate, asked in a process of its own.

`python -m engine.backends.llama_cpp_dry_run` reads one JSON request a line and answers with one
JSON line. With `no_alloc` llama.cpp reads the header only and lays out cache and graph without
memory for them, 3 to 8 ms a configuration; the model stays open between requests of one file.
Recurrent state is really allocated, so the process limits its own memory.
"""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import llama_cpp

from engine.backends.llama_cpp.backend import ALL_LAYERS, FLASH_ATTENTION, GGML_TYPES
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import FlashAttention, KVTypeName
from engine.errors import EngineError, ModelLoadError
from engine.events import BufferSize

MEMORY_LIMIT_BYTES = 8 * 1024**3

Request = dict[str, str | int | bool]


class DryRunner:
    """Holds the model of the last request and measures contexts of it."""

    def __init__(self) -> None:
        self._log = NativeLog()
        self._model: object | None = None
        self._opened: tuple[str, int] | None = None
        llama_cpp.llama_backend_init()

    def buffers(self, request: Request) -> list[dict[str, str | int]]:
        """Give the buffers of one context.

        Raises:
            ModelLoadError: llama.cpp refuses the model or the context.
        """
        with self.context(request):
            found = [b for b in self._log.buffers("target") if b.kind != "KV"]
            found += [BufferSize("", "KV", nbytes) for nbytes in self._log.cache_sizes()]
        return [{"device": b.device, "kind": b.kind, "nbytes": b.nbytes} for b in found]

    @contextmanager
    def context(self, request: Request) -> Iterator[object]:
        """Give the laid-out context of a request, and free it behind the block.

        Raises:
            ModelLoadError: llama.cpp refuses the model or the context.
        """
        self._open(str(request["model_path"]), int(request["n_gpu_layers"]))
        self._log.clear()
        context = llama_cpp.llama_init_from_model(self._model, _params(request))
        if context is None:
            raise ModelLoadError(f"llama.cpp refuses this context: {self._log.errors()}")
        try:
            yield context
        finally:
            llama_cpp.llama_free(context)

    def _open(self, path: str, n_gpu_layers: int) -> None:
        if self._opened == (path, n_gpu_layers):
            return
        if self._model is not None:
            llama_cpp.llama_model_free(self._model)
            self._model = self._opened = None
        params = llama_cpp.llama_model_default_params()
        params.no_alloc = True
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        params.n_gpu_layers = ALL_LAYERS if n_gpu_layers < 0 else n_gpu_layers
        if not Path(path).is_file():
            raise ModelLoadError(f"{path} does not exist: check the path")
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if self._model is None:
            raise ModelLoadError(f"llama.cpp cannot read {path}: {self._log.errors()}")
        self._opened = (path, n_gpu_layers)


def _params(request: Request) -> object:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = int(request["n_ctx"])
    params.n_batch = int(request["n_batch"])
    params.n_ubatch = int(request["n_ubatch"])
    params.n_seq_max = int(request["n_seq_max"])
    params.n_outputs_max = int(request["n_outputs_max"])
    params.type_k = GGML_TYPES[cast(KVTypeName, request["type_k"])]
    params.type_v = GGML_TYPES[cast(KVTypeName, request["type_v"])]
    params.flash_attn_type = FLASH_ATTENTION[cast(FlashAttention, request["flash_attention"])]
    params.kv_unified = bool(request["kv_unified"])
    params.swa_full = bool(request["swa_full"])
    params.offload_kqv = bool(request["offload_kqv"])
    return params


def limit_memory() -> None:
    """Let this process allocate no more than `MEMORY_LIMIT_BYTES`."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))


def main() -> None:
    """Answer requests until standard input closes."""
    limit_memory()
    runner = DryRunner()
    for line in sys.stdin:
        try:
            answer: dict[str, object] = {"buffers": runner.buffers(json.loads(line))}
        except EngineError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
