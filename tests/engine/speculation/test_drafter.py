"""How many guesses a round asks for, and which settings are refused."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from engine.configuration import ControllerName, SpeculationSettings
from engine.errors import PresetError
from engine.speculation.auto import AutoController
from engine.speculation.costs import Costs
from engine.speculation.drafter import MIN_VERIFIED, Drafter
from engine.speculation.predictor_pool import make_controller
from engine.speculation.predictors.base import DraftToken
from tests.support.rounds import a_round

FIXED = SpeculationSettings(controller=ControllerName.FIXED, n_draft=2)


class Endless:
    """Guesses ones without end, and counts them."""

    name = "endless"
    n_pulled = 0

    def reset(self, history: Sequence[int]) -> None: ...

    def commit(self, tokens: Sequence[int]) -> None: ...

    def propose(self) -> Iterator[DraftToken]:
        while True:
            self.n_pulled += 1
            yield DraftToken(1, 0.8)


def drafting(
    source: Endless, costs: Costs | None = None, settings: SpeculationSettings = FIXED
) -> Drafter:
    drafter = Drafter((source,), make_controller(settings, AutoController(costs)), settings)
    drafter.reset([1, 2])
    return drafter


def test_a_source_is_pulled_one_token_at_a_time() -> None:
    source = Endless()
    drafting(source).draft(8)
    assert source.n_pulled == 2


@pytest.mark.parametrize(("n_known", "n_forced"), [(0, 3), (1, 2), (3, 0)])
def test_a_rule_of_one_length_takes_plain_steps_until_their_spread_is_known(
    n_known: int, n_forced: int
) -> None:
    costs = Costs()
    for _ in range(n_known):
        costs.plain.add(0.01)
    drafter = drafting(Endless(), costs)
    lengths = []
    for _ in range(12):
        n_verified = len(drafter.draft(8).tokens)
        lengths.append(n_verified)
        costs.rows.add(1 + n_verified, 0.01)
        drafter.observe(a_round(n_verified, 0, 0, 1, verify_s=0.01), [5])
    assert lengths == [2] * 4 + [0] * n_forced + [2] * (8 - n_forced)


@pytest.mark.parametrize(("least", "is_on"), [(0.0, True), (0.3, True), (0.6, False)])
def test_drafts_end_for_the_reply_below_the_least_acceptance(least: float, is_on: bool) -> None:
    drafter = drafting(Endless(), settings=replace(FIXED, min_acceptance=least))
    for n in range(MIN_VERIFIED // 2):
        assert drafter.is_on, f"{2 * n} tokens are too few"
        drafter.observe(a_round(2, 2, 1, 2), [1, 5])
    assert drafter.is_on is is_on
    assert (drafter.note is None) is is_on


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (SpeculationSettings(controller=ControllerName.FIXED, n_draft=0), "n_draft"),
        (SpeculationSettings(n_draft_max=99), "n_draft_max"),
        (SpeculationSettings(suffix_min_confidence=1.5), "suffix_min_confidence"),
        (SpeculationSettings(draft_min_confidence=-0.1), "draft_min_confidence"),
    ],
)
def test_values_outside_their_limits_are_refused(settings: SpeculationSettings, name: str) -> None:
    with pytest.raises(PresetError, match=name):
        make_controller(settings, AutoController())
