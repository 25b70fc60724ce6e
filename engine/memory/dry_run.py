"""Asks llama.cpp's dry run, and puts its numbers in the place of formulas."""

import json
import select
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from engine.configuration import Configuration
from engine.errors import WorkerError
from engine.memory.estimate import (
    DeviceEstimate,
    Estimate,
    Source,
    Target,
    Term,
    TermKind,
    cache_shape,
    n_outputs,
)

COMMAND = (sys.executable, "-P", "-m", "engine.backends.llama_cpp_dry_run")
ANSWER_LIMIT_S = 20.0
KINDS = {
    "KV": TermKind.KV,
    "RS": TermKind.STATE,
    "compute": TermKind.COMPUTE,
    "output": TermKind.COMPUTE,
}


@dataclass(frozen=True, slots=True)
class MeasuredBuffer:
    """One buffer that llama.cpp would allocate."""

    device: str
    kind: str
    nbytes: int


class DryRun:
    """A small process that is started at the first question and reused; close it, or use `with`.

    One question at a time; from any thread.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
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
        """Give what llama.cpp would allocate for cache and graph of the target model.

        Raises:
            WorkerError: llama.cpp refuses the configuration, is not installed, crashed, or was
                silent too long; the message says which.
        """
        with self._lock:
            answer = self._ask(json.dumps(request_of(configuration, target)))
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        buffers = answer["buffers"]
        assert isinstance(buffers, list)
        return tuple(MeasuredBuffer(**buffer) for buffer in buffers)

    def close(self) -> None:
        """End the process."""
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
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_LIMIT_S)
        if not ready:
            self.close()
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
        return self._process

    def _died(self, process: "subprocess.Popen[str]") -> dict[str, object]:
        code = process.wait()
        self.close()
        raise WorkerError(
            f"llama.cpp's dry run ended with code {code}: llama-cpp-python is missing or broken, "
            "see `kvchat doctor`"
        )


def with_measured(estimate: Estimate, buffers: tuple[MeasuredBuffer, ...]) -> Estimate:
    """Put measured numbers in the place of formulas.

    Only where the estimate is for this machine's own devices and has no draft model: llama.cpp
    measures the devices that it finds, one model at a time. Otherwise the estimate stays.
    """
    if estimate.configuration.draft is not None:
        return estimate
    found: dict[tuple[str, TermKind], int] = defaultdict(int)
    for buffer in buffers:
        device = _device_of(buffer, estimate.devices)
        if buffer.kind in KINDS and device is not None:
            found[device, KINDS[buffer.kind]] += buffer.nbytes
    return replace(estimate, devices=tuple(_measured_device(d, found) for d in estimate.devices))


def _measured_device(
    device: DeviceEstimate, found: Mapping[tuple[str, TermKind], int]
) -> DeviceEstimate:
    terms = dict(device.terms)
    for kind in (TermKind.KV, TermKind.STATE, TermKind.COMPUTE):
        nbytes = found.get((device.device.name, kind))
        if nbytes is not None:
            terms[kind] = _measured_term(terms.get(kind), nbytes)
    return replace(device, terms=terms)


def _measured_term(before: Term | None, nbytes: int) -> Term:
    """Keep an exact number that the rounded measurement confirms."""
    rounding = 16 * 1024
    if before and before.source is Source.EXACT and abs(before.nbytes - nbytes) <= rounding:
        return before
    return Term(nbytes, Source.MEASURED, "llama.cpp's dry run")


def _device_of(buffer: MeasuredBuffer, devices: tuple[DeviceEstimate, ...]) -> str | None:
    """Give the device of a buffer; a cache, told without one, is placed where only one has any."""
    if buffer.kind == "KV":
        holders = [d.device.name for d in devices if d.term(TermKind.KV).nbytes]
        return holders[0] if len(holders) == 1 else None
    if buffer.device.startswith("CPU") or buffer.device.endswith("_Host"):
        return next(d.device.name for d in devices if d.device.kind == "cpu")
    digits = "".join(character for character in buffer.device if character.isdigit())
    gpus = [d.device.name for d in devices if d.device.kind == "gpu"]
    return gpus[int(digits)] if digits and int(digits) < len(gpus) else None


def request_of(configuration: Configuration, target: Target) -> dict[str, str | int | bool]:
    """Give what the process is asked: plain values, named as llama.cpp names its parameters."""
    shape = cache_shape(configuration, target)
    return {
        "model_path": str(configuration.model_path),
        "n_ctx": configuration.n_ctx,
        "n_batch": shape.n_ubatch if target == "kvchat" else configuration.n_batch,
        "n_ubatch": shape.n_ubatch,
        "n_seq_max": shape.n_slots,
        "n_outputs_max": n_outputs(configuration, target),
        "type_k": configuration.type_k,
        "type_v": configuration.type_v,
        "flash_attention": configuration.flash_attention,
        "kv_unified": shape.kv_unified,
        "swa_full": configuration.swa_full,
        "offload_kqv": configuration.offload_kqv,
        "n_gpu_layers": configuration.n_gpu_layers,
    }
