import pytest

from engine.configuration import ControllerName, SpeculationSettings
from engine.errors import PresetError
from engine.speculation.auto import AutoController
from engine.speculation.controller import RoundOutcome
from engine.speculation.drafter import make_controller
from engine.speculation.experience import Experience


def test_lengths_outside_the_limits_are_refused() -> None:
    with pytest.raises(PresetError, match="n_draft is 0"):
        make_controller(
            SpeculationSettings(controller=ControllerName.FIXED, n_draft=0), Experience()
        )
    with pytest.raises(PresetError, match="n_draft_max is 99"):
        make_controller(
            SpeculationSettings(controller=ControllerName.BAND, n_draft_max=99), Experience()
        )


def test_the_automatic_rule_goes_on_with_what_the_session_knows() -> None:
    known = Experience()
    settings = SpeculationSettings(controller=ControllerName.AUTO)
    controller = make_controller(settings, known)
    assert isinstance(controller, AutoController)
    controller.observe(RoundOutcome(0, 0, 0, 1, verify_s=0.01))
    assert known.curve.plain_s == 0.01
