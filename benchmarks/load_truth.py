"""A plan against real loads: the driver's free memory of each GPU, and the engine's process.

    ../.venv/bin/python load_truth.py MODEL [MODEL ...] [--contexts 512 1024 2048] [--out FILE]

With a GPU each model is loaded in seven configurations, and a row has what the driver has less of
than before. Without one each model is loaded at each context, which is then filled: a buffer takes
memory when it is first written to. Counted apart from `/proc/PID/smaps` of the worker: pages of the
model's file, and memory of the process itself (`Anonymous`). What other files map is the code of
Python and of its libraries, shared by all processes: the plan's overhead has it as a constant. Run
it on an idle machine: memory that other programs allocate meanwhile counts.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import psutil
from common import ask, load

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.errors import EngineError
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device, devices, find_gpus, has_gpu_backend, usable_devices
from engine.memory.terms import LIBRARY_BYTES, TermKind
from engine.memory.units import MIB
from engine.model.architecture import Model, read_model
from engine.requests import GenerationRequest, Message

SETTLE_S, STEADY_BYTES = 10.0, 8 * MIB
"""How long a driver may take to give memory back, and what counts as back."""
N_LEFT = 64
"""Tokens of a context that the prompt and its template leave for the reply."""
MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)


@dataclass(frozen=True, slots=True)
class Row:
    """A planned number of bytes and the real one."""

    model: str
    case: str
    what: str
    """The GPU, or the kind of memory of the process."""
    planned: int
    measured: int
    range: tuple[int, int] | None = None
    """Bytes that the plan prints as its range; of GPUs."""

    @property
    def off(self) -> float:
        return self.planned / self.measured - 1 if self.measured else 0.0

    @property
    def is_in_range(self) -> bool:
        return self.range is None or self.range[0] <= self.measured <= self.range[1]

    def __str__(self) -> str:
        spread = (
            f" ({self.range[0] / MIB:,.0f} to {self.range[1] / MIB:,.0f})" if self.range else ""
        )
        mark = "" if self.is_in_range else " | OUT OF RANGE"
        return (
            f"{self.model} | {self.case} | {self.what} | planned {self.planned / MIB:,.1f}{spread} "
            f"| measured {self.measured / MIB:,.1f} MiB | {self.off:+.1%}{mark}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--out", type=Path, help="rows as JSON")
    options = parser.parse_args()
    rows: list[Row] = []
    has_gpu = bool(find_gpus()) and has_gpu_backend()
    print("against the driver" if has_gpu else "no GPU that llama.cpp uses: against the process")
    for path in options.models:
        for row in gpu_rows(path) if has_gpu else process_rows(path, options.contexts):
            print(row, flush=True)
            rows.append(row)
    for what in dict.fromkeys(row.what for row in rows):
        offs = [row.off for row in rows if row.what == what]
        print(f"{what}: median {median(map(abs, offs)):.1%}, worst {max(offs, key=abs):+.1%}")
    if has_gpu:
        print(f"{sum(row.is_in_range for row in rows)} of {len(rows)} in the range that is printed")
    if options.out:
        saved = [asdict(row) for row in rows]
        options.out.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


# --- GPUs ---


def cases(path: Path, model: Model) -> Iterator[tuple[str, Configuration]]:
    """The configurations, by what they are about; contexts end where training does."""
    plain = Configuration(path.resolve(), n_ctx=4096, flash_attention="on")
    longest, half = model.architecture.n_ctx_train, model.architecture.n_layers // 2
    long = replace(plain, n_ctx=min(32768, longest), type_k="q8_0", type_v="q8_0")
    wide = replace(plain, n_ctx=min(16384, longest), n_batch=2048, n_ubatch=2048)
    yield "4k", plain
    yield "32k q8_0", long
    yield "16k, ubatch of 2048", wide
    yield "8k, no flash attention", replace(plain, n_ctx=8192, flash_attention="off")
    yield "8k, half the layers", replace(plain, n_ctx=8192, n_gpu_layers=half)
    yield "8k, cache in RAM", replace(plain, n_ctx=8192, offload_kqv=False)
    yield "8k, no layer", replace(plain, n_ctx=8192, n_gpu_layers=0)


def gpu_rows(path: Path) -> Iterator[Row]:
    """What each configuration takes of each GPU; those that do not fit are left out."""
    model, before = read_model(path), find_gpus()
    for case, configuration in cases(path, model):
        before = settled(before)
        try:
            planned = estimate(model, configuration, devices())
            reason = "" if planned.fits() else "it does not fit by the plan"
        except EngineError as error:
            reason = str(error)
        if reason:
            print(f"{path.name} | {case} | left out: {reason}")
            continue
        yield from compared(path.name, case, planned, lost(before, loaded_gpus(configuration)))


def compared(model: str, case: str, planned: Estimate, taken: list[int]) -> Iterator[Row]:
    """A row for each GPU; the driver's figures are in the order of the plan's devices."""
    gpus = [each for each in planned.devices if each.device.kind == "gpu"]
    for each, measured in zip(gpus, taken, strict=True):
        low, high = (sum(term.range[end] for term in each.terms.values()) for end in (0, 1))
        yield Row(model, case, each.device.name, each.total_bytes, measured, (low, high))


def loaded_gpus(configuration: Configuration) -> tuple[Device, ...]:
    """The GPUs as the driver sees them while the configuration is loaded."""
    names = [name for name in Configuration.__dataclass_fields__ if name != "model_path"]
    fields = {name: getattr(configuration, name) for name in names}
    engine = load(configuration.model_path, **fields)
    try:
        return find_gpus()
    finally:
        engine.client.close()


def lost(before: tuple[Device, ...], now: tuple[Device, ...]) -> list[int]:
    return [was.free_bytes - is_.free_bytes for was, is_ in zip(before, now, strict=True)]


def settled(before: tuple[Device, ...]) -> tuple[Device, ...]:
    """The GPUs once they have back what a load took, or after ten seconds as they are."""
    until = time.monotonic() + SETTLE_S
    while True:
        now = find_gpus()
        if max(lost(before, now), default=0) <= STEADY_BYTES or time.monotonic() > until:
            return now
        time.sleep(0.25)


# --- the engine's process ---


def process_rows(path: Path, contexts: list[int]) -> Iterator[Row]:
    """What a worker holds that has filled its context."""
    for n_ctx in contexts:
        now = Configuration(path.resolve(), n_ctx, speculation=PLAIN)
        [cpu] = estimate(read_model(path), now, usable_devices()).devices
        engine = load(path, n_ctx=n_ctx, speculation=PLAIN)
        prompt = Message("user", "ship " * (n_ctx - N_LEFT))
        ask(engine, GenerationRequest((prompt,), max_tokens=8))
        found = held(path)
        engine.client.close()
        in_place = cpu.mapped_bytes - cpu.reclaimable_bytes
        own = cpu.total_bytes - in_place - LIBRARY_BYTES
        overhead = cpu.term(TermKind.OVERHEAD).nbytes
        case = f"{n_ctx:,}, overhead {overhead / MIB:.1f}, libraries {LIBRARY_BYTES / MIB:.1f}"
        both = found["model"] + found["own"]
        yield Row(path.stem, case, "mapped", cpu.mapped_bytes, found["model"])
        yield Row(path.stem, case, "own", own, found["own"])
        yield Row(path.stem, case, "both", cpu.mapped_bytes + own, both)
        yield Row(path.stem, case, "libraries", LIBRARY_BYTES, found["libraries"])


def held(model: Path) -> Counter[str]:
    """Resident bytes of this process's children, by what they are pages of."""
    found: Counter[str] = Counter()
    for child in psutil.Process().children(recursive=True):
        kind = ""
        for text in Path(f"/proc/{child.pid}/smaps").read_text("utf-8", "replace").splitlines():
            if MAPPING.match(text):
                kind = "model" if str(model.resolve()) in text else "libraries"
            elif text.startswith(("Rss:", "Anonymous:")):
                name, number = text.split()[:2]
                nbytes = int(number) * 1024
                found["own" if name == "Anonymous:" else kind] += nbytes
                found[kind] -= nbytes if name == "Anonymous:" else 0
    return found


if __name__ == "__main__":
    main()
