"""`auto`: which source it asks when, and how long its drafts are."""

import re

import pytest

from engine.speculation.acceptance import Examined
from engine.speculation.auto import N_PROBE, PROBE_LOSS, AutoController
from engine.speculation.controller import Controller
from engine.speculation.costs import CostProfile, Costs, KnownCost
from engine.speculation.predictors.base import DraftToken
from tests.contracts.controller import ControllerContract
from tests.support.rounds import a_round
from tests.support.speculation_simulator import GPU


class TestAuto(ControllerContract):
    drafts_at_once = False

    def make(self) -> Controller:
        return AutoController()


def plain_round(controller: AutoController) -> None:
    controller.costs.rows.add(1, 0.01)
    controller.observe(a_round(0, 0, 0, 1, verify_s=0.01))


def refuted_round(controller: AutoController) -> None:
    controller.wants("s")
    controller.costs.rows.add(2, 0.016)
    done = a_round(1, 1, 0, 1, 1, draft_s=1e-5, verify_s=0.016)
    controller.observe(done, (Examined("s", 0.8, is_right=False),))


def test_it_drafts_once_the_plain_step_is_known() -> None:
    controller = AutoController()
    assert not controller.wants("s")
    plain_round(controller)
    assert controller.wants("s")
    assert controller.n_to_verify([DraftToken(1, 0.8)]) == 1


def test_the_reason_has_the_cost_and_the_counted_acceptance() -> None:
    controller = AutoController()
    plain_round(controller)
    for _ in range(6):
        refuted_round(controller)
    assert controller.length == 0
    cost, share, n_right, n_tried = re.findall(r"[\d.]+", controller.reason)
    assert (cost, n_right, n_tried) == ("0.60", "0", "6")
    assert 0 < int(share) < 80


DEAR = KnownCost(ask=0.0, step=0.08)


def knowing(*, share: float) -> AutoController:
    """A controller of a GPU that knows a source's cost and acceptance from an earlier run."""
    controller = AutoController(Costs(CostProfile(tuple(GPU), {"s": DEAR})))
    for _ in range(3):
        controller.costs.rows.add(1, 0.01)
    for n in range(400):
        controller.acceptance.add((Examined("s", 0.8, n % 100 < 100 * share),))
    controller.wants("s")
    plain_round(controller)
    return controller


def test_saved_costs_are_used_from_the_first_reply_on() -> None:
    assert knowing(share=0.95).length > 4


def test_a_source_that_does_not_gain_is_asked_for_a_share_of_the_time() -> None:
    controller = knowing(share=0.01)
    asked = []
    for place in range(100):
        if controller.wants("s"):
            asked.append(place)
        plain_round(controller)
    interval = N_PROBE * DEAR.step / PROBE_LOSS
    assert asked[1] - asked[0] == pytest.approx(interval, abs=1)
