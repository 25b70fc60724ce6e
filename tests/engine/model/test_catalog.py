"""The catalogue: names, sizes against real files, and what it refuses."""

from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.model.architecture import read_model
from engine.model.catalog import entries, find_entry


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "quantization", "fixture"),
    [("smollm2-135m", "Q4_1", "starter_path"), ("gemma-3-270m", "Q4_K_M", "gemma_path")],
)
def test_a_catalogue_header_has_every_tensor_of_the_real_file(
    name: str, quantization: str, fixture: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(fixture)
    real = read_model(path)
    made = find_entry(name).model(quantization)
    assert {t.name: (t.shape, t.type.name) for t in made.file.tensors} == {
        t.name: (t.shape, t.type.name) for t in real.file.tensors
    }
    assert made.architecture.layers == real.architecture.layers
    assert made.file.n_vocab == real.file.n_vocab


def test_aliases_are_found_in_any_case() -> None:
    assert find_entry("Qwen2.5-Coder-7B").name == "qwen2.5-7b"


def test_an_unknown_name_is_refused_with_those_that_come_near() -> None:
    with pytest.raises(ModelFileError, match=r"qwen3-8b"):
        find_entry("qwen3-8bb")


def test_an_unknown_quantisation_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ModelFileError, match="Q4_K_M"):
        find_entry("qwen3-8b").model("Q4_K_XL")


def test_no_two_entries_share_a_name() -> None:
    names = [name.lower() for entry in entries() for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
