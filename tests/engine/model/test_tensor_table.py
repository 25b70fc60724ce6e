"""The bytes of weights that a step reads."""

from pathlib import Path

import pytest

from engine.model.catalog import find_entry
from engine.model.gguf import read_gguf
from engine.model.tensor_table import token_reads


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
