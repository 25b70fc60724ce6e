"""llama.cpp's own dry run: what it would allocate, asked in a process of its own.

`python -m engine.backends.llama_cpp_dry_run` reads one JSON request a line and answers with one
JSON line. With `no_alloc` llama.cpp reads the header only and lays out cache and graph without
memory for them, 3 to 8 ms a configuration; the model stays open between requests of one file and
placement. Recurrent state is really allocated, so the process limits its own memory.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, TypedDict

import llama_cpp
import psutil

from engine.backends.llama_cpp.backend import FLASH_ATTENTION, GGML_TYPES
from engine.backends.llama_cpp.breakdown import weights_buffers
from engine.backends.llama_cpp.log import NativeLog, with_all_rows
from engine.backends.llama_cpp.placement import Placement, PlacementRequest, whole_model
from engine.configuration import FlashAttention, KVTypeName
from engine.errors import EngineError, ModelLoadError
from engine.events import BufferSize

MEMORY_LIMIT_BYTES = 4 * 1024**3
MAX_MODELS = 2
OUT_OF_MEMORY = ("failed to allocate", "unable to allocate", "bad_alloc")
"""What llama.cpp 0c1e57098 logs where memory ends."""


class ContextRequest(TypedDict):
    """The context: llama.cpp's own parameters, by their names."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_outputs_max: int
    n_rs_seq: int
    type_k: KVTypeName
    type_v: KVTypeName
    flash_attention: FlashAttention
    kv_unified: bool
    swa_full: bool
    offload_kqv: bool


class Request(TypedDict):
    """One question: a model where it lies, and a context of it."""

    model: PlacementRequest
    context: ContextRequest


class DryRunner:
    """Measures contexts; the models of the last requests stay open, a target and its draft."""

    def __init__(self, limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._log = NativeLog()
        self._limit_bytes = limit_bytes
        self._models: dict[str, object] = {}
        llama_cpp.llama_backend_init()

    def buffers(self, request: Request) -> list[dict[str, str | int]]:
        """Give the buffers of one context.

        Raises:
            ModelLoadError: llama.cpp refuses the model or the context.
        """
        with self.context(request) as context:
            found = [b for b in self._log.buffers("target") if b.kind != "KV"]
            found += weights_buffers(context, found)
            found += [BufferSize("", "KV", nbytes) for nbytes in self._log.cache_sizes()]
            found += [BufferSize("", "RS", nbytes) for nbytes in self._log.compressor_sizes()]
        asked = request["context"]
        whole = with_all_rows(tuple(found), asked["n_outputs_max"], asked["n_seq_max"])
        return [{"device": b.device, "kind": b.kind, "nbytes": b.nbytes} for b in whole]

    @contextmanager
    def context(self, request: Request) -> Iterator[object]:
        """Give the laid-out context of a request, and free it behind the block.

        Raises:
            ModelLoadError: llama.cpp refuses the model or the context.
        """
        model = self._opened(request["model"])
        self._log.clear()
        context = llama_cpp.llama_init_from_model(model, _params(request["context"]))
        if context is None:
            raise ModelLoadError(self._refusal())
        try:
            yield context
        finally:
            llama_cpp.llama_free(context)

    def _refusal(self) -> str:
        errors = self._log.errors()
        if any(text in errors for text in OUT_OF_MEMORY):
            return (
                "llama.cpp's dry run really allocates recurrent state, and this one needs more "
                f"than the {self._limit_bytes / 1024**3:.1f} GiB that it may use here: ask for "
                "fewer slots or shorter drafts, or trust the formula"
            )
        return f"llama.cpp refuses this context: {errors}"

    def _opened(self, asked: PlacementRequest) -> object:
        if not llama_cpp.llama_supports_gpu_offload():
            asked = _without_gpus(asked)
        key = json.dumps(asked, sort_keys=True)
        model = self._models.pop(key, None) or self._load(asked)
        self._models[key] = model
        return model

    def _load(self, asked: PlacementRequest) -> object:
        while len(self._models) >= MAX_MODELS:
            llama_cpp.llama_model_free(self._models.pop(next(iter(self._models))))
        placement = Placement(asked)
        placement.params.no_alloc = True
        placement.params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        self._log.clear()
        path = asked["model_path"]
        model: object = llama_cpp.llama_model_load_from_file(path.encode(), placement.params)
        if model is None:
            raise ModelLoadError(f"llama.cpp cannot read {path}: {self._log.errors()}")
        return model


def _without_gpus(asked: PlacementRequest) -> PlacementRequest:
    """Give what matters of a placement where there is no GPU: a file is opened once for all."""
    whole = whole_model(Path(asked["model_path"]))
    return {**whole, "n_cpu_moe": asked["n_cpu_moe"], "overrides": asked["overrides"]}


def _params(request: ContextRequest) -> object:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = request["n_ctx"]
    params.n_batch = request["n_batch"]
    params.n_ubatch = request["n_ubatch"]
    params.n_seq_max = request["n_seq_max"]
    params.n_outputs_max = request["n_outputs_max"]
    params.n_rs_seq = request["n_rs_seq"]
    params.type_k = GGML_TYPES[request["type_k"]]
    params.type_v = GGML_TYPES[request["type_v"]]
    params.flash_attn_type = FLASH_ATTENTION[request["flash_attention"]]
    params.kv_unified = request["kv_unified"]
    params.swa_full = request["swa_full"]
    params.offload_kqv = request["offload_kqv"]
    return params


def limit_memory() -> int:
    """Let this process allocate 4 GiB at most, or a quarter of a small machine, and say how much.

    Data of the process only: files that are mapped do not count. A crash leaves no core file.
    """
    limit = min(MEMORY_LIMIT_BYTES, psutil.virtual_memory().total // 4)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    return limit


def answer_channel() -> TextIO:
    """Give the standard output of this process, and send what native code prints to the errors.

    A failed assertion of ggml prints its stack, through a debugger where there is one: both would
    stand between the answers.
    """
    os.environ["GGML_NO_BACKTRACE"] = "1"
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def main() -> None:
    """Answer requests until standard input closes."""
    channel = answer_channel()
    runner = DryRunner(limit_memory())
    for line in sys.stdin:
        try:
            answer: dict[str, object] = {"buffers": runner.buffers(json.loads(line))}
        except EngineError as error:
            answer = {"error": str(error)}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
