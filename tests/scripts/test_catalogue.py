"""The header of a published file becomes that of a catalogue's model."""

from pathlib import Path

import catalogue
import pytest

from engine.errors import ModelFileError
from engine.model import catalog
from engine.model.gguf import read_gguf
from tests.support.gguf_files import header, llama_values, write

Q8_0, F32 = 8, 0


def q8_file(path: Path, file_type: int = 7) -> str:
    tensors = [("token_embd.weight", (64, 3), Q8_0, 0), ("blk.0.attn_norm.weight", (64,), F32, 224)]
    values = llama_values(**{"general.file_type": file_type})
    return str(write(path, header(values, tensors), data_bytes=512))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "snapshots.json.gz"
    path.write_bytes(catalogue.pack({"phi-2": catalog.find_entry("phi-2")}))
    monkeypatch.setattr(catalogue, "SNAPSHOTS_PATH", path)
    return path


def test_a_header_is_saved_with_those_of_other_models(saved: Path, tmp_path: Path) -> None:
    catalogue.main("llama-2-7b", q8_file(tmp_path / "m.gguf"))
    found = catalog.unpack(saved.read_bytes())
    assert sorted(found) == ["llama-2-7b", "phi-2"]
    assert found["phi-2"].kinds == catalog.find_entry("phi-2").kinds
    assert [tensor.name for tensor in found["llama-2-7b"].tensors()] == [
        "token_embd.weight",
        "blk.0.attn_norm.weight",
    ]


def test_a_snapshot_of_a_file_is_packed_and_read_again(starter_path: Path) -> None:
    made = catalogue.snapshot_of("model", read_gguf(starter_path))
    assert catalog.unpack(catalogue.pack({"model": made})) == {"model": made}
    known = catalog.find_entry("smollm2-135m")
    shapes = {(tensor.name, tensor.shape) for tensor in known.tensors()}
    assert {(tensor.name, tensor.shape) for tensor in made.tensors()} == shapes
    assert (made.n_parameters, made.n_vocab) == (known.n_parameters, known.n_vocab)


def test_another_quantisation_and_a_name_without_an_entry_are_refused(
    saved: Path, tmp_path: Path
) -> None:
    before = saved.read_bytes()
    with pytest.raises(ModelFileError, match="is Q4_K_M: name the model's Q8_0 file"):
        catalogue.main("llama-2-7b", q8_file(tmp_path / "m.gguf", 15))
    with pytest.raises(ModelFileError, match="has no 'new-model': write its entry first"):
        catalogue.main("new-model", q8_file(tmp_path / "m.gguf"))
    assert saved.read_bytes() == before
