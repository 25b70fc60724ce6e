"""Who is to blame for a hang, and who is left in peace."""

import pytest

from engine.configuration import PredictorName, SpeculationSettings
from engine.process.watchdog import PATIENCE_WITH_A_DRAFT, hang_in_silence, hang_of
from engine.speculation.predictors.base import Busy

LIMIT_S = 15.0


def test_a_predictor_that_is_at_work_too_long_is_barred() -> None:
    assert hang_of(None, LIMIT_S) is None
    assert hang_of(Busy("lookup", LIMIT_S), LIMIT_S) is None
    hang = hang_of(Busy("lookup", LIMIT_S + 1), LIMIT_S)
    assert hang is not None
    assert hang.disabled_predictor is not None
    assert hang.disabled_predictor.title == "lookup"
    assert "16 s" in hang.message


def test_time_in_which_nothing_ran_is_no_work() -> None:
    assert hang_of(Busy("lookup", LIMIT_S + 60), LIMIT_S, lost_s=60.0) is None
    assert hang_of(Busy("lookup", LIMIT_S + 61), LIMIT_S, lost_s=60.0) is not None


@pytest.mark.parametrize("name", ["draft", "combined"])
def test_a_draft_model_may_read_a_long_chat(name: str) -> None:
    assert hang_of(Busy(name, LIMIT_S * PATIENCE_WITH_A_DRAFT), LIMIT_S) is None
    assert hang_of(Busy(name, LIMIT_S * PATIENCE_WITH_A_DRAFT + 1), LIMIT_S) is not None


@pytest.mark.parametrize("predictor", sorted(set(PredictorName) - {PredictorName.CUSTOM}))
def test_silence_is_not_blamed_on_our_own_predictors(predictor: PredictorName) -> None:
    assert hang_in_silence(SpeculationSettings(predictor), LIMIT_S).disabled_predictor is None


def test_silence_is_blamed_on_a_plugin() -> None:
    settings = SpeculationSettings(PredictorName.CUSTOM, custom_predictor="mine")
    disabled_predictor = hang_in_silence(settings, LIMIT_S).disabled_predictor
    assert disabled_predictor is not None
    assert disabled_predictor.title == settings.predictor_title == "custom:mine"
