"""Every benchmark still opens: its imports are there."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.slow
def test_every_benchmark_can_be_imported() -> None:
    names = [path.stem for path in BENCHMARKS.glob("*.py")]
    assert len(names) > 10
    code = f"import importlib, sys; sys.path[:0] = {[str(BENCHMARKS), str(BENCHMARKS.parent)]}\n"
    code += f"for name in {names}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
