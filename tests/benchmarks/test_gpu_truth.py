"""The measurement on a real GPU, as far as it can be tried without one."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gpu_truth
import pytest

from engine.configuration import Configuration
from engine.memory.estimate import estimate
from engine.memory.hardware import Device, find_gpus
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model
from engine.model.catalog import find_entry

GPUS = tuple(Device(f"GPU {i}", "gpu", 24 * GIB, 20 * GIB) for i in range(2))
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
BENCHMARKS = Path(gpu_truth.__file__).parent


def test_a_plan_is_held_against_what_each_gpu_has_less() -> None:
    model = find_entry("llama-3.1-8b").model()
    planned = estimate(model, Configuration(model.file.path, 4096), (*GPUS, CPU))
    taken = [planned.devices[0].total_bytes + 5 * MIB, 20 * GIB]
    after = tuple(
        replace(gpu, free_bytes=gpu.free_bytes - n) for gpu, n in zip(GPUS, taken, strict=True)
    )
    first, second = gpu_truth.compared("m.gguf", "4k", planned, GPUS, after)
    assert (first.measured_bytes, second.measured_bytes) == tuple(taken)
    assert first.is_in_range
    assert not second.is_in_range
    assert "OUT OF RANGE" in second.text


def test_a_driver_is_given_time_to_take_memory_back() -> None:
    busy = tuple(replace(gpu, free_bytes=GIB) for gpu in GPUS)
    seen, waited = iter([busy, busy, GPUS]), list[float]()
    assert gpu_truth.settled(GPUS, lambda: next(seen), waited.append) == GPUS
    assert len(waited) == 2
    assert gpu_truth.settled(GPUS, lambda: busy, waited.append) == busy, "then it goes on"


@pytest.mark.model
def test_six_configurations_and_more_are_loaded_one_after_the_other(starter_path: Path) -> None:
    found = list(gpu_truth.cases(starter_path, read_model(starter_path)))
    assert len(dict(found)) >= 6
    assert gpu_truth.measured(replace(found[0][1], n_ctx=256)) == find_gpus()


def test_it_says_that_there_is_no_gpu() -> None:
    if find_gpus():
        pytest.skip("there is one")
    done = subprocess.run(
        (sys.executable, "gpu_truth.py", "m.gguf"),
        cwd=BENCHMARKS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "there is no GPU here: nothing was measured\n")
