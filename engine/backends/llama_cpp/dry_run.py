"""llama.cpp's dry run: buffer sizes of a configuration, computed in a separate process.

`python -m engine.backends.llama_cpp.dry_run` reads one JSON request per line and answers with one
JSON line. With `no_alloc` llama.cpp reads only the header and lays out cache and graph without
allocating, 3 to 8 ms per configuration; the model stays open between requests with the same file
and placement. Recurrent states are really allocated, so the process limits its memory.

Sizes of weights come exactly from the header, without a dry run.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import llama_cpp
import psutil

from engine.backends.llama_cpp.log import CACHE_LINE, NativeLog, with_all_rows
from engine.backends.llama_cpp.parameters import ModelParameters, context_parameters
from engine.configuration import Configuration, TensorOverride
from engine.errors import EngineError, ModelLoadError
from engine.events import BufferSize

Request = dict[str, Any]
"""A request: `configuration` as plain values, `n_rows` of logits per batch, and `n_rollback` rows
that the recurrent state stores to roll back drafted tokens."""
MEMORY_LIMIT_BYTES = 4 * 1024**3
MAX_MODELS = 2
CPU_PLACEMENT = ("n_cpu_moe", "tensor_overrides")
PLACEMENT = ("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", *CPU_PLACEMENT)
"""Settings that determine the placement of weights."""
IGNORED = ("draft", "speculation", "sampling", "adapters", "mmproj_path")
OUT_OF_MEMORY = ("failed to allocate", "unable to allocate", "bad_alloc")
"""Log messages of llama.cpp 0c1e57098 if memory runs out."""


class DryRunner:
    """Measures contexts; keeps the last models open, a target and its draft."""

    def __init__(self, limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._log = NativeLog()
        self._limit_bytes = limit_bytes
        self._models: dict[Configuration, object] = {}
        llama_cpp.llama_backend_init()

    def buffers(self, request: Request) -> list[dict[str, str | int]]:
        """Compute the buffers of one context.

        Raises:
            ModelLoadError: llama.cpp cannot load the model or create the context.
        """
        with self.context(request):
            found = [b for b in self._log.buffers("target") if b.kind not in ("KV", "model")]
            found += [BufferSize("", "KV", nbytes) for nbytes in self._log.sizes(CACHE_LINE)]
        n_slots = request["configuration"]["n_slots"]
        whole = with_all_rows(tuple(found), request["n_rows"], n_slots)
        return [{"device": b.device, "kind": b.kind, "nbytes": b.nbytes} for b in whole]

    @contextmanager
    def context(self, request: Request) -> Iterator[object]:
        """The context of a request, freed at the end of the block; raises `ModelLoadError`."""
        configuration = configuration_of(request["configuration"])
        model = self._opened(configuration)
        self._log.clear()
        params = context_parameters(configuration, request["n_rows"], request["n_rollback"])
        context = llama_cpp.llama_init_from_model(model, params)
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
                "the dry run would need more than its limit of "
                f"{self._limit_bytes / 1024**3:.1f} GiB for the recurrent state: use fewer "
                "slots or shorter drafts, or plan without the dry run"
            )
        return f"llama.cpp refused this context: {errors}"

    def _opened(self, configuration: Configuration) -> object:
        """The model of a configuration, shared by those with the same placement."""
        plain = Configuration(configuration.model_path, 0)
        names = PLACEMENT if llama_cpp.llama_supports_gpu_offload() else CPU_PLACEMENT
        placed = replace(plain, **{name: getattr(configuration, name) for name in names})
        model = self._models.pop(placed, None) or self._load(placed)
        self._models[placed] = model
        return model

    def _load(self, placed: Configuration) -> object:
        while len(self._models) >= MAX_MODELS:
            llama_cpp.llama_model_free(self._models.pop(next(iter(self._models))))
        asked = ModelParameters(placed)
        asked.params.no_alloc = True
        asked.params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        self._log.clear()
        path = str(placed.model_path)
        model: object = llama_cpp.llama_model_load_from_file(os.fsencode(path), asked.params)
        if model is None:
            raise ModelLoadError(f"llama.cpp cannot read {path}: {self._log.errors()}")
        return model


def configuration_of(values: Mapping[str, Any]) -> Configuration:
    """Configuration from plain values; settings that do not affect memory have defaults."""
    overrides = tuple(TensorOverride(**each) for each in values["tensor_overrides"])
    own: dict[str, Any] = {
        **values,
        "model_path": Path(values["model_path"]),
        "tensor_split": tuple(values["tensor_split"]),
        "tensor_overrides": overrides,
    }
    usual = Configuration(own["model_path"], own["n_ctx"])
    return replace(usual, **{name: own[name] for name in own if name not in IGNORED})


def limit_memory() -> int:
    """Limit this process to 4 GiB or a quarter of a small machine; return the limit in bytes.

    Mapped files do not count. Core dumps are turned off.
    """
    limit = min(MEMORY_LIMIT_BYTES, psutil.virtual_memory().total // 4)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    return limit


def answer_channel() -> TextIO:
    """The standard output of this process; output of native code is redirected to stderr.

    A failed assertion of ggml prints its stack, possibly through a debugger, which would mix with
    the answers.
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
