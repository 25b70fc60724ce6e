"""Tensors that no quantisation touches."""

import pytest

from engine.model.quant_kept import kept_type


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
