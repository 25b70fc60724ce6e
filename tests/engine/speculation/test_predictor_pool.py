"""The available predictors of a session, and the reason if there is none."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from engine.configuration import (
    PREDICTORS,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
    predictor_named,
)
from engine.errors import PresetError
from engine.sampling import Sampler
from engine.speculation.costs import Costs
from engine.speculation.drafter import Drafter
from engine.speculation.predictor_pool import PredictorPool, PredictorSet, look_up, suffixes
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.input_lookup import InputLookupPredictor
from engine.testing import FakeBackend

BASE = SpeculationSettings(n_draft=5)
LOOKUP = SpeculationSettings(PredictorName.LOOKUP, lookup_pattern_min=2)
PAGE = Path(__file__).parents[3] / "docs" / "speculation.md"
MINE = InputLookupPredictor(pattern_min=1, pattern_max=2)


def made(
    target: FakeBackend | None = None,
    *,
    draft: FakeBackend | None = None,
    custom: Predictor | None = None,
) -> PredictorSet:
    return PredictorSet(target or FakeBackend(), Costs(), draft=draft, custom=custom)


def engaged(predictors: PredictorSet, settings: SpeculationSettings) -> Drafter:
    return predictors.engage(settings, Sampler(SamplingSettings(), 0))


@pytest.mark.parametrize("name", PredictorName)
def test_a_predictor_is_on_the_page_and_can_be_made(name: PredictorName) -> None:
    if name is not PredictorName.OFF:
        assert f"| `{name}` |" in PAGE.read_text(), "docs/speculation.md has a row for it"
    everything = made(draft=FakeBackend(), custom=MINE)
    assert name in everything.names
    drafter = engaged(everything, replace(LOOKUP, predictor=name))
    assert (drafter.predictor, drafter.note) == (name, None)
    assert drafter.is_on is (name is not PredictorName.OFF)


@pytest.mark.parametrize("name", [PredictorName.DRAFT, PredictorName.CUSTOM])
def test_what_is_not_there_is_off_with_the_reason(name: PredictorName) -> None:
    drafter = engaged(made(), SpeculationSettings(name))
    assert drafter.predictor is PredictorName.OFF
    assert drafter.note


def test_a_draft_model_goes_with_one_reply_at_a_time() -> None:
    pool = PredictorPool(FakeBackend(), Costs(), draft=FakeBackend())
    first, second = pool.acquire("a"), pool.acquire("b")
    drafting = SpeculationSettings(PredictorName.DRAFT)
    assert engaged(first, drafting).note is None
    assert engaged(second, drafting).note
    pool.release(second)
    pool.release(first)
    assert pool.acquire("b") is first


def test_the_settings_reach_the_predictors() -> None:
    predictor = look_up(replace(LOOKUP, lookup_length_min=2, lookup_length_max=3))
    predictor.reset([1, 2, 3, 4, 5, 6, 1, 2])
    assert [guess.token for guess in predictor.propose()] == [3, 4, 5]
    predictor.reset([1, 2, 9, 1, 2, 1, 2])
    assert next(predictor.propose()).token == 1
    for least, n_guesses in ((0.0, 5), (0.5, 2), (1.0, 0)):
        predictor = suffixes(replace(LOOKUP, suffix_min_confidence=least))
        predictor.reset([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
        assert len(list(islice(predictor.propose(), 5))) == n_guesses


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_name_is_a_predictor(name: str) -> None:
    assert predictor_named(f" {name} ") is PredictorName(name)


@pytest.mark.parametrize("name", ["", "custom", "custom:mine", "lookup:x", "Lookup", "nonsense"])
def test_anything_else_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(PresetError):
        predictor_named(name)


@pytest.mark.parametrize("name", ["mtp", "draft-mtp", "eagle3"])
def test_a_head_is_refused_with_the_reason_and_a_way(name: str) -> None:
    with pytest.raises(PresetError, match="llama-server"):
        predictor_named(name)
