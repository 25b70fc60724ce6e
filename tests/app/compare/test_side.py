"""How a side is written and read."""

import pytest

from app.compare.side import Side, SideError, plain_side, read_side, speculative_side
from engine.configuration import ControllerName, PredictorName, SpeculationSettings

BASE = SpeculationSettings(n_draft=3, lookup_pattern_min=4)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("off", "plain"),
        ("plain", "plain"),
        ("lookup", "lookup · auto"),
        ("lookup:fixed", "lookup · fixed 3"),
        ("Combined:Auto", "combined · auto"),
        ("draft:fixed:12", "draft · fixed 12"),
    ],
)
def test_a_side_is_read_from_a_few_words(text: str, label: str) -> None:
    side = read_side(text, BASE)
    assert side.label == label
    assert side.settings.lookup_pattern_min == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loookup", "there is no predictor 'loookup': use one of off, lookup"),
        ("lookup:fast", "fast is not one of fixed, auto"),
        ("lookup:fixed:40", "from 1 to 16"),
        ("lookup:fixed:x", "from 1 to 16"),
        ("", "there is no predictor"),
        ("lookup:fixed:4:5", "PREDICTOR:RULE:LENGTH"),
        ("lookup:", "nothing is not one of"),
    ],
)
def test_a_wrong_word_is_told_with_those_that_are_right(text: str, words: str) -> None:
    with pytest.raises(SideError, match=words):
        read_side(text, BASE)


def test_a_comparison_has_something_to_compare_even_where_drafting_is_off() -> None:
    off = SpeculationSettings(predictor=PredictorName.OFF)
    assert plain_side(BASE).is_plain
    assert speculative_side(BASE) == Side(BASE)
    assert speculative_side(off).settings.predictor is PredictorName.COMBINED
    assert speculative_side(off).settings.controller is ControllerName.AUTO
