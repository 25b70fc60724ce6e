"""Prompts are read in two threads at once: by the reply, and by what is brought from disk."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llama_cpp
import pytest

from engine.backends.llama_cpp.model import LlamaCppVocabulary

pytestmark = pytest.mark.model
ROUNDS = 6
N_TOKENS = 4000


@pytest.fixture
def model(starter_path: Path) -> Iterator[object]:
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(starter_path).encode(), params)
    yield model
    llama_cpp.llama_model_free(model)


@pytest.fixture
def _hasty_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_hasty_switches")
def test_two_threads_decode_tokens_as_one_does(model: object) -> None:
    alone = LlamaCppVocabulary(model)
    right = [alone.piece(token) for token in range(N_TOKENS)]
    for _ in range(ROUNDS):
        shared = LlamaCppVocabulary(model)

        def decode(step: int, shared: LlamaCppVocabulary = shared) -> None:
            for token in range(N_TOKENS)[::step]:
                shared.piece(token)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(decode, (1, -1)))
        assert [shared.piece(token) for token in range(N_TOKENS)] == right
