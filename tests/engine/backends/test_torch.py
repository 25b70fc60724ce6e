"""The contract on torch, and its logits beside llama.cpp's on the same file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")

from engine.backends.base import Backend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.torch.backend import TorchBackend
from engine.errors import ModelLoadError
from tests.contracts.backend import (
    BackendContract,
    SeveralSequencesContract,
    StateContract,
)
from tests.engine.backends.torch_models import llama_cpp_rows, rows_of, settings
from tests.filled_models import filled_model

TEXT = (
    "A cache keeps what was computed so that nobody has to compute it again. The keys and values "
    "of earlier tokens are such a thing: a reply of a thousand tokens would otherwise pay for a "
    "million. What it costs is memory, and memory is what there is least of."
)
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]


@pytest.fixture(scope="module")
def log() -> NativeLog:
    return NativeLog()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return filled_model(folder / f"{request.param}.gguf", request.param)


def random_line(n_tokens: int) -> list[int]:
    rng = np.random.default_rng(1)
    return [int(token) for token in rng.integers(3, 259, n_tokens)]


class TestStates(BackendContract, StateContract):
    tolerance = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, filled: Path, log: NativeLog) -> Iterator[TorchBackend]:
        backend = TorchBackend(settings(filled), log)
        yield backend
        backend.close()

    @pytest.fixture(scope="class")
    @classmethod
    def line(cls) -> list[int]:
        return random_line(60)

    def test_pieces_spell_the_tokenised_text(self, backend: Backend) -> None:
        pytest.skip("a made vocabulary spells no text; that of a real model does below")


class TestSeveralSequences(SeveralSequencesContract):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(
        cls, tmp_path_factory: pytest.TempPathFactory, log: NativeLog
    ) -> Iterator[TorchBackend]:
        path = filled_model(tmp_path_factory.mktemp("models") / "llama.gguf", "llama")
        backend = TorchBackend(settings(path, n_slots=3), log)
        yield backend
        backend.close()

    @pytest.fixture(scope="class")
    @classmethod
    def line(cls) -> list[int]:
        return random_line(60)


def test_logits_are_llama_cpps_on_the_same_file(filled: Path, log: NativeLog) -> None:
    line = random_line(120)
    backend = TorchBackend(settings(filled), log)
    ours = rows_of(backend, line)
    backend.close()
    theirs = llama_cpp_rows(filled, line, log)
    assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max()


@pytest.mark.model
def test_tokens_and_logits_of_a_real_model_are_llama_cpps(
    starter_path: Path, log: NativeLog
) -> None:
    backend = TorchBackend(settings(starter_path), log)
    line = backend.vocabulary.tokenize(TEXT, add_special=True, parse_special=False)
    ours = rows_of(backend, line)
    assert backend.file_type == "Q4_1"
    assert backend.n_ctx_train == 8192
    assert backend.chat_template is not None
    assert b"".join(map(backend.vocabulary.piece, line)).decode() == TEXT
    backend.close()
    theirs = llama_cpp_rows(starter_path, line, log)
    assert np.mean(ours.argmax(1) == theirs.argmax(1)) > 0.9, "its activations are 8 bits there"


def test_an_architecture_without_code_is_named_with_those_there_are(
    tmp_path: Path, log: NativeLog
) -> None:
    path = filled_model(tmp_path / "jamba.gguf", "jamba")
    with pytest.raises(ModelLoadError, match=r"jamba.*llama, qwen2, qwen3, gemma3"):
        TorchBackend(settings(path), log)
