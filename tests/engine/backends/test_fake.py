import pytest

from engine.backends.base import Backend
from engine.testing import FakeBackend
from tests.contracts.backend import (
    BackendContract,
    BatchContract,
    SeveralSequencesContract,
    StateContract,
)


class TestFakeBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return FakeBackend(n_ctx=64)

    @pytest.fixture
    def line(self) -> list[int]:
        return [(7 * n) % 251 for n in range(64)]


class TestFakeStates(StateContract):
    @pytest.fixture(params=[True, False], ids=["attention", "recurrent"])
    def backend(self, request: pytest.FixtureRequest) -> Backend:
        return FakeBackend(n_ctx=64, can_crop=request.param)

    @pytest.fixture
    def line(self) -> list[int]:
        return [(7 * n) % 251 for n in range(64)]


class TestFakeSequences(SeveralSequencesContract, BatchContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return FakeBackend(n_ctx=96, n_sequences=3)

    @pytest.fixture
    def line(self) -> list[int]:
        return [(7 * n) % 251 for n in range(64)]


def test_a_state_under_other_tokens_gives_itself_away() -> None:
    backend = FakeBackend()
    sequence = backend.open()
    sequence.prefill([1, 2, 3, 4])
    state = sequence.save()
    sequence.load([9, 9, 9, 9], [state])
    wrong = sequence.decode(5).logits.copy()
    sequence.load([1, 2, 3, 4], [state])
    assert (sequence.decode(5).logits == wrong).all()
