from dataclasses import replace
from itertools import islice

import pytest

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import EngineError
from engine.speculation.predictors.suffix import PastRepliesPredictor
from engine.speculation.registry import Readers, make_reader

LOOKUP = SpeculationSettings(PredictorName.LOOKUP, lookup_pattern_min=2)


def test_the_same_settings_keep_the_index_of_the_last_reply() -> None:
    readers = Readers()
    first = readers.give(LOOKUP)
    assert readers.give(replace(LOOKUP)) is first
    assert readers.give(replace(LOOKUP, lookup_pattern_max=8)) is not first


def test_newer_replies_are_learnt_and_one_that_is_gone_is_forgotten() -> None:
    readers = Readers()
    combined = replace(LOOKUP, predictor=PredictorName.COMBINED)
    said, other = tuple(range(20)), (*range(10), 30, 31)

    def guesses(*replies: tuple[int, ...]) -> list[int]:
        predictor = readers.of_past(replies, combined)
        predictor.reset(range(10))
        return [guess.token for guess in islice(predictor.propose(), 2)]

    assert guesses(said) == [10, 11]
    assert guesses(said, *[said] * 4, other) == [10, 11]
    assert guesses(other) == [30, 31]
    assert guesses(other, (50, 51)) == [30, 31]
    assert guesses() == []
    assert guesses(other) == [30, 31]


def test_a_reply_more_extends_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = Readers()
    combined = replace(LOOKUP, predictor=PredictorName.COMBINED)
    readers.of_past(((1, 2, 3),), combined)
    learnt: list[tuple[tuple[int, ...], ...]] = []
    monkeypatch.setattr(PastRepliesPredictor, "learn", lambda self, replies: learnt.append(replies))
    readers.of_past(((1, 2, 3), (4, 5)), combined)
    assert learnt == [((4, 5),)]


@pytest.mark.parametrize("name", [PredictorName.LOOKUP, PredictorName.SUFFIX])
def test_each_name_gives_its_predictor(name: PredictorName) -> None:
    assert make_reader(SpeculationSettings(name)).name == name.value


def test_the_settings_reach_the_look_up() -> None:
    settings = replace(LOOKUP, lookup_length_min=2, lookup_length_max=3)
    predictor = make_reader(settings)
    predictor.reset([1, 2, 3, 4, 5, 6, 1, 2])
    assert [guess.token for guess in predictor.propose()] == [3, 4, 5]
    predictor.reset([1, 2, 1, 2])
    assert list(predictor.propose()) != []
    predictor.reset([1, 2, 9, 1, 2, 1, 2])
    assert next(predictor.propose()).token == 1


def test_the_settings_reach_the_suffixes() -> None:
    line = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    lengths = []
    for least in (0.0, 0.5, 1.0):
        predictor = make_reader(
            SpeculationSettings(PredictorName.SUFFIX, suffix_min_confidence=least)
        )
        predictor.reset(line)
        lengths.append(len(list(islice(predictor.propose(), 5))))
    assert lengths == [5, 2, 0]


def test_a_predictor_that_reads_no_chat_is_refused() -> None:
    with pytest.raises(EngineError, match="does not read"):
        make_reader(SpeculationSettings(PredictorName.DRAFT))
