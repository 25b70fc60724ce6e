from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import pytest

from engine.speculation.drafter import CombinedPredictor, likely_part
from engine.speculation.predictors.base import DraftToken, Predictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from engine.speculation.predictors.suffix import SuffixPredictor
from tests.contracts.predictor import PredictorContract


class Saying:
    """Says the same guesses whatever the line is, and counts how often it is asked."""

    def __init__(self, name: str, *guesses: DraftToken) -> None:
        self.name = name
        self.guesses = guesses
        self.n_asked = 0
        self.line: list[int] = []
        self.is_closed = False

    def reset(self, history: Sequence[int]) -> None:
        self.line = list(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self.line += tokens

    def propose(self) -> Iterator[DraftToken]:
        self.n_asked += 1
        yield from self.guesses

    def close(self) -> None:
        self.is_closed = True


def guesses(*confidences: float, first: int = 0) -> list[DraftToken]:
    return [DraftToken(first + n, confidence) for n, confidence in enumerate(confidences)]


class TestCombined(PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        readers = (
            SuffixPredictor(min_confidence=0.1),
            InputLookupPredictor(pattern_min=2, pattern_max=8),
        )
        return CombinedPredictor(readers, min_confidence=0.1)

    @pytest.fixture
    def line(self) -> list[int]:
        return [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]


def test_the_larger_expectation_drafts_and_every_token_says_whose_it_is() -> None:
    short = Saying("short", *guesses(0.99))
    long = Saying("long", *guesses(0.9, 0.9, 0.9, first=10))
    combined = CombinedPredictor((short, long), min_confidence=0.5)
    assert [(guess.token, guess.source) for guess in combined.propose()] == [
        (10, "long"),
        (11, "long"),
        (12, "long"),
    ]


def test_what_a_draft_may_not_reach_is_not_expected_of_it() -> None:
    doubtful = Saying("doubtful", *guesses(0.8, 0.5, 0.9, 0.9, first=10))
    sure = Saying("sure", *guesses(0.9))
    combined = CombinedPredictor((doubtful, sure), min_confidence=0.5)
    assert {guess.source for guess in combined.propose()} == {"sure"}


def test_a_draft_model_is_asked_only_where_the_readers_are_silent() -> None:
    reader, model = Saying("reader", *guesses(0.9)), Saying("model", *guesses(0.4, 0.4, first=10))
    combined = CombinedPredictor((reader,), min_confidence=0.5, followers=[model])
    assert [guess.source for guess in combined.propose()] == ["reader"]
    assert model.n_asked == 0
    reader.guesses = ()
    assert [(guess.token, guess.source) for guess in combined.propose()] == [
        (10, "model"),
        (11, "model"),
    ]


def test_the_first_follower_with_a_guess_drafts() -> None:
    first, second, third = Saying("first"), Saying("second", *guesses(0.3)), Saying("third")
    combined = CombinedPredictor((), min_confidence=0.5, followers=[first, second, third])
    assert [guess.source for guess in combined.propose()] == ["second"]
    assert (first.n_asked, third.n_asked) == (1, 0)


def test_a_draft_model_is_pulled_one_token_at_a_time() -> None:
    pulled: list[int] = []

    class Slow(Saying):
        def propose(self) -> Iterator[DraftToken]:
            for n in range(5):
                pulled.append(n)
                yield DraftToken(n, 0.9)

    combined = CombinedPredictor((), min_confidence=0.5, followers=[Slow("model")])
    assert len(list(islice(combined.propose(), 2))) == 2
    assert pulled == [0, 1]


def test_every_source_follows_the_line() -> None:
    sources = [Saying("a"), Saying("b"), Saying("model")]
    combined = CombinedPredictor(sources[:2], min_confidence=0.5, followers=sources[2:])
    combined.reset([1, 2])
    combined.commit([3])
    combined.close()
    assert [source.line for source in sources] == [[1, 2, 3]] * 3
    assert all(source.is_closed for source in sources)


def test_the_expectation_is_the_sum_of_the_chances_that_all_are_right() -> None:
    draft, expected = likely_part(iter(guesses(0.8, 0.5, 0.5)), 0.3)
    assert [guess.token for guess in draft] == [0, 1]
    assert expected == pytest.approx(0.8 + 0.8 * 0.5)


def test_only_sources_with_leave_are_asked() -> None:
    best, other = Saying("best", *guesses(0.99, 0.99)), Saying("other", *guesses(0.9, first=10))
    model = Saying("model", *guesses(0.4, first=20))
    late = Saying("late", *guesses(0.4, first=30))
    combined = CombinedPredictor((best, other), min_confidence=0.5, followers=[model, late])
    allowed = {"other", "late"}
    combined.gate(lambda name: name in allowed)
    assert [guess.source for guess in combined.propose()] == ["other"]
    allowed.remove("other")
    assert [guess.source for guess in combined.propose()] == ["late"]
    assert (best.n_asked, model.n_asked) == (0, 0)


def test_each_source_is_asked_for_leave_once_and_no_follower_behind_a_draft() -> None:
    sources = [Saying("a", *guesses(0.9)), Saying("b"), Saying("model", *guesses(0.4))]
    combined = CombinedPredictor(sources[:2], min_confidence=0.5, followers=sources[2:])
    names: list[str] = []

    def note(name: str) -> bool:
        names.append(name)
        return True

    combined.gate(note)
    list(combined.propose())
    assert names == ["a", "b"]
    sources[0].guesses = ()
    list(combined.propose())
    assert names == ["a", "b", "a", "b", "model"]


def test_who_falls_behind_is_told_whom_to_ask() -> None:
    class Behind(Saying):
        affords: Callable[[int], bool] | None = None

        def limit_catch_up(self, affords: Callable[[int], bool]) -> None:
            self.affords = affords

    def affords(n_tokens: int) -> bool:
        return n_tokens < 100

    model = Behind("model")
    combined = CombinedPredictor([Saying("a")], min_confidence=0.5, followers=[model])
    combined.limit_catch_up(affords)
    assert model.affords is affords
