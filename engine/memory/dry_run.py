"""llama.cpp's dry run in a process of its own, and estimates corrected by it."""

import json
import selectors
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

from engine.configuration import Configuration
from engine.errors import WorkerError
from engine.memory.estimate import Estimate, cache_shape, estimate, n_outputs
from engine.memory.terms import DeviceEstimate, Source, Target, Term, TermKind
from engine.memory.units import BufferSize
from engine.model.architecture import Model

COMMAND = (sys.executable, "-P", "-m", "engine.backends.llama_cpp.dry_run")
ANSWER_LIMIT_S = 20.0
MAX_TOKENS = 10 << 20  # Llama 4 Scout's context: a million cells take llama.cpp 0.2 s and 48 MB
OWNERS = {"draft": TermKind.DRAFT, "projector": TermKind.PROJECTOR}
KINDS = {
    "model": TermKind.WEIGHTS, "KV": TermKind.KV, "RS": TermKind.STATE,
    "compute": TermKind.COMPUTE, "output": TermKind.COMPUTE,
}  # fmt: skip
ROUNDING_BYTES = 16 * 1024  # the log prints 0.01 MiB, once for each of a few caches
ENDED = "llama.cpp's dry run was stopped"
Request = dict[str, Any]


class DryRun:
    """A process that is started on first use and reused; close it, or use `with`.

    Thread-safe; one measurement at a time.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(
        self, configuration: Configuration, target: Target = "kvchat"
    ) -> tuple[BufferSize, ...]:
        """Measure the cache and graph buffers of a model and its draft.

        Raises:
            WorkerError: llama.cpp refuses the configuration, is not installed, crashed, or was
                silent too long; the message has the reason.
        """
        if configuration.n_ctx > MAX_TOKENS:
            raise WorkerError(
                f"llama.cpp's dry run supports at most {MAX_TOKENS:,} tokens of context, "
                f"not {configuration.n_ctx:,}: lower the context, or plan without the dry "
                "run"
            )
        found = self._buffers(request_of(configuration, target), "target")
        alone = configuration.of_draft(target)
        if alone is None:
            return found
        return found + self._buffers(request_of(alone, target, alone.n_slots), "draft")

    def _buffers(self, request: Request, owner: str) -> tuple[BufferSize, ...]:
        with self._lock:
            answer = self._ask(json.dumps(request))
        if self._is_closed:  # while it was asked
            self.close()
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return tuple(BufferSize(**buffer, owner=owner) for buffer in answer["buffers"])

    def close(self) -> None:
        """End the process, also during a measurement."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()  # a waiting reader then reads the end of its output
        if self._lock.acquire(blocking=False):
            self._end()
            self._lock.release()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, line: str) -> Any:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except OSError:
            raise self._death(process) from None
        with selectors.DefaultSelector() as selector:  # `select` takes no descriptor above 1,023
            selector.register(process.stdout, selectors.EVENT_READ)
            is_ready = bool(selector.select(ANSWER_LIMIT_S))
        if not is_ready:
            self._end()
            raise WorkerError(f"llama.cpp's dry run did not answer within {ANSWER_LIMIT_S:g} s")
        answer = process.stdout.readline()
        if not answer:
            raise self._death(process)
        return json.loads(answer)

    def _start(self) -> "subprocess.Popen[str]":
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=null, text=True
            )
        except OSError as error:
            raise WorkerError(f"llama.cpp's dry run could not be started: {error}") from error
        if self._is_closed:  # meanwhile, by another thread
            self._end()
            raise WorkerError(ENDED)
        return self._process

    def _death(self, process: "subprocess.Popen[str]") -> WorkerError:
        code = process.wait()
        self._end()
        if self._is_closed:
            return WorkerError(ENDED)
        if code < 0:
            return WorkerError(
                f"llama.cpp crashed in its dry run of this configuration (signal {-code}). "
                "Loading the model may crash too, unless the dry run exceeded its memory limit. "
                "Change cache types, slots or flash attention, or plan without the dry run"
            )
        return WorkerError(
            f"llama.cpp's dry run ended with code {code}: llama-cpp-python is missing or "
            "broken; see `kvchat doctor`"
        )


def request_of(configuration: Configuration, target: Target, n_rows: int | None = None) -> Request:
    """The request for a configuration as plain values, without its draft.

    `n_rows` of logits in one batch are by default those of the target. Roll-back rows are requested
    if the model drafts with its MTP head; the head's own context is not.
    """
    is_kvchat = target == "kvchat"
    shape = cache_shape(configuration)
    laid_out = replace(
        configuration,
        n_batch=configuration.n_batch_of_kvchat if is_kvchat else configuration.n_batch,
        n_ubatch=shape.n_ubatch,
        kv_unified=shape.kv_unified,
    )
    return {
        "configuration": json.loads(json.dumps(asdict(laid_out), default=str)),
        "n_rows": n_outputs(configuration, target) if n_rows is None else n_rows,
        "n_rollback": 0 if is_kvchat else configuration.n_mtp_draft,
    }


def with_measured(
    planned: Estimate, buffers: tuple[BufferSize, ...], draft: Model | None = None
) -> Estimate:
    """Replace an estimate's figures by those that llama.cpp reported.

    The estimate must be for the devices that llama.cpp found. A cache is one number, which several
    devices share as in the formula, else like the weights. The draft's weights come from its tensor
    table.
    """
    measured = _measured_devices(planned.devices, buffers, "target")
    alone = planned.configuration.of_draft(planned.target)
    if draft is None or alone is None:
        return replace(planned, devices=measured)
    devices = tuple(each.device for each in planned.devices)
    formula = estimate(draft, alone, devices, target=planned.target).devices
    found = []
    for own, beside in zip(measured, _measured_devices(formula, buffers, "draft"), strict=True):
        nbytes = beside.total_bytes - beside.term(TermKind.OVERHEAD).nbytes
        term = Term(nbytes, Source.MEASURED, "llama.cpp's dry run, and the tensor table")
        added = {TermKind.DRAFT: term} if TermKind.DRAFT in own.terms else {}
        found.append(replace(own, terms={**own.terms, **added}))
    return replace(planned, devices=tuple(found))


def _measured_devices(
    devices: tuple[DeviceEstimate, ...], buffers: Iterable[BufferSize], owner: str
) -> tuple[DeviceEstimate, ...]:
    own = (replace(each, owner="target") for each in buffers if each.owner == owner)
    found = measured_bytes(own, devices)
    for kind in KINDS.values():
        if nbytes := found.pop(("", kind), 0):
            # What the formula does not know of lies with the weights.
            like = kind if any(each.term(kind).nbytes for each in devices) else TermKind.WEIGHTS
            parts = {each.device.name: each.term(like).nbytes for each in devices}
            whole = sum(parts.values())
            found |= {(name, kind): nbytes * part // whole for name, part in parts.items() if part}
    terms = {each.device.name: {**each.terms} for each in devices}
    for (name, kind), nbytes in found.items():
        before = terms.get(name, {}).get(kind)
        is_exact = before is not None and before.source is Source.EXACT
        is_same = before is not None and abs(before.nbytes - nbytes) <= ROUNDING_BYTES
        if name in terms and not (is_exact and is_same):
            terms[name][kind] = Term(nbytes, Source.MEASURED, "llama.cpp's dry run")
    return tuple(replace(each, terms=terms[each.device.name]) for each in devices)


def measured_bytes(
    buffers: Iterable[BufferSize], devices: Sequence[DeviceEstimate]
) -> dict[tuple[str, TermKind], int]:
    """Bytes by device and part of llama.cpp's buffers, as a plan counts them.

    Mapped pages of weights that were copied are left out: the system can reclaim them. A device
    that the plan lacks keeps llama.cpp's name.
    """
    found: dict[tuple[str, TermKind], int] = defaultdict(int)
    mapped = set()
    for buffer in buffers:
        kind = OWNERS.get(buffer.owner) or KINDS.get(buffer.kind)
        if kind is not None:
            name = device_of(buffer, devices) or buffer.device
            found[name, kind] += buffer.nbytes
            if buffer.is_mapped:
                mapped.add((name, kind))
    for device in devices:
        for kind, weights in device.mapped.items():
            if (device.device.name, kind) in mapped:
                found[device.device.name, kind] -= weights.reclaimable
    return dict(found)


def device_of(buffer: BufferSize, devices: Sequence[DeviceEstimate]) -> str | None:
    """The name of a buffer's device.

    A dry run names none for a cache, which is on the only device if there is one. Host buffers,
    also pinned and repacked ones, are on the CPU.
    """
    if not buffer.device:
        kinds = (TermKind.KV, TermKind.STATE)
        holders = [d.device.name for d in devices if any(d.term(kind).nbytes for kind in kinds)]
        return holders[0] if len(holders) == 1 else None
    if buffer.device.startswith(("CPU", "AMX")) or buffer.device.endswith("_Host"):
        return next(d.device.name for d in devices if d.device.kind == "cpu")
    name, _, endpoint = buffer.device.rstrip("]").partition("[")  # a worker's: RPC0[host:50052]
    digits = "".join(character for character in name if character.isdigit())
    own = [d.device for d in devices if d.device.kind == "gpu" and d.device.worker == endpoint]
    gpus = [device.name for device in own]
    return gpus[int(digits or 0)] if int(digits or 0) < len(gpus) else None
