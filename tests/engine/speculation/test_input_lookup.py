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


def test_a_pattern_shorter_than_the_least_is_not_trusted() -> None:
    assert proposals([1, 5, 6, 2, 1], 3) == []
    assert proposals([1, 5, 6, 2, 1], 2, low=1) == [5, 6]


def test_agreement_beyond_the_longest_pattern_is_not_looked_at() -> None:
    line = [8, 7, 1, 2, 10, 5, 9, 1, 2, 20, 8, 7, 1, 2]
    assert proposals(line, 1, high=2) == [20]
    assert proposals(line, 1, high=4) == [10]


def test_a_loop_is_continued_beyond_the_end_of_the_line() -> None:
    assert proposals([1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(PresetError, match="lookup_pattern_min"):
        InputLookupPredictor(pattern_min=3, pattern_max=2)
    with pytest.raises(PresetError, match="lookup_length_min"):
        InputLookupPredictor(pattern_min=1, pattern_max=2, length_min=0, length_max=2)


def test_a_draft_ends_at_the_longest_length() -> None:
    predictor = InputLookupPredictor(pattern_min=2, pattern_max=4, length_max=3)
    predictor.reset([1, 2, 3, 4, 5, 6, 7, 1, 2])
    assert [guess.token for guess in predictor.propose()] == [3, 4, 5]


def test_a_match_with_too_few_tokens_after_it_does_not_count() -> None:
    line = [1, 2, 10, 11, 12, 13, 7, 1, 2, 20, 1, 2]
    near = InputLookupPredictor(pattern_min=2, pattern_max=2, length_min=3)
    far = InputLookupPredictor(pattern_min=2, pattern_max=2, length_min=4)
    for predictor in (near, far):
        predictor.reset(line)
    assert next(near.propose()).token == 20
    assert next(far.propose()).token == 10


@given(st.lists(st.integers(0, 3), min_size=3, max_size=60), st.integers(1, 3), st.integers(1, 5))
def test_the_index_finds_what_a_scan_finds(line: list[int], low: int, length_min: int) -> None:
    predictor = InputLookupPredictor(pattern_min=low, pattern_max=4, length_min=length_min)
    for start in range(0, len(line), 7):
        predictor.commit(line[start : start + 7])
        known = line[: start + 7]
        assert [guess.token for guess in islice(predictor.propose(), 1)] == scanned(
            known, low, length_min
        )


def scanned(line: list[int], low: int, length_min: int) -> list[int]:
    best: tuple[int, int] | None = None
    for place in range(low, len(line) - length_min + 1):
        n = 0
        while n < min(4, place) and line[place - 1 - n] == line[-1 - n]:
            n += 1
        if n >= low and (best is None or n >= best[0]):
            best = (n, place)
    return [] if best is None else [line[best[1]]]
