"""Who can draft for a session, and what is said where somebody cannot."""

from dataclasses import replace

import pytest

from engine.configuration import PredictorName, SamplingSettings, SpeculationSettings
from engine.errors import PresetError
from engine.sampling.sampler import Sampler
from engine.speculation.cost import PlainStep
from engine.speculation.predictors.guard import Barred
from engine.speculation.registry import Engaged, Roster
from tests.engine.generation.test_session import request
from tests.fakes import FakeBackend

LOOKUP = SpeculationSettings(PredictorName.LOOKUP)
READERS = [PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.COMBINED]


def engaged(roster: Roster, settings: SpeculationSettings) -> Engaged:
    return roster.engage(settings, request(), Sampler(SamplingSettings(), 0), PlainStep())


def test_the_choices_are_those_that_can_draft() -> None:
    off = PredictorName.OFF
    assert list(Roster(FakeBackend()).names(LOOKUP)) == [off, *READERS]
    with_draft = Roster(FakeBackend(), FakeBackend()).names(LOOKUP)
    assert list(with_draft) == [off, *READERS, PredictorName.DRAFT]
    named = replace(LOOKUP, custom_predictor="mine")
    assert list(Roster(FakeBackend()).names(named)) == [off, *READERS, PredictorName.CUSTOM]
    assert list(Roster(FakeBackend(can_crop=False)).names(named)) == [off]


@pytest.mark.parametrize("name", READERS)
def test_a_choice_is_engaged_under_its_name(name: PredictorName) -> None:
    made = engaged(Roster(FakeBackend()), replace(LOOKUP, predictor=name))
    assert made.name is name
    assert made.note is None
    assert made.predictor is not None
    assert made.predictor.name == name.value


def test_without_a_draft_model_its_predictor_is_off_with_the_reason() -> None:
    made = engaged(Roster(FakeBackend()), SpeculationSettings(PredictorName.DRAFT))
    assert made.name is PredictorName.OFF
    assert "not available with this model" in (made.note or "")


def test_what_is_barred_is_no_choice_and_is_off_with_the_reason() -> None:
    roster = Roster(FakeBackend(), barred=Barred("lookup", "it hung"))
    assert PredictorName.LOOKUP not in roster.names(LOOKUP)
    made = engaged(roster, LOOKUP)
    assert (made.name, made.predictor, made.note) == (PredictorName.OFF, None, "it hung")
    assert engaged(roster, replace(LOOKUP, predictor=PredictorName.SUFFIX)).note is None


def test_what_failed_is_off_for_the_same_choice_and_tried_again_for_a_new_one() -> None:
    roster = Roster(FakeBackend())
    roster.give_up(LOOKUP, "it failed")
    assert engaged(roster, LOOKUP).note == "it failed"
    assert engaged(roster, replace(LOOKUP)).name is PredictorName.LOOKUP


def test_nobody_is_busy_between_calls() -> None:
    roster = Roster(FakeBackend())
    assert roster.busy() is None
    assert engaged(roster, LOOKUP).predictor is not None
    assert roster.busy() is None


def test_settings_out_of_range_are_told_as_such() -> None:
    with pytest.raises(PresetError, match="lookup_pattern"):
        engaged(Roster(FakeBackend()), replace(LOOKUP, lookup_pattern_min=9, lookup_pattern_max=2))
