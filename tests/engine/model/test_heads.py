"""A draft head is refused as a draft model, with the reason and an alternative."""

from pathlib import Path

import pytest

from engine.errors import IncompatiblePairError
from engine.model.identity import check_is_no_head
from tests.support.gguf_files import header, write


def file_of(folder: Path, architecture: str, **values: object) -> Path:
    own = {f"{architecture}.{key}": value for key, value in values.items()}
    tokens = {"tokenizer.ggml.tokens": ["a", "b"]}
    tensors = [("token_embd.weight", (64, 2), 0, 0)]
    return write(
        folder / "head.gguf",
        header({"general.architecture": architecture, **own, **tokens}, tensors),
        data_bytes=512,
    )


@pytest.mark.parametrize(
    ("architecture", "values", "spec_type"),
    [
        ("eagle3", {"block_count": 1}, "draft-eagle3"),
        ("dflash", {"block_count": 2}, "draft-dflash"),
        ("glm4moe", {"block_count": 1, "nextn_predict_layers": 1}, "draft-mtp"),
    ],
)
def test_a_head_is_refused_with_the_reason_and_a_way(
    architecture: str, values: dict[str, object], spec_type: str, tmp_path: Path
) -> None:
    with pytest.raises(IncompatiblePairError, match=f"--spec-type {spec_type}`"):
        check_is_no_head(file_of(tmp_path, architecture, **values))


def test_a_model_with_a_head_inside_is_a_model(tmp_path: Path) -> None:
    check_is_no_head(file_of(tmp_path, "glm4moe", block_count=4, nextn_predict_layers=1))


def test_a_model_is_no_head(starter_path: Path) -> None:
    check_is_no_head(starter_path)
