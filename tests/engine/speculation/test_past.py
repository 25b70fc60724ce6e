from itertools import islice

import pytest

from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.suffix import PastRepliesPredictor
from tests.contracts.predictor import PredictorContract

SAID = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 20, 21])


def tokens(replies: tuple[list[int], ...], line: list[int], *, least: float = 0.0) -> list[int]:
    predictor = PastRepliesPredictor(replies, min_confidence=least)
    predictor.reset(line)
    return [guess.token for guess in islice(predictor.propose(), 9)]


class TestPastReplies(PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return PastRepliesPredictor(([*range(30)], [*range(30)]), min_confidence=0.1)

    @pytest.fixture
    def line(self) -> list[int]:
        return [35, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_it_goes_on_as_another_chat_did() -> None:
    assert tokens(SAID, [40, 3, 4, 5]) == [6, 7, 8, 9]


def test_the_newest_of_two_replies_goes_first() -> None:
    assert tokens(SAID, [40, 2, 3, 4]) == [20, 21]


def test_a_reply_does_not_run_on_into_the_next() -> None:
    assert tokens(([1, 2, 3, 4], [5, 6]), [2, 3, 4]) == []
    assert tokens(([1, 2], [3, 4, 5, 6]), [1, 2, 3]) == []


def test_two_tokens_are_not_enough() -> None:
    assert tokens(SAID, [40, 4, 5]) == []


def test_another_chat_is_believed_less_than_this_one() -> None:
    predictor = PastRepliesPredictor(SAID, min_confidence=0.0)
    predictor.reset([4, 5, 6])
    assert next(predictor.propose()).confidence == pytest.approx(1 / (1 + 2 / 3))


def test_the_draft_ends_where_it_is_no_longer_likely_enough() -> None:
    assert tokens(SAID, [4, 5, 6], least=0.59) == [7]
    assert tokens(SAID, [4, 5, 6], least=0.61) == []


def test_the_line_is_not_learnt_from() -> None:
    assert tokens(SAID, [30, 31, 32, 33, 40, 30, 31, 32]) == []
