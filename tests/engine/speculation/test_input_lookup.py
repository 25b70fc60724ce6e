from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PresetError
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from tests.contracts.predictor import PredictorContract


def proposals(line: list[int], n: int, *, low: int = 2, high: int = 8) -> list[int]:
    predictor = InputLookupPredictor(pattern_min=low, pattern_max=high)
    predictor.reset(line)
    return [guess.token for guess in islice(predictor.propose(), n)]


class TestInputLookup(PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return InputLookupPredictor(pattern_min=2, pattern_max=8)

    @pytest.fixture
    def line(self) -> list[int]:
        return [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]


def test_it_goes_on_as_the_line_did_before() -> None:
    assert proposals([1, 2, 3, 4, 5, 9, 9, 1, 2], 3) == [3, 4, 5]


def test_the_longest_agreement_wins() -> None:
    line = [7, 1, 2, 10, 11, 5, 1, 2, 20, 21, 7, 1, 2]
    assert proposals(line, 2) == [10, 11]


def test_the_newest_of_equal_agreements_wins() -> None:
    line = [1, 2, 10, 0, 3, 1, 2, 20, 0, 4, 1, 2]
    assert proposals(line, 1) == [20]


def test_a_pattern_shorter_than_the_least_is_not_trusted() -> None:
    assert proposals([1, 5, 6, 2, 1], 3) == []
    assert proposals([1, 5, 6, 2, 1], 2, low=1) == [5, 6]


def test_agreement_beyond_the_longest_pattern_is_not_looked_at() -> None:
    line = [8, 7, 1, 2, 10, 5, 9, 1, 2, 20, 8, 7, 1, 2]
    assert proposals(line, 1, high=2) == [20]
    assert proposals(line, 1, high=4) == [10]


def test_a_loop_is_continued_beyond_the_end_of_the_line() -> None:
    assert proposals([1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]


def test_impossible_pattern_lengths_are_refused() -> None:
    with pytest.raises(PresetError, match="lookup_pattern_min is 3"):
        InputLookupPredictor(pattern_min=3, pattern_max=2)


@given(st.lists(st.integers(0, 3), min_size=3, max_size=60), st.integers(1, 3))
def test_the_index_finds_what_a_scan_finds(line: list[int], low: int) -> None:
    found = proposals(line, 1, low=low, high=4)
    best: tuple[int, int] | None = None
    for place in range(low, len(line)):
        n = 0
        while n < min(4, place) and line[place - 1 - n] == line[-1 - n]:
            n += 1
        if n >= low and (best is None or n >= best[0]):
            best = (n, place)
    assert found == ([] if best is None else [line[best[1]]])
