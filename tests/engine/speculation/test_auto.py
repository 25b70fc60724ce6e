from functools import partial

import pytest

from engine.speculation.acceptance import Examined
from engine.speculation.auto import AutoController
from engine.speculation.controller import Controller, RoundOutcome
from engine.speculation.experience import Experience
from engine.speculation.predictors.base import DraftToken
from tests.contracts.controller import ControllerContract
from tests.speculation_simulator import (
    GPU,
    LARGE_DRAFT,
    LOOKUP,
    SMALL_DRAFT,
    TWO_CORES,
    Curve,
    Source,
    World,
    play_auto,
    steady,
)


class TestAuto(ControllerContract):
    drafts_at_once = False

    def make(self) -> Controller:
        return AutoController("s", Experience())


def plain_round(controller: Controller, seconds: float = 0.01) -> None:
    controller.observe(RoundOutcome(0, 0, 0, 1, verify_s=seconds))


def drafted_round(controller: Controller, guesses: int, right: int, steps: float) -> None:
    examined = tuple(Examined(0.8, n, n < right) for n in range(min(right + 1, guesses)))
    controller.observe(
        RoundOutcome(
            n_drafted=guesses,
            n_examined=len(examined),
            n_accepted=right,
            n_emitted=right + 1,
            n_pulled=guesses,
            draft_s=1e-5,
            verify_s=0.01 * steps,
            examined=examined,
        )
    )


def test_it_drafts_once_the_plain_step_is_known() -> None:
    controller = AutoController("s", Experience())
    assert not controller.wants_another(())
    plain_round(controller)
    assert controller.wants_another(())
    assert controller.n_worth_verifying([DraftToken(1, 0.8)]) == 1


def test_off_says_what_a_token_costs_and_how_often_it_is_right() -> None:
    controller = AutoController("s", Experience())
    plain_round(controller)
    for _ in range(3):
        drafted_round(controller, 1, 0, 1.6)
    assert controller.length == 0
    assert controller.reason.startswith("off: a drafted token costs 0.60 of a step and is right ")
    assert controller.reason.endswith("% of the time")


def test_what_was_learned_outlives_a_reply() -> None:
    known = Experience()
    first = AutoController("s", known)
    plain_round(first)
    for _ in range(3):
        drafted_round(first, 1, 0, 1.6)
    second = AutoController("s", known)
    plain_round(second)
    assert second.length == 0


@pytest.mark.parametrize("curve", [TWO_CORES, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("source", [LOOKUP, SMALL_DRAFT, LARGE_DRAFT], ids=["l", "s", "d"])
def test_hopeless_guesses_hardly_cost_anything(curve: Curve, source: Source) -> None:
    for seed in range(3):
        played = play_auto(World(curve, steady(0.05), source, seed=seed), 600)
        assert played.speed >= 0.97


def test_it_drafts_long_where_guesses_are_right_and_batches_cheap() -> None:
    make = partial(World, GPU, steady(0.95))
    assert max(play_auto(make(seed=1), 400).lengths) == 16
    assert play_auto(make(seed=1), 400).speed > 4
