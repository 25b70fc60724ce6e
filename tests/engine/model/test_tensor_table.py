"""Widths and reads of a tensor table."""

from pathlib import Path

import pytest

from engine.model.catalog import find_entry
from engine.model.ggml_types import GGML_TYPES
from engine.model.gguf import read_gguf
from engine.model.gguf_header import TensorInfo
from engine.model.tensor_table import TokenReads, Widths, token_reads, widths_of


def table(**matrices: tuple[int, ...]) -> Widths:
    tensors = (
        TensorInfo(f"blk.0.{name}.weight", shape, GGML_TYPES[0], 0, 0)
        for name, shape in matrices.items()
    )
    return widths_of(tuple(tensors))


def test_a_gate_or_a_doubled_projection_makes_a_gated_block() -> None:
    plain = table(ffn_up=(64, 256), ffn_down=(256, 64), ffn_norm=(64,))
    assert (plain.feed_forward, plain.is_gated) == (256, False)
    assert table(ffn_up=(64, 256), ffn_gate=(64, 256), ffn_down=(256, 64)).is_gated
    assert table(ffn_up=(64, 512), ffn_down=(256, 64)).is_gated


def test_queries_keys_and_values_are_found_apart_fused_and_latent() -> None:
    apart = table(attn_q=(64, 96), attn_k=(64, 32), attn_v=(64, 16))
    assert (apart.query, apart.key_value) == (96, 48)
    assert table(attn_qkv=(64, 144)).query == 144
    latent = table(attn_q_b=(32, 384), attn_kv_a_mqa=(64, 40), attn_kv_b=(32, 512))
    assert (latent.query, latent.key_value) == (384, 512)


def test_experts_and_recurrent_blocks_are_measured_by_their_projections() -> None:
    experts = table(ffn_gate_inp=(64, 8), ffn_down_exps=(48, 64, 8), ffn_gate_exps=(64, 48, 8))
    assert (experts.expert, experts.is_expert_gated) == (48, True)
    assert table(ssm_in=(64, 256), ssm_conv1d=(4, 128)).state_input == 256
    delta = table(attn_qkv=(64, 300), attn_gate=(64, 100), ssm_conv1d=(4, 300))
    assert delta.gated_delta_net == 300


def test_layers_may_differ_and_the_widest_counts() -> None:
    tensors = [
        TensorInfo(f"blk.{i}.ffn_down.weight", (width, 64), GGML_TYPES[0], 0, 0)
        for i, width in enumerate((128, 512, 256))
    ]
    assert widths_of(tuple(tensors)).feed_forward == 512


def test_a_model_with_tied_embeddings_reads_all_of_its_tensors(starter_path: Path) -> None:
    file = read_gguf(starter_path)
    reads = token_reads(file)
    assert "output.weight" not in {tensor.name for tensor in file.tensors}
    assert reads.nbytes() == sum(tensor.nbytes for tensor in file.tensors)
    assert reads.nbytes(8) == reads.nbytes()


def test_embeddings_beside_an_output_layer_are_read_a_row_at_a_time() -> None:
    file = find_entry("llama-3.1-8b").header("Q4_K_M")
    sizes = {tensor.name: tensor.nbytes for tensor in file.tensors}
    assert token_reads(file).nbytes() == sum(sizes.values()) - sizes["token_embd.weight"]


def test_a_token_reads_its_own_experts_and_a_batch_more_of_them() -> None:
    reads = token_reads(find_entry("qwen3-30b-a3b").header("Q4_K_M"))
    assert reads.expert_share == pytest.approx(8 / 128)
    assert reads.nbytes(1) == reads.dense_bytes + round(reads.expert_bytes / 16)
    assert reads.nbytes(1) < reads.nbytes(2) < 2 * reads.nbytes(1)
    assert reads.nbytes(2000) == reads.dense_bytes + reads.expert_bytes


def test_rows_that_use_every_expert_read_them_once() -> None:
    assert TokenReads(10, 90, 1.0).nbytes(1) == TokenReads(10, 90, 1.0).nbytes(9) == 100
