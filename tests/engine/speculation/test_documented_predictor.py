"""The predictor in docs/speculation.md works as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.speculation.predictors.base import Predictor
from engine.testing import FakeBackend, FakeVocabulary
from tests.contracts.predictor import PredictorContract
from tests.support.sessions import OFF, finished, make_session, request, rounds, run

DOCUMENT = Path(__file__).parents[3] / "docs" / "speculation.md"
TEXT = DOCUMENT.read_text()
SOURCE = re.search(r"```python\n# successor.py\n(.*?)```", TEXT, re.DOTALL)
SETTINGS = SpeculationSettings(PredictorName.CUSTOM, controller=ControllerName.FIXED)
FEW_LETTERS = FakeVocabulary(4, ord("a"))


def successor() -> Predictor:
    assert SOURCE is not None
    names: dict[str, Any] = {}
    exec(compile(SOURCE[1], "successor.py", "exec"), names)
    made: Predictor = names["Successor"]()
    return made


class TestItKeepsTheContract(PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        return successor()

    @pytest.fixture
    def line(self) -> list[int]:
        return [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


def test_its_drafts_are_accepted_and_the_text_is_the_plain_one() -> None:
    def target() -> FakeBackend:
        return FakeBackend(FEW_LETTERS, sharpness=3.0, order=2, end_bias=-30.0)

    plain = finished(run(make_session(OFF, target=target()), request("abab")))
    events = run(make_session(SETTINGS, target=target(), custom=successor()), request("abab"))
    assert finished(events).token_ids == plain.token_ids
    assert sum(each.n_accepted for each in rounds(events)) > 0
    assert {each.source for each in rounds(events)} - {None} == {"successor"}
    assert finished(events).stats.predictor == "custom"
