"""Predictor and controller, joined: who is asked, and by whom."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from engine.configuration import ControllerName, SpeculationSettings
from engine.speculation.auto import AutoController
from engine.speculation.controller import RoundOutcome
from engine.speculation.drafter import CombinedPredictor, Drafter
from engine.speculation.experience import Experience
from engine.speculation.predictors.base import DraftToken

AUTO = SpeculationSettings(controller=ControllerName.AUTO)
FIXED = SpeculationSettings(controller=ControllerName.FIXED, n_draft=2)


class Asking:
    """Counts how often it is asked, and asks whether it may catch up."""

    name = "asking"

    def __init__(self, *, is_silent: bool = False) -> None:
        self.n_asked = 0
        self._is_silent = is_silent
        self.affords: Callable[[int], bool] = bool

    def limit_catch_up(self, affords: Callable[[int], bool]) -> None:
        self.affords = affords

    def reset(self, history: Sequence[int]) -> None:
        pass

    def commit(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self) -> Iterator[DraftToken]:
        self.n_asked += 1
        while not self._is_silent:
            yield DraftToken(1, 0.8)

    def close(self) -> None:
        pass


def plain_round(drafter: Drafter) -> None:
    drafter.observe(RoundOutcome(0, 0, 0, 1, verify_s=0.01), [5])


def test_nobody_is_asked_without_leave_of_the_controller() -> None:
    source = Asking()
    drafter = Drafter(source, AUTO)
    drafter.reset([1, 2], n_plain_steps=0)
    assert drafter.draft(8) == ()
    assert source.n_asked == 0
    plain_round(drafter)
    drafter.draft(8)
    assert source.n_asked == 1


def test_sources_behind_one_predictor_ask_for_themselves() -> None:
    source = Asking()
    inner = CombinedPredictor([source], min_confidence=0.1)
    drafter = Drafter(inner, AUTO)
    drafter.reset([1, 2], n_plain_steps=0)
    assert drafter.draft(8) == ()
    assert source.n_asked == 0
    plain_round(drafter)
    drafter.draft(8)
    assert source.n_asked == 1
    assert drafter.sources[0] == "asking"


def test_leave_is_asked_once_a_round_and_for_the_source_that_guesses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []
    monkeypatch.setattr(AutoController, "wants_source", lambda _, name: names.append(name))
    for predictor in (Asking(), CombinedPredictor([Asking()], min_confidence=0.1)):
        drafter = Drafter(predictor, AUTO)
        drafter.reset([1, 2], n_plain_steps=0)
        drafter.draft(8)
    assert names == ["asking", "asking"]


def test_a_rule_of_one_length_asks_everybody_and_affords_everything() -> None:
    source = Asking()
    drafter = Drafter(CombinedPredictor([source], min_confidence=0.1), FIXED)
    drafter.reset([1, 2], n_plain_steps=0)
    assert len(drafter.draft(8)) == 2
    assert source.affords(1_000_000)


@pytest.mark.parametrize(("n_known", "n_forced"), [(0, 3), (1, 2), (3, 0)])
def test_a_rule_of_one_length_takes_plain_steps_until_their_spread_is_known(
    n_known: int, n_forced: int
) -> None:
    drafter = Drafter(Asking(), FIXED)
    drafter.reset([1, 2], n_plain_steps=n_known)
    lengths = []
    for _ in range(12):
        n_drafted = len(drafter.draft(8))
        lengths.append(n_drafted)
        drafter.observe(RoundOutcome(n_drafted, 0, 0, 1, verify_s=0.01), [5])
    assert lengths[:4] == [2] * 4
    assert lengths[4 : 4 + n_forced] == [0] * n_forced
    assert lengths[4 + n_forced :] == [2] * (8 - n_forced)


def test_the_automatic_rule_says_whether_a_source_may_catch_up() -> None:
    source = Asking()
    drafter = Drafter(CombinedPredictor([source], min_confidence=0.1), AUTO)
    drafter.reset([1, 2], n_plain_steps=0)
    assert not source.affords(1_000_000)


def test_what_a_silent_source_took_is_learned_as_silence() -> None:
    source, known = Asking(is_silent=True), Experience()
    drafter = Drafter(source, AUTO, known)
    drafter.reset([1, 2], n_plain_steps=0)
    plain_round(drafter)
    for _ in range(3):
        assert drafter.draft(8) == ()
        drafter.observe(RoundOutcome(0, 0, 0, 1, draft_s=0.002, verify_s=0.01), [5])
    assert known.drafting["asking"].silence == pytest.approx(0.2)
    assert known.drafting["asking"].step is None
