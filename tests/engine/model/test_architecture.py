import os
from dataclasses import fields
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.memory.kv_cache import CacheShape, layer_kv_bytes
from engine.model.architecture import Architecture, read_model
from engine.model.gguf import MOST_HEADERS
from engine.model.layers import StateRow
from tests.support.gguf_files import header, llama_values, write


def architecture(tmp_path: Path, name: str = "llama", **changes: object) -> Architecture:
    values = {
        key.replace("llama.", f"{name}."): value for key, value in llama_values(**changes).items()
    }
    values["general.architecture"] = name
    return read_model(write(tmp_path / "m.gguf", header(values))).architecture


def test_head_sizes_come_from_the_embedding_unless_they_are_named(tmp_path: Path) -> None:
    layer = architecture(tmp_path).layers[0]
    assert (layer.k_head_dim, layer.v_head_dim, layer.k_width) == (32, 32, 64)
    named = {"llama.attention.key_length": 24, "llama.attention.value_length": 8}
    layer = architecture(tmp_path, **named).layers[0]
    assert (layer.k_width, layer.v_width) == (48, 16)


def test_heads_may_differ_by_layer_and_none_means_no_cache(tmp_path: Path) -> None:
    found = architecture(tmp_path, **{"llama.attention.head_count_kv": [0, 4]})
    assert [layer.n_kv_heads for layer in found.layers.values()] == [0, 4]
    assert found.v_width_max == 4 * 32
    shape = CacheShape(256, 256, "f16", "f16")
    assert layer_kv_bytes(found, shape) == {0: 0, 1: 2 * 2 * 256 * 128}


def test_transposed_values_have_the_widest_row_even_in_layers_without_heads(
    tmp_path: Path,
) -> None:
    found = architecture(tmp_path, **{"llama.attention.head_count_kv": [0, 4]})
    shape = CacheShape(256, 256, "f16", "f16", flash_attention=False)
    assert layer_kv_bytes(found, shape) == {0: 2 * 256 * 128, 1: 2 * 2 * 256 * 128}


def test_without_kv_heads_every_head_has_its_own(tmp_path: Path) -> None:
    values = llama_values()
    del values["llama.attention.head_count_kv"]
    found = read_model(write(tmp_path / "m.gguf", header(values))).architecture
    assert found.layers[0].n_kv_heads == 4


def test_a_window_key_that_llama_cpp_does_not_read_is_not_read(tmp_path: Path) -> None:
    found = architecture(tmp_path, **{"llama.attention.sliding_window": 128})
    assert found.layers[0].window is None
    assert found.doubts == ()


def test_gemma_slides_in_five_of_six_layers(tmp_path: Path) -> None:
    window = {"llama.attention.sliding_window": 512, "llama.block_count": 12}
    found = architecture(tmp_path, "gemma3", **window)
    assert [i for i, layer in found.layers.items() if layer.window is None] == [5, 11]


def test_a_pattern_in_the_file_wins_over_the_default(tmp_path: Path) -> None:
    changes = {
        "llama.attention.sliding_window": 512,
        "llama.attention.sliding_window_pattern": [True, False],
    }
    found = architecture(tmp_path, "gemma3", **changes)
    assert [layer.window for layer in found.layers.values()] == [512, None]


def test_a_dense_first_period_starts_with_a_dense_layer(tmp_path: Path) -> None:
    changes = {"llama.attention.sliding_window": 64, "llama.block_count": 5}
    found = architecture(tmp_path, "smallthinker", **changes)
    assert [layer.window is None for layer in found.layers.values()] == [
        True, False, False, False, True,
    ]  # fmt: skip


def test_layers_of_the_next_token_head_have_no_part_in_the_cache(tmp_path: Path) -> None:
    found = architecture(tmp_path, **{"llama.nextn_predict_layers": 1})
    assert found.n_layers == 1


def test_shared_layers_own_no_cache(tmp_path: Path) -> None:
    found = architecture(tmp_path, "gemma4", **{"llama.attention.shared_kv_layers": 1})
    assert set(found.layers) == {0}


def test_an_unknown_architecture_is_marked(tmp_path: Path) -> None:
    assert "no rule" in architecture(tmp_path, "shinynew").doubts[0]


def test_a_header_that_lacks_a_needed_key_is_refused_by_name(tmp_path: Path) -> None:
    values = llama_values()
    del values["llama.block_count"]
    with pytest.raises(ModelFileError, match=r"llama\.block_count"):
        read_model(write(tmp_path / "m.gguf", header(values)))
    with pytest.raises(ModelFileError, match="names no architecture"):
        read_model(write(tmp_path / "m.gguf", header({"general.name": "x"})))


def test_only_the_largest_exaone_slides(tmp_path: Path) -> None:
    small = architecture(tmp_path, "exaone4", **{"llama.block_count": 30})
    assert all(layer.window is None for layer in small.layers.values())
    large = architecture(tmp_path, "exaone4", **{"llama.block_count": 64})
    assert large.layers[0].window == 4096
    assert large.layers[3].window is None


def test_a_file_of_a_next_token_head_alone_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="next-token head"):
        architecture(tmp_path, **{"llama.nextn_predict_layers": 2})


def test_absurd_numbers_of_layers_are_not_believed(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="400000000 layers"):
        architecture(tmp_path, **{"llama.block_count": 400_000_000})


def test_a_model_without_attention_keeps_states_alone(tmp_path: Path) -> None:
    values = {
        "general.architecture": "mamba",
        "mamba.block_count": 2,
        "mamba.context_length": 4096,
        "mamba.embedding_length": 64,
        "mamba.ssm.state_size": 16,
        "mamba.ssm.inner_size": 128,
        "mamba.ssm.conv_kernel": 4,
    }
    found = read_model(write(tmp_path / "m.gguf", header(values))).architecture
    assert found.layers == {}
    assert found.states == dict.fromkeys(range(2), StateRow(3 * 128, 16 * 128))
    assert found.doubts == ()


def test_latent_attention_keeps_keys_alone(tmp_path: Path) -> None:
    latent = {
        "llama.attention.key_length": 576,
        "llama.attention.value_length": 512,
        "llama.attention.key_length_mla": 192,
        "llama.attention.value_length_mla": 128,
        "llama.attention.head_count_kv": 1,
    }
    found = architecture(tmp_path, "deepseek2", **latent)
    assert found.is_latent
    assert (found.layers[0].k_width, found.layers[0].v_width) == (576, 0)
    old = {key: value for key, value in latent.items() if "mla" not in key}
    assert architecture(tmp_path, "deepseek2", **old).layers[0].v_width == 512


def test_every_fourth_layer_of_an_interval_hybrid_attends(tmp_path: Path) -> None:
    state = {
        "llama.block_count": 9,
        "llama.nextn_predict_layers": 1,
        "llama.ssm.conv_kernel": 4,
        "llama.ssm.state_size": 128,
        "llama.ssm.inner_size": 4096,
        "llama.ssm.group_count": 16,
    }
    found = architecture(tmp_path, "qwen35", **state)
    assert set(found.layers) == {3, 7}
    assert set(found.states) == {0, 1, 2, 4, 5, 6}
    assert found.states[0] == StateRow(3 * (4096 + 2 * 16 * 128), 128 * 4096)
    other = architecture(tmp_path, "qwen35", **state, **{"llama.full_attention_interval": 2})
    assert set(other.layers) == {1, 3, 5, 7}


def test_a_layer_without_key_value_heads_is_recurrent_in_a_hybrid(tmp_path: Path) -> None:
    heads = {"llama.attention.head_count_kv": [0, 2], "llama.shortconv.l_cache": 3}
    found = architecture(tmp_path, "lfm2", **heads)
    assert set(found.layers) == {1}
    assert found.states == {0: StateRow(2 * found.d_hidden, 0)}


def test_an_indexer_keeps_keys_of_its_own(tmp_path: Path) -> None:
    keys = {
        "llama.attention.key_length": 576,
        "llama.attention.value_length": 512,
        "llama.attention.key_length_mla": 192,
        "llama.attention.value_length_mla": 128,
        "llama.attention.head_count_kv": 1,
        "llama.attention.indexer.key_length": 128,
    }
    layer = architecture(tmp_path, "deepseek32", **keys).layers[0]
    assert (layer.indexer_k_width, layer.indexer_v_width) == (128, 0)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "hyper_connection.count", 4),
        ("llama", "n_deepstack_layers", 3),
        ("qwen3vl", "deepstack_mapping", [0, 1]),
        ("deepseek32", "attention.indexer.kpool", 16),
        ("gemma3n", "embedding_length_per_layer_input", 512),
        ("mamba2", "wkv.head_size", 64),
    ],
)
def test_a_key_that_llama_cpp_does_not_read_changes_nothing(
    tmp_path: Path, name: str, key: str, value: object
) -> None:
    keys: dict[str, object] = {
        "llama.attention.indexer.key_length": 128,
        "llama.attention.sliding_window": 512,
        "llama.ssm.conv_kernel": 4,
        "llama.ssm.inner_size": 256,
        "llama.ssm.state_size": 16,
        "llama.ssm.group_count": 1,
    }
    plain, odd = (
        architecture(tmp_path, name, **keys, **more) for more in ({}, {f"llama.{key}": value})
    )
    for field in fields(plain):
        assert getattr(odd, field.name) == getattr(plain, field.name), field.name


def test_encoders_keep_nothing(tmp_path: Path) -> None:
    found = architecture(tmp_path, "bert")
    assert (found.layers, found.states, found.doubts) == ({}, {}, ())


def test_a_file_that_runs_beside_a_model_only_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="beside a language model"):
        architecture(tmp_path, "clip")


def test_compressed_caches_stand_beside_a_window_in_every_layer(tmp_path: Path) -> None:
    changes = {
        "llama.block_count": 4,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": 64,
        "llama.attention.sliding_window": 128,
        "llama.attention.compress_ratios": [0, 4, 128, 7],
        "llama.attention.indexer.key_length": 32,
    }
    found = architecture(tmp_path, "deepseek4", **changes)
    assert [layer.window for layer in found.layers.values()] == [128] * 4
    assert [layer.compress_ratio for layer in found.layers.values()] == [0, 4, 128, 0]
    assert [layer.indexer_k_width for layer in found.layers.values()] == [0, 32, 0, 0]
    assert {layer.v_head_dim for layer in found.layers.values()} == {0}
    assert found.states == {1: StateRow(0, 2 * 8 * 2 * (64 + 32)), 2: StateRow(0, 2 * 128 * 64)}


def test_a_model_is_the_same_object_until_its_file_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", header(llama_values()))
    assert read_model(path) is not read_model(path)  # just written: it may be written again
    os.utime(path, (1, 1))
    found = read_model(path)
    assert read_model(path) is found
    write(path, header(llama_values(**{"llama.block_count": 3})))
    assert read_model(path).architecture.n_layers == 3
    path.unlink()
    with pytest.raises(ModelFileError):
        read_model(path)


def test_only_a_few_models_are_kept(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.gguf", header(llama_values())) for i in range(MOST_HEADERS + 1)]
    for path in paths:
        os.utime(path, (1, 1))
    models = [read_model(path) for path in paths]
    assert read_model(paths[-1]) is models[-1]
    assert read_model(paths[0]) is not models[0]
