from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.predictors.base import DraftToken, Predictor
from engine.speculation.predictors.suffix import SuffixPredictor, most_likely
from tests.contracts.predictor import PredictorContract


def proposals(line: list[int], n: int, *, least: float = 0.0) -> list[DraftToken]:
    predictor = SuffixPredictor(min_confidence=least)
    predictor.reset(line)
    return list(islice(predictor.propose(), n))


def tokens(line: list[int], n: int, *, least: float = 0.0) -> list[int]:
    return [guess.token for guess in proposals(line, n, least=least)]


class TestSuffix(PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return SuffixPredictor(min_confidence=0.1)

    @pytest.fixture
    def line(self) -> list[int]:
        return [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]


def test_the_most_frequent_continuation_is_proposed_not_the_newest() -> None:
    line = [9, 1, 2, 10, 8, 1, 2, 10, 7, 1, 2, 20, 6, 1, 2]
    assert tokens(line, 1) == [10]


def test_one_place_that_agrees_far_outweighs_a_divided_crowd() -> None:
    far = [3, 4, 5, 6, 1, 2]
    line = [*far, 10, 9, 1, 2, 20, 8, 1, 2, 30, 7, 1, 2, 20, 0, *far]
    assert tokens(line, 1) == [10]


def test_the_confidence_is_the_smoothed_share_of_the_places() -> None:
    first, second = proposals([9, 1, 2, 10, 11, 8, 1, 2, 10, 12, 6, 1, 2], 2)
    assert first.confidence == pytest.approx(2 / (2 + 1 / 2))
    assert second.confidence == pytest.approx(1 / (2 + 1 / 3))


def test_the_draft_ends_where_it_is_no_longer_likely_enough() -> None:
    line = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]
    whole = proposals(line, 9)
    product = 1.0
    for n, guess in enumerate(whole):
        product *= guess.confidence
        assert len(proposals(line, 9, least=product + 1e-9)) == n


def test_a_loop_is_continued_beyond_the_end_of_the_line() -> None:
    assert tokens([1, 2, 3, 1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=12).map(
        lambda pairs: sorted(pairs, key=lambda pair: -pair[1])
    )
)
def test_no_depth_gives_a_token_more_than_the_reported_probability(
    places: list[tuple[int, int]],
) -> None:
    token, probability = most_likely([t for t, _ in places], [d for _, d in places])
    shares = [
        (sum(t == candidate for t, d in places if d >= depth) / (n + 1 / depth), candidate)
        for depth in {d for _, d in places}
        if (n := sum(d >= depth for _, d in places))
        for candidate in {t for t, _ in places}
    ]
    assert probability == pytest.approx(max(shares)[0])
    assert any(
        candidate == token and share == pytest.approx(probability) for share, candidate in shares
    )
