from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.model.architecture import Architecture, read_model
from tests.support.gguf_files import header, llama_values, write

LATENT = {
    "llama.attention.key_length": 576,
    "llama.attention.value_length": 512,
    "llama.attention.key_length_mla": 192,
    "llama.attention.value_length_mla": 128,
    "llama.attention.head_count_kv": 1,
    "llama.attention.indexer.key_length": 128,
}


def architecture(tmp_path: Path, name: str, **changes: object) -> Architecture:
    values = {
        key.replace("llama.", f"{name}."): value for key, value in llama_values(**changes).items()
    }
    values["general.architecture"] = name
    return read_model(write(tmp_path / "m.gguf", header(values))).architecture


def indexed(found: Architecture) -> list[int]:
    return [index for index, layer in found.layers.items() if layer.indexer_k_width]


def test_glm_5_2_shares_its_indexers_among_four_layers(tmp_path: Path) -> None:
    blocks = {**LATENT, "llama.block_count": 12}
    assert indexed(architecture(tmp_path, "glm-dsa", **blocks)) == list(range(12))
    long = {**blocks, "llama.context_length": 1_048_576}
    assert indexed(architecture(tmp_path, "glm-dsa", **long)) == [0, 1, 2, 6, 10]
    named = {**long, "llama.attention.indexer.types": [1, 0] * 6}
    assert indexed(architecture(tmp_path, "glm-dsa", **named)) == [0, 2, 4, 6, 8, 10]


def test_minimax_indexes_behind_its_dense_layers_and_keeps_values_too(tmp_path: Path) -> None:
    keys = {
        "llama.block_count": 4,
        "llama.leading_dense_block_count": 1,
        "llama.attention.key_length": 128,
        "llama.attention.value_length": 96,
        "llama.attention.indexer.key_length": 64,
    }
    found = architecture(tmp_path, "minimax-m3", **keys)
    assert indexed(found) == [1, 2, 3]
    assert (found.layers[1].indexer_k_width, found.layers[1].indexer_v_width) == (64, 96)


def test_minimax_without_a_size_of_values_indexes_those_of_its_width(tmp_path: Path) -> None:
    found = architecture(tmp_path, "minimax-m3", **{"llama.attention.indexer.key_length": 64})
    assert found.layers[0].indexer_v_width == 128 // 4


def test_pooled_indexers_keep_key_gate_and_pool(tmp_path: Path) -> None:
    keys = {**LATENT, "llama.attention.indexer.kpool": 16}
    assert architecture(tmp_path, "glm5-next", **keys).layers[0].indexer_k_width == 3 * 128
    assert architecture(tmp_path, "glm5-next", **LATENT).layers[0].indexer_k_width == 128


def test_the_most_experts_of_any_layer_count(tmp_path: Path) -> None:
    keys = {"llama.expert_count": 8, "llama.expert_used_count": [2, 4]}
    assert architecture(tmp_path, "llama", **keys).n_experts_used == 4


def test_too_few_values_for_the_layers_are_damage(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="damaged"):
        architecture(tmp_path, "llama", **{"llama.attention.head_count_kv": [2]})
