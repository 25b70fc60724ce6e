"""What the tests of the engines share."""

from pathlib import Path

import pytest

from engine.backends.llama_cpp.log import NativeLog
from tests.support.filled_models import filled_model


@pytest.fixture(scope="module")
def log() -> NativeLog:
    return NativeLog()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of random weights, which torch and llama.cpp both know."""
    return filled_model(tmp_path_factory.mktemp("models") / "llama.gguf", "llama")
