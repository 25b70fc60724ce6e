"""How long a full search takes: the largest models of the catalogue, every goal, three budgets.

    python benchmarks/search.py [--runs 3] [MODEL ...]

The 60-layer mixture of experts that the promise of 300 ms is about is made from a header of the
shape of Qwen 3, whatever the catalogue holds.
"""

import argparse
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.memory import weights
from engine.memory.estimate import DoesNotFitError
from engine.memory.hardware import Device
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.model.catalog import find_entry
from engine.planning.goals import Goal, Offload, SearchLimits
from engine.planning.search import search
from tests.engine.planning.shapes import moe_model

BUDGETS = ((12,), (24,), (24, 24))
RAM = Device("CPU", "cpu", 128 * GIB, 120 * GIB)
USUAL = ("llama-3.1-8b", "qwen3-32b", "qwen3-235b-a22b")
SIXTY = {"n_layers": 60, "d_hidden": 4096, "d_expert": 1536, "n_ctx_train": 262144}


def timed(model: Model, devices: tuple[Device, ...], goal: Goal, offload: Offload) -> float | None:
    """The milliseconds of a first search, nothing being known of the model's weights."""
    weights.weights_of.cache_clear()
    start = time.perf_counter()
    try:
        search(
            model, devices, goal, target="llama-server", margin_bytes=512 * MIB,
            limits=SearchLimits(offload=offload),
        )  # fmt: skip
    except DoesNotFitError:
        return None
    return 1000 * (time.perf_counter() - start)


def measure(name: str, model: Model, runs: int) -> None:
    times = []
    for sizes, goal, offload in product(BUDGETS, Goal, (Offload.PARTIAL, Offload.ANY)):
        gpus = tuple(Device(f"GPU {i}", "gpu", n * GIB, n * GIB) for i, n in enumerate(sizes))
        rounds = [timed(model, (*gpus, RAM), goal, offload) for _ in range(runs)]
        found = [value for value in rounds if value is not None]
        if found:
            times.append((min(found), f"{'+'.join(map(str, sizes))} GiB, {goal}, {offload}"))
    worst, where = max(times)
    middle = statistics.median(value for value, _ in times)
    figures = f"median {middle:5.0f} ms  worst {worst:5.0f} ms ({where})"
    print(f"{name:24} {len(times):3} searches  {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=USUAL)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        measure("60 layers of experts", moe_model(Path(folder), **SIXTY), asked.runs)
    for name in asked.models:
        measure(name, find_entry(name).model("Q4_K_M"), asked.runs)


if __name__ == "__main__":
    main()
