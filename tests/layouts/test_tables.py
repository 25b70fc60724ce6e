"""Tables of tensors: their notation, and that they give what models have."""

import pytest

from tests.layouts import LAYOUTS
from tests.layouts.tables import Keys, rows, shapes
from tests.support.made_models import catalog_keys, shape_named


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


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gemma-3n-e2b", "deepseek-v3", "qwen3.5-4b"])
def test_a_layout_gives_the_tensors_of_a_snapshot(name: str) -> None:
    keys = catalog_keys(name)
    made = LAYOUTS[keys.architecture].tensors(
        Keys(keys.architecture, keys.values, keys.n_vocab, keys.traits)
    )
    assert sorted(made) == sorted(
        (each.name, each.shape) for each in shape_named(name).snapshot.tensors()
    )
