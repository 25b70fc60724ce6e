"""Types of quantised tensors, beside files that llama.cpp quantised."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.model.quantization import quantized_type

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_weights_are_as_large_as_llama_cpp_would_make_them() -> None:
    names = ("mixtral-8x7b", "qwen3-30b-a3b", "phi-2")
    command = (sys.executable, "quantization.py", *names)
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "51 of 51 within 3 %" in done.stdout


@pytest.mark.parametrize(("row", "kind"), [(4096, "q4_K"), (4544, "q5_0"), (13653, "f16")])
def test_rows_that_no_block_divides_fall_back_to_a_type_that_fits(row: int, kind: str) -> None:
    name = "blk.0.attn_q.weight"
    assert quantized_type("Q4_K_M", name, row, n_layers=32, is_tied=False).name == kind
