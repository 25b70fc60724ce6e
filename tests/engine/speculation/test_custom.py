"""Whatever a predictor does, what comes out is a draft or a fault with a name."""

import gc
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest

from engine.errors import PredictorError
from engine.sampling import Distribution
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.base import DraftToken, Predictor
from engine.speculation.predictors.custom import MAX_LATE, CustomPredictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from tests.contracts.predictor import PredictorContract

N_VOCAB = 40


class Scripted:
    """A predictor whose every part is given."""

    name = "scripted"

    def __init__(
        self,
        propose: Callable[[], Iterator[DraftToken]] = lambda: iter(()),
        *,
        observe: Callable[[Sequence[int]], None] = lambda tokens: None,
    ) -> None:
        self._propose = propose
        self._observe = observe

    def reset(self, history: Sequence[int]) -> None:
        self._observe(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._observe(tokens)

    def propose(self) -> Iterator[DraftToken]:
        return self._propose()


def checked(inner: Predictor) -> CustomPredictor:
    predictor = CustomPredictor(inner, N_VOCAB, PlainStep())
    predictor.reset([1])
    return predictor


class TestItKeepsTheContract(PredictorContract):
    @pytest.fixture
    def predictor(self) -> CustomPredictor:
        return checked(InputLookupPredictor(pattern_min=1, pattern_max=4))

    @pytest.fixture
    def line(self) -> list[int]:
        return [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7]


@pytest.mark.parametrize(
    "guess",
    [
        DraftToken(N_VOCAB, 0.5),
        DraftToken(-1, 0.5),
        DraftToken(2**70, 0.5),
        DraftToken("3", 0.5),  # type: ignore[arg-type]  # garbage
        DraftToken(3.0, 0.5),  # type: ignore[arg-type]  # garbage
        DraftToken(3, float("nan")),
        DraftToken(3, float("inf")),
        DraftToken(3, 1.5),
        DraftToken(3, -0.1),
        DraftToken(3, None),  # type: ignore[arg-type]  # garbage
        DraftToken(3, 0.5, Distribution(np.array([99]), np.ones(1))),
        DraftToken(3, 0.5, Distribution(np.array([3]), np.full(1, 0.5))),
        DraftToken(3, 0.5, "text"),  # type: ignore[arg-type]  # garbage
        3,
    ],
)
def test_what_is_no_guess_is_a_fault(guess: Any) -> None:
    with pytest.raises(PredictorError):
        list(checked(Scripted(lambda: iter([guess]))).propose())


def raiser(error: BaseException) -> Callable[..., Any]:
    def raising(*_: object) -> Any:
        raise error

    return raising


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom"),
        MemoryError(),
        RecursionError("deep"),
        StopIteration(),
    ],
)
def test_whatever_is_raised_is_a_fault(error: BaseException) -> None:
    for broken in (Scripted(raiser(error)), Scripted(observe=raiser(error))):
        with pytest.raises(PredictorError, match=type(error).__name__):
            list(checked(broken).propose())


def test_what_is_raised_when_it_is_left_is_the_fault_of_the_next_round() -> None:
    def clinging() -> Iterator[DraftToken]:
        try:
            while True:
                yield DraftToken(1, 1.0)
        finally:
            raise ValueError("I was not done")

    predictor = checked(Scripted(clinging))
    for _ in predictor.propose():
        break
    predictor.commit([1])
    with pytest.raises(PredictorError, match="not done"):
        list(predictor.propose())


def test_the_tokens_cannot_be_changed_by_a_predictor() -> None:
    reported: list[Sequence[int]] = []
    predictor = checked(Scripted(observe=reported.append))
    predictor.commit([1, 2, 3])
    assert list(predictor.propose()) == []
    assert reported == [(1,), (1, 2, 3)]


class Held:
    """A predictor that answers once `released`; `is_free` is set by the next commit."""

    name = "held"

    def __init__(self) -> None:
        self.released, self.is_free = Event(), Event()
        self.n_asked = 0

    def reset(self, history: Sequence[int]) -> None: ...

    def commit(self, tokens: Sequence[int]) -> None:
        self.is_free.set()

    def propose(self) -> Iterator[DraftToken]:
        self.n_asked += 1
        self.released.wait()
        yield DraftToken(7, 1.0)


def test_a_late_draft_is_discarded_and_the_next_one_is_used() -> None:
    held = Held()
    predictor = checked(held)
    for _ in range(MAX_LATE - 1):
        assert list(predictor.propose()) == []
    assert held.n_asked == 1, "it is asked again when it has answered"
    held.released.set()
    predictor.commit([2])
    held.is_free.wait()
    assert [each.token for each in predictor.propose()] == [7]
    assert held.n_asked == 2


def test_a_predictor_that_is_always_late_fails() -> None:
    held = Held()
    predictor = checked(held)
    for _ in range(MAX_LATE - 1):
        assert list(predictor.propose()) == []
    with pytest.raises(PredictorError, match="late"):
        list(predictor.propose())
    held.released.set()


def test_the_thread_ends_with_the_predictor() -> None:
    before = set(enumerate_threads())
    predictor = checked(Scripted())
    assert list(predictor.propose()) == []
    (thread,) = set(enumerate_threads()) - before
    del predictor
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()
