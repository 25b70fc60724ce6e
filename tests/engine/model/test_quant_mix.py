"""Tensor types of quantisations: llama.cpp's own choice, and the shapes that force another."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.model.quant_mix import Mix, tensor_types

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
DENSE = Mix("Q4_K_M", "llama", 32, 0, 4, is_70b=False, has_mxfp4_experts=False)


def test_llama_cpp_would_choose_the_same_type_for_every_tensor() -> None:
    names = ("mixtral-8x7b", "falcon-7b", "jais-13b")
    command = (sys.executable, "quantization.py", *names)
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "51 of 51 agree" in done.stdout


@pytest.mark.parametrize(("row", "kind"), [(4096, "q4_K"), (4544, "q5_0"), (13653, "f16")])
def test_rows_that_no_block_divides_fall_back_to_a_type_that_fits(row: int, kind: str) -> None:
    types = tensor_types(DENSE, [("output.weight", (256, 8)), ("blk.0.attn_q.weight", (row, 8))])
    assert types[1].name == kind
