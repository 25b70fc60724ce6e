"""Types of quantised tensors, beside files that llama.cpp quantised."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.model.quantization import Mix, kept_type, tensor_types

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


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (256,)),
        ("blk.0.ffn_gate_inp.weight", (256, 8)),
        ("blk.0.ssm_a", (1, 8)),
        ("blk.0.channel_mix_lerp_k.weight", (256, 1, 1)),
    ],
)
def test_norms_routers_and_vectors_keep_32_bits(name: str, shape: tuple[int, ...]) -> None:
    assert kept_type("Q4_K_M", "llama", name, shape) == "f32"


def test_matrices_are_quantised() -> None:
    assert kept_type("Q4_K_M", "llama", "blk.0.attn_q.weight", (256, 8)) is None


def test_small_matrices_keep_the_16_bits_of_the_conversion() -> None:
    name = "blk.0.time_mix_a1.weight"
    assert kept_type("Q4_K_M", "rwkv7", name, (256, 64)) == "f16"
    assert kept_type("BF16", "rwkv7", name, (256, 64)) == "bf16"


def test_what_one_architecture_keeps_is_quantised_in_the_others() -> None:
    name = "blk.0.attn_k_b.weight"
    assert kept_type("Q4_K_M", "glm5-next", name, (256, 64, 8)) == "f16"
    assert kept_type("Q4_K_M", "deepseek2", name, (256, 64, 8)) is None
