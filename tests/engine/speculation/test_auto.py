"""`auto`: its credit, when it asks whom, and how long its drafts are."""

import random
import re

import pytest

from engine.speculation.acceptance import Examined
from engine.speculation.auto import (
    LOSS,
    PROBE_EVERY,
    START,
    AutoController,
    Credit,
    DraftSource,
    best_length,
)
from engine.speculation.controller import Controller
from engine.speculation.costs import CostProfile, Costs, DraftCost, KnownCost
from engine.speculation.predictors.base import DraftToken
from tests.contracts.controller import ControllerContract
from tests.support import speculation_simulator as simulator
from tests.support.rounds import a_round
from tests.support.speculation_simulator import (
    GPU,
    LARGE_DRAFT,
    LOOKUP,
    SMALL_DRAFT,
    TWO_CORES,
    Curve,
    World,
    play_auto,
    steady,
)


class TestAuto(ControllerContract):
    drafts_at_once = False

    def make(self) -> Controller:
        return AutoController()


def plain_round(controller: AutoController, seconds: float = 0.01) -> None:
    controller.costs.add(1, seconds)
    controller.observe(a_round(0, 0, 0, 1, verify_s=seconds))


def drafted_round(controller: AutoController, guesses: int, right: int, steps: float) -> None:
    controller.wants("s")
    examined = tuple(Examined("s", 0.8, n < right) for n in range(min(right + 1, guesses)))
    controller.costs.add(1 + guesses, 0.01 * steps)
    controller.observe(
        a_round(
            n_verified=guesses,
            n_examined=len(examined),
            n_accepted=right,
            n_emitted=right + 1,
            n_drafted=guesses,
            draft_s=1e-5,
            verify_s=0.01 * steps,
        ),
        examined,
    )


def test_it_drafts_once_the_plain_step_is_known() -> None:
    controller = AutoController()
    assert not controller.wants("s")
    plain_round(controller)
    assert controller.wants("s")
    assert controller.n_to_verify([DraftToken(1, 0.8)]) == 1


def test_off_says_what_a_token_costs_and_tells_what_is_assumed_from_what_was_counted() -> None:
    controller = AutoController()
    plain_round(controller)
    for _ in range(6):
        drafted_round(controller, 1, 0, 1.6)
    assert controller.length == 0
    cost, share, n_right, n_guesses = re.findall(r"[\d.]+", controller.reason)
    assert (cost, n_right, n_guesses) == ("0.60", "0", "6")
    assert 0 < int(share) < 80


def test_what_was_learned_outlives_a_reply() -> None:
    controller = AutoController()
    plain_round(controller)
    for _ in range(8):
        drafted_round(controller, 1, 0, 1.6)
    controller.start_reply()
    assert controller.length == 0
    controller.wants("s")
    plain_round(controller)
    assert controller.length == 0


@pytest.mark.parametrize("curve", [TWO_CORES, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("source", [LOOKUP, SMALL_DRAFT, LARGE_DRAFT], ids=["l", "s", "d"])
def test_hopeless_guesses_hardly_cost_anything(curve: Curve, source: simulator.Source) -> None:
    for seed in range(3):
        played = play_auto(World(curve, steady(0.05), source, seed=seed), 600)
        assert played.speed >= 0.97


DEAR = KnownCost(fixed=0.0, step=0.08, catch_up=0.01, silence=0.0)


def knowing(source: KnownCost | None, *, share: float) -> AutoController:
    """A controller of a GPU that knows a source's cost and its share of right guesses."""
    drafting = {} if source is None else {"s": source}
    controller = AutoController(Costs(CostProfile(0.01, tuple(GPU), drafting)))
    for _ in range(3):
        controller.costs.add(1, 0.01)
    for n in range(400):
        controller.acceptance.add((Examined("s", 0.8, n % 100 < 100 * share),))
    return controller


def test_a_source_that_costs_time_is_asked_only_where_its_drafts_gain() -> None:
    assert knowing(DEAR, share=0.95).wants("s")
    assert not knowing(DEAR, share=0.01).wants("s")


def test_a_source_that_is_off_is_asked_again_behind_a_pause() -> None:
    controller = knowing(DEAR, share=0.01)
    asked = []
    for place in range(40):
        if controller.wants("s"):
            asked.append(place)
        plain_round(controller)
    assert asked[0] == PROBE_EVERY[0]


def asked(step: float | None, fixed: float = 0.0) -> DraftSource:
    known = None if step is None else KnownCost(fixed, step, 0.0, 0.0)
    return DraftSource(DraftCost(known))


def products(share: float, n: int = 16) -> list[float]:
    return [share ** (k + 1) for k in range(n)]


@pytest.mark.parametrize(("share", "expected"), [(0.59, 0), (0.61, 1), (0.95, 9)])
def test_a_token_is_drafted_while_it_is_right_more_often_than_it_costs(
    share: float, expected: int
) -> None:
    steps = [0.6 * (k + 1) for k in range(16)]
    assert best_length(products(share), steps, rate=1.0, credit=99.0) == expected


def test_the_worst_luck_costs_no_more_than_promised() -> None:
    rng = random.Random(3)
    credit, n_tokens, n_steps = Credit(), 0, 0.0
    for _ in range(2000):
        extra = rng.uniform(0.0, 4.0)
        spent = 1.0 + extra if extra <= credit.steps else 1.0
        credit.settle(1, spent)
        n_tokens, n_steps = n_tokens + 1, n_steps + spent
        assert n_steps <= (1 + LOSS) * n_tokens + START + 1e-9
    assert n_steps > n_tokens + START
