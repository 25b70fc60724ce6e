"""Asks llama.cpp's dry run, and puts its numbers in the place of formulas."""

import json
import selectors
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from engine.configuration import Configuration
from engine.errors import WorkerError
from engine.memory.estimate import cache_shape, n_outputs
from engine.memory.terms import Target

COMMAND = (sys.executable, "-P", "-m", "engine.backends.llama_cpp_dry_run")
ANSWER_LIMIT_S = 20.0

Values = dict[str, str | int | bool | list[float] | list[list[str]]]
Request = dict[str, Values]


@dataclass(frozen=True, slots=True)
class MeasuredBuffer:
    """One buffer that llama.cpp would allocate."""

    device: str
    """As llama.cpp names it: `CPU`, `CUDA0`, `CUDA_Host`; empty for a cache of unknown place."""
    kind: str
    """`model`, `KV`, `RS`, `compute` or `output`."""
    nbytes: int
    owner: str = "target"
    """`target` or `draft`."""


class DryRun:
    """A small process that is started at the first question and reused; close it, or use `with`.

    One question at a time; from any thread.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def measure(
        self, configuration: Configuration, target: Target = "kvchat"
    ) -> tuple[MeasuredBuffer, ...]:
        """Give what llama.cpp would allocate for cache and graph of the model and of its draft.

        Raises:
            WorkerError: llama.cpp refuses the configuration, is not installed, crashed, or was
                silent too long; the message says which.
        """
        found = self._buffers(request_of(configuration, target), "target")
        alone = draft_alone(configuration, target)
        if alone is None:
            return found
        return found + self._buffers(request_of(alone, target, alone.n_slots), "draft")

    def _buffers(self, request: Request, owner: str) -> tuple[MeasuredBuffer, ...]:
        with self._lock:
            answer = self._ask(json.dumps(request))
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        buffers = answer["buffers"]
        assert isinstance(buffers, list)
        return tuple(MeasuredBuffer(**buffer, owner=owner) for buffer in buffers)

    def close(self) -> None:
        """End the process for good, that of a question under way too."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, line: str) -> dict[str, object]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except OSError:
            return self._died(process)
        with selectors.DefaultSelector() as selector:  # `select` takes no descriptor above 1,023
            selector.register(process.stdout, selectors.EVENT_READ)
            is_ready = bool(selector.select(ANSWER_LIMIT_S))
        if not is_ready:
            self._end()
            raise WorkerError(f"llama.cpp's dry run gave no answer within {ANSWER_LIMIT_S:g} s")
        answer = process.stdout.readline()
        return json.loads(answer) if answer else self._died(process)

    def _start(self) -> "subprocess.Popen[str]":
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            raise WorkerError(f"llama.cpp's dry run could not be started: {error}") from error
        if self._is_closed:  # meanwhile, by another thread
            self._end()
            raise WorkerError("llama.cpp's dry run was ended")
        return self._process

    def _died(self, process: "subprocess.Popen[str]") -> dict[str, object]:
        code = process.wait()
        self._end()
        if code < 0:
            raise WorkerError(
                f"llama.cpp stopped on this configuration in its dry run (signal {-code}): it may "
                "stop when loading too, or need more memory than a dry run may use; change cache "
                "types, slots or flash attention, or trust the formula"
            )
        raise WorkerError(
            f"llama.cpp's dry run ended with code {code}: llama-cpp-python is missing or broken, "
            "see `kvchat doctor`"
        )


def draft_alone(configuration: Configuration, target: Target) -> Configuration | None:
    """Give the draft model's own configuration, or None where none is asked for.

    llama-server opens the draft with the context and the slots of the target.
    """
    draft = configuration.draft
    if draft is None:
        return None
    return replace(
        configuration,
        model_path=draft.model_path,
        n_ctx=draft.n_ctx if target == "kvchat" else configuration.n_ctx,
        n_slots=1 if target == "kvchat" else configuration.n_slots,
        n_gpu_layers=draft.n_gpu_layers,
        type_k=draft.type_k,
        type_v=draft.type_v,
        n_cpu_moe=0,
        tensor_overrides=(),
        lora_paths=(),
        mmproj_path=None,
        draft=None,
        n_mtp_draft=0,
    )


def request_of(configuration: Configuration, target: Target, n_rows: int | None = None) -> Request:
    """Give what the process is asked: plain values, named as llama.cpp names its parameters.

    Rows that take drafted tokens back are asked for wherever the model drafts with its own head:
    llama.cpp makes none for architectures without them. The head's own context is not asked for.

    Args:
        configuration: What is planned; its draft is not asked for.
        target: The program, which sets slots, batch and rows.
        n_rows: Rows of logits in one batch; None is what the target reserves.
    """
    shape = cache_shape(configuration)
    model: Values = {
        "model_path": str(configuration.model_path),
        "n_gpu_layers": configuration.n_gpu_layers,
        "split_mode": configuration.split_mode,
        "main_gpu": configuration.main_gpu,
        "tensor_split": list(configuration.tensor_split),
        "n_cpu_moe": configuration.n_cpu_moe,
        "overrides": [[rule.pattern, rule.device] for rule in configuration.tensor_overrides],
    }
    context: Values = {
        "n_ctx": configuration.n_ctx,
        "n_batch": shape.n_ubatch if target == "kvchat" else configuration.n_batch,
        "n_ubatch": shape.n_ubatch,
        "n_seq_max": shape.n_slots,
        "n_outputs_max": n_outputs(configuration, target) if n_rows is None else n_rows,
        "n_rs_seq": 0 if target == "kvchat" else configuration.n_mtp_draft,
        "type_k": configuration.type_k,
        "type_v": configuration.type_v,
        "flash_attention": configuration.flash_attention,
        "kv_unified": shape.kv_unified,
        "swa_full": configuration.swa_full,
        "offload_kqv": configuration.offload_kqv,
    }
    return {"model": model, "context": context}
