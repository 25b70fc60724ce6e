"""Headers that are no model; the caches of known ones stand in `test_recorded_dry_runs.py`."""

import os
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.model.architecture import Architecture, read_model
from tests.support.gguf_files import header, llama_values, write


def architecture(tmp_path: Path, name: str = "llama", **changes: object) -> Architecture:
    values = {
        key.replace("llama.", f"{name}."): value for key, value in llama_values(**changes).items()
    }
    values["general.architecture"] = name
    return read_model(write(tmp_path / "m.gguf", header(values))).architecture


def test_an_unknown_architecture_is_marked(tmp_path: Path) -> None:
    assert "not know" in architecture(tmp_path, "shinynew").doubts[0]


def test_a_header_that_lacks_a_needed_key_is_refused_by_name(tmp_path: Path) -> None:
    values = llama_values()
    del values["llama.block_count"]
    with pytest.raises(ModelFileError, match=r"llama\.block_count"):
        read_model(write(tmp_path / "m.gguf", header(values)))
    with pytest.raises(ModelFileError, match=r"no general\.architecture"):
        read_model(write(tmp_path / "m.gguf", header({"general.name": "x"})))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"llama.nextn_predict_layers": 2}, "MTP head"),
        ("llama", {"llama.block_count": 400_000_000}, "400000000 layers, more than"),
        ("llama", {"llama.attention.head_count_kv": [2]}, "damaged"),
        ("clip", {}, "with a language model"),
    ],
)
def test_a_header_of_no_model_is_refused_with_the_reason(
    name: str, changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=words):
        architecture(tmp_path, name, **changes)


@pytest.mark.parametrize(
    ("name", "window", "n_doubts"), [("olmo2", None, 0), ("gemma2", 4096, 0), ("gpt-oss", None, 1)]
)
def test_a_file_without_a_window_has_that_of_its_architecture_or_a_doubt(
    name: str, window: int | None, n_doubts: int, tmp_path: Path
) -> None:
    found = architecture(tmp_path, name)
    assert {layer.window for layer in found.distinct_layers} == {None, window}
    assert len(found.doubts) == n_doubts


def test_layers_that_run_several_times_count_as_often_as_the_file_names(tmp_path: Path) -> None:
    loops = {"nanbeige.num_loops": 3}
    assert architecture(tmp_path, "nanbeige", **loops).n_layers == 3 * (
        architecture(tmp_path, "nanbeige").n_layers
    )
    assert architecture(tmp_path, "llama", **{"llama.num_loops": 3}).n_layers == (
        architecture(tmp_path).n_layers
    )


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
