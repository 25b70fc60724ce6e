"""A plan against the driver's own figure: free memory of each GPU before and after a real load.

    ../.venv/bin/python gpu_truth.py MODEL [MODEL ...] [--out FILE]

Each model is loaded in seven configurations by kvchat's own engine, which decodes a few tokens, so
that CUDA's workspaces are there. Without a GPU, or with a llama.cpp that has none, it says so and
ends with 2. Run it on an idle machine: what other programs take in between counts.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from common import load

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device, devices, find_gpus, has_gpu_backend
from engine.memory.terms import TermKind
from engine.memory.units import MIB
from engine.model.architecture import Model, read_model

NOTHING = 2
SETTLE_S, STEADY_BYTES = 10.0, 8 * MIB
"""How long a driver may take to give memory back, and what counts as back."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One GPU in one configuration."""

    model: str
    case: str
    gpu: str
    planned_bytes: int
    low_bytes: int
    high_bytes: int
    measured_bytes: int
    """What the driver has less of than before the load."""

    @property
    def is_in_range(self) -> bool:
        """Whether the driver's figure lies in the range that the plan prints."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes

    @property
    def text(self) -> str:
        """One line of the table."""
        off = 100 * (self.planned_bytes / self.measured_bytes - 1) if self.measured_bytes else 0.0
        sizes = (self.planned_bytes, self.low_bytes, self.high_bytes, self.measured_bytes)
        planned, low, high, measured = (round(nbytes / MIB) for nbytes in sizes)
        mark = "in range" if self.is_in_range else "OUT OF RANGE"
        return (
            f"{self.model} | {self.case} | {self.gpu} | planned {planned} ({low} to {high}) MiB | "
            f"driver {measured} MiB | {off:+.1f} % | {mark}"
        )


def cases(path: Path, model: Model) -> Iterator[tuple[str, Configuration]]:
    """The configurations, by what they are about; contexts end where training does."""
    plain = Configuration(path.resolve(), n_ctx=4096, flash_attention="on")
    longest = model.architecture.n_ctx_train
    yield "4k", plain
    yield "32k q8_0", replace(plain, n_ctx=min(32768, longest), type_k="q8_0", type_v="q8_0")
    yield "8k, no flash attention", replace(plain, n_ctx=8192, flash_attention="off")
    yield (
        "16k, micro-batches of 2048",
        replace(plain, n_ctx=min(16384, longest), n_batch=2048, n_ubatch=2048),
    )
    yield (
        "8k, half the layers",
        replace(plain, n_ctx=8192, n_gpu_layers=model.architecture.n_layers // 2),
    )
    yield "8k, cache in main memory", replace(plain, n_ctx=8192, offload_kqv=False)
    yield "8k, no layer", replace(plain, n_ctx=8192, n_gpu_layers=0)


def compared(
    name: str, case: str, planned: Estimate, before: tuple[Device, ...], after: tuple[Device, ...]
) -> list[Compared]:
    """A row for each GPU; the driver's figures are in the order of the plan's devices."""
    free = [was.free_bytes - now.free_bytes for was, now in zip(before, after, strict=True)]
    gpus = [each for each in planned.devices if each.device.kind == "gpu"]
    rows = []
    for each, measured in zip(gpus, free, strict=True):
        terms = each.terms.values()
        low = sum(term.range[0] for term in terms)
        high = sum(term.range[1] for term in terms)
        gpu = each.device.name
        rows.append(Compared(name, case, gpu, each.total_bytes, low, high, measured))
    return rows


def measured(configuration: Configuration) -> tuple[Device, ...]:
    """The GPUs as the driver sees them while the configuration is loaded."""
    fields = {
        name: getattr(configuration, name)
        for name in Configuration.__dataclass_fields__
        if name != "model_path"
    }
    engine = load(configuration.model_path, **fields)
    try:
        return find_gpus()
    finally:
        engine.client.close()


def settled(
    before: tuple[Device, ...],
    gpus: Callable[[], tuple[Device, ...]] = find_gpus,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[Device, ...]:
    """The GPUs once they have back what a load took, or after ten seconds as they are."""
    for _ in range(int(SETTLE_S / 0.25)):
        now = gpus()
        lost = [was.free_bytes - is_.free_bytes for was, is_ in zip(before, now, strict=True)]
        if max(lost, default=0) <= STEADY_BYTES:
            return now
        wait(0.25)
    return gpus()


def rows_of(path: Path) -> Iterator[Compared]:
    """What each configuration of a model takes; those that do not fit are said and left."""
    model, before = read_model(path), find_gpus()
    for case, configuration in cases(path, model):
        before = settled(before)
        try:
            planned = estimate(model, configuration, devices())
        except EngineError as error:
            print(f"{path.name} | {case} | left out: {error}")
            continue
        if not planned.fits():
            print(f"{path.name} | {case} | left out: it does not fit by the plan")
            continue
        yield from compared(path.name, case, planned, before, measured(configuration))


def why_not() -> str:
    """Say why nothing can be measured here; empty where it can."""
    if not find_gpus():
        return "there is no GPU here: nothing was measured"
    if not has_gpu_backend():
        return "the installed llama-cpp-python was built without GPUs: nothing was measured"
    return ""


def main() -> None:
    options = _options()
    reason = why_not()
    if reason:
        print(reason)
        sys.exit(NOTHING)
    rows = []
    for path in options.models:
        for row in rows_of(path):
            print(row.text, flush=True)
            rows.append(row)
    n_right = sum(row.is_in_range for row in rows)
    overhead = TermKind.OVERHEAD.value
    print(f"{n_right} of {len(rows)} in the range that the plan prints, {overhead} included")
    if options.out:
        kept = [{name: getattr(row, name) for name in Compared.__slots__} for row in rows]
        options.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, help="GGUF files that are really loaded")
    parser.add_argument("--out", type=Path, help="rows as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
