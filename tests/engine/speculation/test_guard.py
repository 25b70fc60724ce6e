"""Whatever a predictor does, what comes out is a draft or a fault with a name."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from engine.errors import PredictorError
from engine.sampling import Distribution
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.guard import GuardedPredictor
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
        tell: Callable[[Sequence[int]], None] = lambda tokens: None,
    ) -> None:
        self._propose = propose
        self._tell = tell

    def reset(self, history: Sequence[int]) -> None:
        self._tell(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._tell(tokens)

    def propose(self) -> Iterator[DraftToken]:
        return self._propose()

    def close(self) -> None:
        self._tell(())


def guarded(inner: Scripted, plain_step: PlainStep | None = None) -> GuardedPredictor:
    return GuardedPredictor(inner, N_VOCAB, plain_step or PlainStep())


class TestAGuardedPredictorKeepsTheContract(PredictorContract):
    @pytest.fixture
    def predictor(self) -> GuardedPredictor:
        inner = InputLookupPredictor(pattern_min=1, pattern_max=4)
        return GuardedPredictor(inner, N_VOCAB, PlainStep())

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
        DraftToken(3, 0.5, "law"),  # type: ignore[arg-type]  # garbage
        3,
    ],
)
def test_what_is_no_guess_is_a_fault(guess: Any) -> None:
    with pytest.raises(PredictorError):
        list(guarded(Scripted(lambda: iter([guess]))).propose())


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
    broken = guarded(Scripted(raiser(error), tell=raiser(error)))
    for call in (
        lambda: broken.reset([1]),
        lambda: broken.commit([1]),
        lambda: list(broken.propose()),
        broken.close,
    ):
        with pytest.raises(PredictorError, match=type(error).__name__):
            call()


def test_what_is_raised_when_it_is_left_is_the_fault_of_the_round() -> None:
    def clinging() -> Iterator[DraftToken]:
        try:
            while True:
                yield DraftToken(1, 1.0)
        finally:
            raise ValueError("I was not done")

    predictor = guarded(Scripted(clinging))
    for _ in predictor.propose():
        break
    with pytest.raises(PredictorError, match="not done"):
        predictor.commit([1])


def test_the_line_cannot_be_changed_by_a_predictor() -> None:
    told: list[Sequence[int]] = []
    line = [1, 2, 3]
    predictor = guarded(Scripted(tell=told.append))
    predictor.reset(line)
    predictor.commit(line)
    assert all(isinstance(each, tuple) for each in told)
