"""Who can draft for a session, and what is said where somebody cannot."""

from dataclasses import replace

import pytest

from engine.configuration import PredictorName, SamplingSettings, SpeculationSettings
from engine.errors import PresetError
from engine.sampling import Sampler
from engine.speculation.controller import FixedController
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.base import DisabledPredictor
from engine.speculation.registry import Engaged, Registry
from engine.testing import FakeBackend
from tests.engine.generation.test_session import request

LOOKUP = SpeculationSettings(PredictorName.LOOKUP)
READERS = [PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.COMBINED]


def engaged(registry: Registry, settings: SpeculationSettings) -> Engaged:
    return registry.engage(
        settings,
        request(),
        Sampler(SamplingSettings(), 0),
        controller=FixedController(1),
        plain_step=PlainStep(),
    )


def test_the_choices_are_those_that_can_draft() -> None:
    off = PredictorName.OFF
    assert list(Registry(FakeBackend()).names(LOOKUP)) == [off, *READERS]
    with_draft = Registry(FakeBackend(), FakeBackend()).names(LOOKUP)
    assert list(with_draft) == [off, *READERS, PredictorName.DRAFT]
    named = replace(LOOKUP, custom_predictor="mine")
    assert list(Registry(FakeBackend()).names(named)) == [off, *READERS, PredictorName.CUSTOM]
    assert list(Registry(FakeBackend(can_crop=False)).names(named)) == [off]


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        (PredictorName.LOOKUP, ["lookup"]),
        (PredictorName.SUFFIX, ["suffix"]),
        (PredictorName.COMBINED, ["suffix", "past", "draft"]),
        (PredictorName.DRAFT, ["draft"]),
    ],
)
def test_a_choice_is_engaged_under_its_name(name: PredictorName, sources: list[str]) -> None:
    made = engaged(Registry(FakeBackend(), FakeBackend()), replace(LOOKUP, predictor=name))
    assert made.name is name
    assert made.note is None
    assert [source.name for source in made.sources] == sources


def test_several_sources_go_without_a_draft_model_where_none_is_loaded() -> None:
    made = engaged(Registry(FakeBackend()), replace(LOOKUP, predictor=PredictorName.COMBINED))
    assert [source.name for source in made.sources] == ["suffix", "past"]


def test_without_a_draft_model_its_predictor_is_off_with_the_reason() -> None:
    made = engaged(Registry(FakeBackend()), SpeculationSettings(PredictorName.DRAFT))
    assert made.name is PredictorName.OFF
    assert "not available with this model" in (made.note or "")


def test_what_is_barred_is_no_choice_and_is_off_with_the_reason() -> None:
    registry = Registry(FakeBackend(), disabled_predictor=DisabledPredictor("lookup", "it hung"))
    assert PredictorName.LOOKUP not in registry.names(LOOKUP)
    made = engaged(registry, LOOKUP)
    assert (made.name, made.sources, made.note) == (PredictorName.OFF, (), "it hung")
    assert engaged(registry, replace(LOOKUP, predictor=PredictorName.SUFFIX)).note is None


def test_what_failed_is_off_for_the_same_choice_and_tried_again_for_a_new_one() -> None:
    registry = Registry(FakeBackend())
    registry.give_up(LOOKUP, "it failed")
    assert engaged(registry, LOOKUP).note == "it failed"
    assert engaged(registry, replace(LOOKUP)).name is PredictorName.LOOKUP


def test_nobody_is_busy_between_calls() -> None:
    registry = Registry(FakeBackend())
    assert registry.busy() is None
    assert engaged(registry, LOOKUP).sources
    assert registry.busy() is None


def test_settings_out_of_range_are_told_as_such() -> None:
    with pytest.raises(PresetError, match="lookup_pattern"):
        engaged(
            Registry(FakeBackend()), replace(LOOKUP, lookup_pattern_min=9, lookup_pattern_max=2)
        )
