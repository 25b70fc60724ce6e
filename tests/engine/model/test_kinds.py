from pathlib import Path

import pytest

from engine.model.gguf import read_gguf
from engine.model.kinds import ModelKind, kind_of
from tests.gguf_files import header, llama_values, write

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
def test_a_header_says_what_its_file_is_for(
    tmp_path: Path, values: dict[str, object], kind: ModelKind
) -> None:
    path = write(tmp_path / "m.gguf", header(values, TENSOR), data_bytes=128)
    assert kind_of(read_gguf(path)) is kind


def test_tokens_without_weights_are_a_vocabulary(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", header(llama_values()))
    assert kind_of(read_gguf(path)) is ModelKind.VOCABULARY
