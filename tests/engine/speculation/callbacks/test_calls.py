"""A draft function is a predictor, and keeps what every predictor must."""

from collections.abc import Iterator, Sequence

import pytest

from engine.speculation.callbacks.calls import UNKNOWN_CONFIDENCE, CallbackPredictor
from engine.speculation.predictors.base import DraftToken
from tests.contracts.predictor import PredictorContract


def successors(line: Sequence[int], n_max: int) -> Iterator[int]:
    return (line[-1] + step for step in range(1, n_max + 1))


class TestCallbackPredictor(PredictorContract):
    @pytest.fixture
    def predictor(self) -> CallbackPredictor:
        predictor = CallbackPredictor(successors)
        predictor.n_wanted = 4
        return predictor

    @pytest.fixture
    def line(self) -> list[int]:
        return [1, 2, 3, 4, 5, 6, 7]


def test_a_number_is_a_guess_of_no_known_confidence() -> None:
    predictor = CallbackPredictor(lambda line, n_max: [7, DraftToken(8, 0.25)])
    predictor.reset([1])
    assert list(predictor.propose()) == [DraftToken(7, UNKNOWN_CONFIDENCE), DraftToken(8, 0.25)]
