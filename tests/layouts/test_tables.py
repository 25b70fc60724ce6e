"""Tables of tensors: their notation, and the layouts where each kind of layer differs."""

import pytest

from engine.errors import ModelFileError
from engine.model.catalog import entries, find_entry
from tests.layouts import LAYOUTS, tensor_shapes
from tests.layouts.tables import Keys, rows, shapes
from tests.made_models import changed_entry


def test_a_row_gives_a_weight_with_its_dimensions() -> None:
    assert list(shapes(rows("attn_q d q"), {"d": 8, "q": 16}, "blk.3.")) == [
        ("blk.3.attn_q.weight", (8, 16))
    ]


@pytest.mark.parametrize(
    ("row", "name"),
    [("attn_q.bias q", "attn_q.bias"), ("ssm_a. q", "ssm_a"), ("nextn.e q", "nextn.e.weight")],
)
def test_biases_and_bare_names_get_no_suffix(row: str, name: str) -> None:
    assert [found for found, _ in shapes(rows(row), {"q": 4})] == [name]


def test_dimensions_are_sums_of_products() -> None:
    sizes = {"rank": 512, "rot": 64, "heads": 3}
    assert list(shapes(rows("kv rank+2*rot*heads"), sizes)) == [("kv.weight", (512 + 384,))]


def tensors(name: str) -> dict[str, tuple[int, ...]]:
    return {t.name: t.shape for t in find_entry(name).header().tensors}


def test_an_architecture_without_a_table_is_refused_by_name() -> None:
    keys = Keys("clip", {"block_count": 1}, 10, frozenset())
    with pytest.raises(ModelFileError, match="'clip'"):
        tensor_shapes(keys)


def test_every_architecture_with_a_table_has_a_model() -> None:
    assert {entry.architecture for entry in entries()} == set(LAYOUTS)


def test_the_layouts_give_the_tensors_of_the_snapshots() -> None:
    for entry in entries():
        made = changed_entry(entry.name, {})
        assert made.snapshot == entry.snapshot, entry.name


def test_a_tied_model_has_no_output_matrix() -> None:
    assert "output.weight" not in tensors("llama-3.2-1b")
    assert tensors("llama-3.1-8b")["output.weight"] == (4096, 128256)


def test_per_layer_heads_and_widths_shape_each_layer() -> None:
    found = tensors("openelm-270m")
    assert found["blk.0.attn_qkv.weight"] == (1280, (12 + 2 * 3) * 64)
    assert found["blk.15.attn_qkv.weight"] == (1280, (20 + 2 * 5) * 64)
    assert found["blk.15.ffn_down.weight"] == (5120, 1280)


def test_latent_attention_splits_its_key_matrix_by_head() -> None:
    found = tensors("deepseek-v3")
    assert found["blk.0.attn_kv_a_mqa.weight"] == (7168, 512 + 64)
    assert found["blk.0.attn_k_b.weight"] == (128, 512, 128)
    assert "blk.2.ffn_gate_inp.weight" not in found
    assert found["blk.3.ffn_gate_exps.weight"] == (7168, 2048, 256)


def test_a_hybrid_has_attention_only_where_it_says_so() -> None:
    found = tensors("qwen3.6-27b")
    with_attention = [i for i in range(65) if f"blk.{i}.attn_k.weight" in found]
    assert with_attention == [*range(3, 64, 4), 64]
    assert "blk.64.nextn.eh_proj.weight" in found


def test_sliding_layers_of_gemma_4_have_smaller_heads() -> None:
    found = tensors("gemma-4-31b")
    assert found["blk.0.attn_k.weight"] == (5376, 16 * 256)
    assert found["blk.5.attn_k.weight"] == (5376, 4 * 512)
    assert "blk.5.attn_v.weight" not in found
