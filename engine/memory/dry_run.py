"""Asks llama.cpp for its dry run, and puts its numbers in the place of formulas."""

import json
import selectors
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

from engine.configuration import Configuration
from engine.errors import WorkerError
from engine.memory.estimate import Estimate, cache_shape, estimate, n_outputs
from engine.memory.terms import DeviceEstimate, Source, Target, Term, TermKind
from engine.memory.units import BufferSize
from engine.model.architecture import Model

COMMAND = (sys.executable, "-P", "-m", "engine.backends.llama_cpp.dry_run")
ANSWER_LIMIT_S = 20.0
MAX_TOKENS = 10 << 20
"""The longest context that a model was trained on (Llama 4 Scout): llama.cpp keeps 48 bytes of
notes of each cell, which take it 0.2 s and 48 MB for a million."""
OWNERS = {"draft": TermKind.DRAFT, "projector": TermKind.PROJECTOR}
KINDS = {
    "model": TermKind.WEIGHTS,
    "KV": TermKind.KV,
    "RS": TermKind.STATE,
    "compute": TermKind.COMPUTE,
    "output": TermKind.COMPUTE,
}
ROUNDING_BYTES = 16 * 1024
"""The log prints 0.01 MiB, once for each of a few caches."""
ENDED = "llama.cpp's dry run was stopped"
Request = dict[str, Any]
Found = Mapping[tuple[str, TermKind], int]


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
    ) -> tuple[BufferSize, ...]:
        """What llama.cpp would allocate for cache and graph of the model and of its draft.

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
        buffers = answer["buffers"]
        assert isinstance(buffers, list)
        return tuple(BufferSize(**buffer, owner=owner) for buffer in buffers)

    def close(self) -> None:
        """End the process for good, that of a question under way too."""
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
            raise WorkerError(f"llama.cpp's dry run did not answer within {ANSWER_LIMIT_S:g} s")
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
            raise WorkerError(ENDED)
        return self._process

    def _died(self, process: "subprocess.Popen[str]") -> dict[str, object]:
        code = process.wait()
        self._end()
        if self._is_closed:
            raise WorkerError(ENDED)
        if code < 0:
            raise WorkerError(
                f"llama.cpp crashed in its dry run of this configuration (signal {-code}). "
                "Loading the model may crash too, unless the dry run exceeded its memory limit. "
                "Change cache types, slots or flash attention, or plan without the dry run"
            )
        raise WorkerError(
            f"llama.cpp's dry run ended with code {code}: llama-cpp-python is missing or "
            "broken; see `kvchat doctor`"
        )


def request_of(configuration: Configuration, target: Target, n_rows: int | None = None) -> Request:
    """What the process is asked, in plain values.

    Rows that take drafted tokens back are asked for wherever the model drafts with its own head:
    llama.cpp makes none for architectures without them. The head's own context is not asked for.

    Args:
        configuration: What is planned; its draft is not asked for.
        target: The program, which sets slots, batch and rows.
        n_rows: Rows of logits in one batch; None is what the target reserves.
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
    """An estimate by llama.cpp's figures; the formulas stay where it has none.

    Only for an estimate of the devices that llama.cpp found. A cache comes as one number: where
    several devices hold it, they share it as in the formula, or else as they share the weights.

    Args:
        planned: The estimate by formulas.
        buffers: Of the target and, where there is one, of the draft.
        draft: The draft model of the configuration, for its weights.
    """
    measured = [b for b in buffers if b.owner == "target"]
    own = _measured_devices(planned.devices, measured)
    alone = planned.configuration.of_draft(planned.target)
    if draft is None or alone is None:
        return replace(planned, devices=own)
    devices = tuple(device.device for device in planned.devices)
    formula = estimate(draft, alone, devices, target=planned.target)
    beside = _measured_devices(formula.devices, [b for b in buffers if b.owner == "draft"])
    return replace(planned, devices=tuple(map(_with_draft, own, beside)))


def measured_bytes(
    buffers: Iterable[BufferSize], devices: Sequence[DeviceEstimate]
) -> dict[tuple[str, TermKind], int]:
    """What buffers hold of each device and part, counted as a plan counts it.

    Mapped pages whose weights lie elsewhere too are left out, as they are in the plan's weights:
    the system may take them back. A device that the plan has not keeps llama.cpp's name.
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
    """The name of the device that a buffer lies on.

    A dry run names none for a cache: it lies where only one device has any. Everything of the
    host, pinned and repacked buffers too, lies on the CPU.
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


def _with_draft(device: DeviceEstimate, draft: DeviceEstimate) -> DeviceEstimate:
    if TermKind.DRAFT not in device.terms:
        return device
    nbytes = draft.total_bytes - draft.term(TermKind.OVERHEAD).nbytes
    term = Term(nbytes, Source.MEASURED, "llama.cpp's dry run, and the tensor table")
    return replace(device, terms={**device.terms, TermKind.DRAFT: term})


def _measured_devices(
    devices: tuple[DeviceEstimate, ...], buffers: list[BufferSize]
) -> tuple[DeviceEstimate, ...]:
    found: dict[tuple[str, TermKind], int] = defaultdict(int)
    shared: dict[TermKind, int] = defaultdict(int)
    for buffer in buffers:
        kind = KINDS.get(buffer.kind)
        device = device_of(buffer, devices)
        if kind is not None and device is not None:
            found[device, kind] += buffer.nbytes
        elif kind is not None and not buffer.device:
            shared[kind] += buffer.nbytes
    for kind, nbytes in shared.items():
        planned = {device.device.name: device.term(kind).nbytes for device in devices}
        if not any(planned.values()):  # the formula knows of none: it lies with the weights
            planned = {
                device.device.name: device.term(TermKind.WEIGHTS).nbytes for device in devices
            }
        whole = sum(planned.values())
        found |= {(name, kind): nbytes * part // whole for name, part in planned.items() if part}
    return tuple(_measured_device(device, found) for device in devices)


def _measured_device(device: DeviceEstimate, found: Found) -> DeviceEstimate:
    terms = dict(device.terms)
    for kind in dict.fromkeys(KINDS.values()):
        nbytes = found.get((device.device.name, kind))
        if nbytes is not None:
            terms[kind] = _measured_term(terms.get(kind), nbytes)
    return replace(device, terms=terms)


def _measured_term(before: Term | None, nbytes: int) -> Term:
    """Keep an exact number that the rounded measurement confirms."""
    if (
        before is not None
        and before.source is Source.EXACT
        and abs(before.nbytes - nbytes) <= ROUNDING_BYTES
    ):
        return before
    return Term(nbytes, Source.MEASURED, "llama.cpp's dry run")
