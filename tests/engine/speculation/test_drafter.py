"""How many guesses a round asks for, and which settings are refused."""

from collections.abc import Iterator, Sequence

import pytest

from engine.configuration import ControllerName, SpeculationSettings
from engine.errors import PresetError
from engine.speculation.auto import AutoController
from engine.speculation.drafter import Drafter, make_controller
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

    def close(self) -> None: ...


def drafting(source: Endless, n_plain_steps: int = 0) -> Drafter:
    drafter = Drafter((source,), make_controller(FIXED, AutoController()), FIXED)
    drafter.reset([1, 2], n_plain_steps=n_plain_steps)
    return drafter


def test_a_source_is_pulled_one_token_at_a_time() -> None:
    source = Endless()
    drafting(source).draft(8)
    assert source.n_pulled == 2


@pytest.mark.parametrize(("n_known", "n_forced"), [(0, 3), (1, 2), (3, 0)])
def test_a_rule_of_one_length_takes_plain_steps_until_their_spread_is_known(
    n_known: int, n_forced: int
) -> None:
    drafter = drafting(Endless(), n_plain_steps=n_known)
    lengths = []
    for _ in range(12):
        n_verified = len(drafter.draft(8).tokens)
        lengths.append(n_verified)
        drafter.observe(a_round(n_verified, 0, 0, 1, verify_s=0.01), [5])
    assert lengths == [2] * 4 + [0] * n_forced + [2] * (8 - n_forced)


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
