"""Which model a file holds, and what it is for."""

import shutil
from pathlib import Path

import pytest

from engine.model.gguf import MAX_STORED_ELEMENTS, read_gguf
from engine.model.identity import ModelKind, kind_of, model_identity
from tests.support.gguf_files import header, llama_values, write

N_ROWS = 1 << 14
TENSORS = [("token_embd.weight", (64, N_ROWS), 0, 0)]
DATA_BYTES = 64 * N_ROWS * 4


def a_model(path: Path, *, word: str = "word", name: str = "Tiny") -> Path:
    words = ["a", word, *["x" * 20] * (MAX_STORED_ELEMENTS * 8)]
    values = llama_values(**{"general.name": name, "tokenizer.ggml.tokens": words})
    return write(path, header(values, TENSORS), data_bytes=DATA_BYTES)


def changed(path: Path, share: float) -> Path:
    """Change a block of a file's data, at a share of its size."""
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * share))
        file.write(b"\1" * (64 << 10))
    return path


def test_a_copy_under_another_name_is_the_same_model(tmp_path: Path) -> None:
    path = a_model(tmp_path / "one.gguf")
    (tmp_path / "folder").mkdir()
    other = Path(shutil.copy(path, tmp_path / "folder" / "two.gguf"))
    assert model_identity(path) == model_identity(other)
    assert len(model_identity(path)) == 32


def test_other_keys_words_sizes_or_data_are_another_model(tmp_path: Path) -> None:
    files = [
        a_model(tmp_path / "a.gguf"),
        a_model(tmp_path / "b.gguf", name="Tony"),
        a_model(tmp_path / "c.gguf", word="wird"),
        changed(a_model(tmp_path / "d.gguf"), 0.99),
        changed(a_model(tmp_path / "e.gguf"), 0.3),
    ]
    longer = a_model(tmp_path / "f.gguf")
    with longer.open("ab") as file:
        file.write(bytes(32))
    assert len({model_identity(path) for path in (*files, longer)}) == 6


def test_a_split_model_is_known_by_all_of_its_parts(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in (1, 2):
            values = {**(llama_values() if number == 1 else {}), "split.count": 2}
            data = header(values, [(f"t{number}", (64, N_ROWS), 0, 0)])
            path = tmp_path / folder / f"m-0000{number}-of-00002.gguf"
            write(path, data, data_bytes=DATA_BYTES)
    first, second = (tmp_path / name / "m-00001-of-00002.gguf" for name in ("a", "b"))
    assert model_identity(first) == model_identity(second)
    changed(tmp_path / "b" / "m-00002-of-00002.gguf", 0.999)
    assert model_identity(first) != model_identity(second)


TENSOR = [("t", (32,), 0, 0)]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (llama_values(), ModelKind.MODEL),
        ({"general.type": "model", "general.architecture": "llama"}, ModelKind.MODEL),
        ({"general.type": "mmproj", "general.architecture": "clip"}, ModelKind.PROJECTOR),
        ({"general.architecture": "clip"}, ModelKind.PROJECTOR),
        ({"general.type": "adapter", "general.architecture": "llama"}, ModelKind.ADAPTER),
        ({"adapter.type": "lora", "general.architecture": "llama"}, ModelKind.ADAPTER),
        ({"general.architecture": "controlvector"}, ModelKind.ADAPTER),
        ({"general.type": "imatrix"}, ModelKind.IMATRIX),
        ({"general.architecture": "eagle3"}, ModelKind.DRAFT),
        (llama_values(**{"llama.nextn_predict_layers": 2}), ModelKind.DRAFT),
        (llama_values(**{"llama.nextn_predict_layers": 1}), ModelKind.MODEL),
        ({"general.architecture": "bert", "bert.attention.causal": False}, ModelKind.EMBEDDING),
        ({"general.architecture": "nomic-bert"}, ModelKind.EMBEDDING),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 3}, ModelKind.EMBEDDING),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 0}, ModelKind.MODEL),
        ({"general.architecture": "dream", "dream.attention.causal": False}, ModelKind.MODEL),
    ],
)
def test_the_kind_of_a_file_comes_from_its_header(
    tmp_path: Path, values: dict[str, object], kind: ModelKind
) -> None:
    path = write(tmp_path / "m.gguf", header(values, TENSOR), data_bytes=128)
    assert kind_of(read_gguf(path)) is kind


def test_tokens_without_weights_are_a_vocabulary(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", header(llama_values()))
    assert kind_of(read_gguf(path)) is ModelKind.VOCABULARY
