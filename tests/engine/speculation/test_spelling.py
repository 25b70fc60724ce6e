"""What can be typed for a predictor, and what is said where nothing can be made of it."""

import pytest

from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import PresetError
from engine.speculation.registry import with_predictor

BASE = SpeculationSettings(n_draft=5)


@pytest.mark.parametrize("name", ["off", "lookup", "suffix", "combined", "draft"])
def test_a_name_is_a_predictor(name: str) -> None:
    settings = with_predictor(BASE, f" {name} ")
    assert settings.predictor is PredictorName(name)
    assert settings.n_draft == 5
    assert settings.predictor_title == name


def test_custom_and_a_name_is_a_plugin() -> None:
    settings = with_predictor(BASE, "custom:mine")
    assert (settings.predictor, settings.custom_predictor) == (PredictorName.CUSTOM, "mine")
    assert settings.predictor_title == "custom:mine"


@pytest.mark.parametrize("spelled", ["", "custom", "custom:", "lookup:x", "Lookup", "nonsense"])
def test_anything_else_is_refused_with_what_there_is(spelled: str) -> None:
    with pytest.raises(PresetError, match="off, lookup, suffix, combined, draft, custom:NAME"):
        with_predictor(BASE, spelled)


@pytest.mark.parametrize("spelled", ["mtp", "draft-mtp", "eagle3"])
def test_a_head_is_refused_with_the_reason_and_a_way(spelled: str) -> None:
    with pytest.raises(
        PresetError, match="hidden states, and kvchat's predictors are told"
    ) as caught:
        with_predictor(BASE, spelled)
    assert "llama-server" in str(caught.value)
