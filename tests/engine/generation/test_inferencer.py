"""Prefill and decoding give every row, and the cache grows by what was computed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.backends.base import Backend
from engine.configuration import Configuration, SamplingSettings
from engine.errors import ModelFileError, PresetError
from engine.generation.inferencer import Inferencer
from engine.sampling import Sampler
from engine.testing import FakeBackend, FakeVocabulary
from tests.support.sessions import LETTERS, finished, make_session, request, run

GREEDY = Sampler(SamplingSettings(), seed=0)
WARM = Sampler(SamplingSettings(temperature=0.9, top_k=8), seed=7)


class InferencerContract:
    """Subclasses give fixtures `backend` and `query` (at least 20 tokens)."""

    def test_a_prefill_gives_a_row_for_each_token_and_draws_from_the_last(
        self, backend: Backend, query: list[int]
    ) -> None:
        sequence = backend.open()
        out = Inferencer(backend).prefill(query, sequence, GREEDY)
        assert out.token_logits.shape == (len(query), backend.vocabulary.n_tokens)
        assert out.token_ids == (int(out.token_logits[-1].argmax()),)
        assert list(sequence.tokens) == query

    def test_the_cache_grows_by_a_second_query(self, backend: Backend, query: list[int]) -> None:
        sequence = backend.open()
        inferencer = Inferencer(backend)
        inferencer.prefill(query[:7], sequence, GREEDY)
        inferencer.prefill(query[7:], sequence, GREEDY)
        assert list(sequence.tokens) == query

    @pytest.mark.parametrize("n", [1, 5])
    def test_greedy_tokens_are_the_largest_of_their_rows_and_grow_the_cache(
        self, backend: Backend, query: list[int], n: int
    ) -> None:
        sequence = backend.open()
        inferencer = Inferencer(backend)
        [first] = inferencer.prefill(query, sequence, GREEDY).token_ids
        out = inferencer.decode(first, sequence, GREEDY, max_new_tokens=n)
        assert len(out.token_ids) <= n
        assert out.token_ids == tuple(map(int, out.token_logits.argmax(axis=1)))
        assert list(sequence.tokens) == [*query, first, *out.token_ids[:-1]]


class TestOnTheFake(InferencerContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return FakeBackend(LETTERS, n_ctx=64)

    @pytest.fixture
    def query(self) -> list[int]:
        return [n % 26 for n in range(40)]


class OnTheStarter(InferencerContract):
    @pytest.fixture
    def query(self, backend: Backend) -> list[int]:
        text = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
        return backend.vocabulary.tokenize(text, add_special=True, parse_special=False)


@pytest.mark.model
class TestOnLlamaCpp(OnTheStarter):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, starter_path: Path) -> Iterator[Backend]:
        from engine.backends.llama_cpp.backend import LlamaCppBackend
        from engine.backends.llama_cpp.log import NativeLog

        configuration = Configuration(model_path=starter_path, n_ctx=128, n_threads=1)
        backend = LlamaCppBackend(configuration, NativeLog())
        yield backend
        backend.close()


@pytest.mark.model
class TestOnTorch(OnTheStarter):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, starter_path: Path) -> Iterator[Backend]:
        pytest.importorskip("torch")
        from engine.backends.llama_cpp.log import NativeLog
        from engine.backends.torch.backend import TorchBackend

        configuration = Configuration(
            model_path=starter_path, n_ctx=128, n_threads=1, backend="torch"
        )
        backend = TorchBackend(configuration, NativeLog())
        yield backend
        backend.close()


def test_an_end_token_is_the_last_and_nothing_is_computed_after_it() -> None:
    backend = FakeBackend(LETTERS, n_ctx=512, end_bias=8.0)
    sequence = backend.open()
    inferencer = Inferencer(backend)
    [first] = inferencer.prefill([1, 2, 3], sequence, WARM).token_ids
    out = inferencer.decode(first, sequence, WARM, max_new_tokens=300)
    assert out.token_ids[-1] == inferencer.eos_token_id
    assert LETTERS.eos not in out.token_ids[:-1]
    assert len(sequence.tokens) == 3 + len(out.token_ids)


def test_a_seed_draws_what_a_session_draws() -> None:
    asked = request("abcabc", sampling=WARM.settings, seed=WARM.seed)
    events = run(make_session(target=FakeBackend(LETTERS, sharpness=2.0)), asked)
    backend = FakeBackend(LETTERS, sharpness=2.0)
    sequence, inferencer = backend.open(), Inferencer(backend)
    text = "<bos><user>abcabc<end><assistant>"
    prompt = LETTERS.tokenize(text, add_special=False, parse_special=True)
    [first] = inferencer.prefill(prompt, sequence, WARM).token_ids
    out = inferencer.decode(first, sequence, WARM, max_new_tokens=59)
    assert (first, *out.token_ids) == finished(events).token_ids


def test_a_model_without_an_end_token_is_refused() -> None:
    vocabulary = FakeVocabulary()
    vocabulary.eos = None  # type: ignore[assignment]  # as a file may have it
    with pytest.raises(ModelFileError):
        assert Inferencer(FakeBackend(vocabulary)).eos_token_id


@pytest.mark.parametrize("n", [0, -1])
def test_nothing_to_compute_is_refused_in_both_calls(n: int) -> None:
    backend = FakeBackend()
    sequence, inferencer = backend.open(), Inferencer(backend)
    with pytest.raises(PresetError):
        inferencer.prefill([], sequence, GREEDY)
    with pytest.raises(PresetError):
        inferencer.decode(1, sequence, GREEDY, max_new_tokens=n)
    assert list(sequence.tokens) == []
