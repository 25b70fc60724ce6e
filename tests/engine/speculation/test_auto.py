import re
from functools import partial

import pytest

from engine.speculation.acceptance import Examined
from engine.speculation.asking import N_TRIAL, PROBE_EVERY
from engine.speculation.auto import OUTLOOK, AutoController
from engine.speculation.budget import START
from engine.speculation.controller import Controller, RoundOutcome
from engine.speculation.drafting_cost import DraftingCost, KnownCost
from engine.speculation.experience import Experience
from engine.speculation.predictors.base import DraftToken
from engine.speculation.profile import CostProfile
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
        return AutoController(Experience())


def plain_round(controller: Controller, seconds: float = 0.01) -> None:
    controller.observe(RoundOutcome(0, 0, 0, 1, verify_s=seconds))


def drafted_round(controller: Controller, guesses: int, right: int, steps: float) -> None:
    controller.wants("s")
    examined = tuple(Examined("s", 0.8, n, n < right) for n in range(min(right + 1, guesses)))
    controller.observe(
        RoundOutcome(
            n_verified=guesses,
            n_examined=len(examined),
            n_accepted=right,
            n_emitted=right + 1,
            n_drafted=guesses,
            draft_s=1e-5,
            verify_s=0.01 * steps,
            examined=examined,
        )
    )


def learn_switching(controller: Controller) -> None:
    """Show that the first plain step behind a draft takes 0.3 of a step longer."""
    for _ in range(8):
        drafted_round(controller, 1, 1, 1.3)
        plain_round(controller, 0.013)
        plain_round(controller)


def test_it_drafts_once_the_plain_step_is_known() -> None:
    controller = AutoController(Experience())
    assert not controller.wants("s")
    plain_round(controller)
    assert controller.wants("s")
    assert controller.n_to_verify([DraftToken(1, 0.8)]) == 1


def test_off_says_what_a_token_costs_and_tells_what_is_assumed_from_what_was_counted() -> None:
    controller = AutoController(Experience())
    plain_round(controller)
    for _ in range(3):
        drafted_round(controller, 1, 0, 1.6)
    assert controller.length == 0
    said = re.fullmatch(
        r"off: a drafted token costs 0.60 steps, taken as (\d+)% right \(0 of 3 guesses\)",
        controller.reason,
    )
    assert said is not None
    assert 0 < int(said[1]) < 80


def test_going_over_to_drafts_is_paid_once() -> None:
    known = Experience()
    controller = AutoController(known)
    learn_switching(controller)
    assert known.curve.switching == pytest.approx(0.3)
    guess = [DraftToken(1, 0.5)]
    known.acceptance.add([Examined("s", 0.5, 0, is_right=n % 2 == 0) for n in range(200)])
    known.budget.credit = 6.0
    assert controller.n_to_verify(guess) == 0
    drafted_round(controller, 1, 1, 1.3)
    assert controller.n_to_verify(guess) == 1


def test_the_credit_pays_for_going_over_to_drafts() -> None:
    known = Experience()
    controller = AutoController(known)
    learn_switching(controller)
    known.budget.credit = 3.0
    drafted_round(controller, 1, 0, 1.3)
    first = 3.0 - known.budget.credit
    drafted_round(controller, 1, 0, 1.3)
    second = 3.0 - first - known.budget.credit
    assert first - second == pytest.approx(0.3)


def test_off_for_want_of_credit_says_so() -> None:
    known = Experience()
    controller = AutoController(known)
    plain_round(controller)
    drafted_round(controller, 1, 1, 1.6)
    known.budget.credit = -20.0
    drafted_round(controller, 1, 1, 1.6)
    assert controller.length == 0
    assert controller.reason.startswith("off: ")
    assert controller.reason.endswith("steps, but too many were wrong lately")


def test_what_was_learned_outlives_a_reply() -> None:
    known = Experience()
    first = AutoController(known)
    plain_round(first)
    for _ in range(3):
        drafted_round(first, 1, 0, 1.6)
    second = AutoController(known)
    second.wants("s")
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


CHEAP = KnownCost(fixed=0.0, step=0.0005, catch_up=0.0, silence=0.0)
DEAR = KnownCost(fixed=0.0, step=0.08, catch_up=0.01, silence=0.0)


def knowing(source: KnownCost | None, *, share: float) -> tuple[AutoController, Experience]:
    """Give a controller of a GPU that knows a source's cost and its share of right guesses."""
    drafting = {} if source is None else {"s": source}
    known = Experience(CostProfile(0.01, tuple(GPU), drafting))
    for _ in range(3):
        known.curve.add(1, 0.01)
    for n in range(400):
        known.acceptance.add((Examined("s", 0.8, 0, n % 100 < 100 * share),))
    return AutoController(known), known


def test_a_source_of_unknown_cost_is_asked_once_the_plain_step_is_known() -> None:
    controller = AutoController(Experience())
    assert not controller.wants("s")
    assert not controller.wants("another")
    plain_round(controller)
    assert controller.wants("s")
    assert controller.wants("another")


def test_a_source_that_costs_time_is_asked_only_where_its_drafts_gain() -> None:
    assert knowing(DEAR, share=0.95)[0].wants("s")
    assert not knowing(DEAR, share=0.01)[0].wants("s")


def test_a_cheap_source_is_asked_in_passing_whatever_it_gains() -> None:
    assert knowing(CHEAP, share=0.01)[0].wants("s")


def test_a_source_that_is_off_is_asked_again_behind_a_pause() -> None:
    controller, _ = knowing(DEAR, share=0.01)
    asked = []
    for place in range(40):
        if controller.wants("s"):
            asked.append(place)
        plain_round(controller)
    assert asked[0] == PROBE_EVERY[0]


@pytest.mark.parametrize(("step", "n_probed"), [(0.03, N_TRIAL), (0.3, 1)])
def test_a_probe_of_a_source_whose_guesses_were_timed_alone_asks_for_as_many_as_it_may_cost(
    step: float, n_probed: int
) -> None:
    controller, known = knowing(None, share=0.01)
    known.drafting["s"] = DraftingCost()
    known.drafting["s"].add(1, 1, step)
    for _ in range(PROBE_EVERY[0]):
        controller.wants("s")
        plain_round(controller)
    assert controller.wants("s")
    guesses = [DraftToken(1, 0.8)]
    while controller.wants_another(guesses):
        guesses.append(DraftToken(1, 0.8))
    assert len(guesses) == n_probed


def restarted(source: KnownCost | None, *, share: float) -> tuple[AutoController, Experience]:
    """Such a controller, turned to the source."""
    controller, known = knowing(source, share=share)
    controller.wants("s")
    return controller, known


def test_all_is_caught_up_with_where_better_drafts_win_more_than_that_costs() -> None:
    controller, _ = restarted(DEAR, share=0.95)
    assert controller.affords_catch_up(1000)
    assert not restarted(DEAR, share=0.95)[0].affords_catch_up(100_000)
    assert not restarted(DEAR, share=0.01)[0].affords_catch_up(1000)


def test_nothing_is_caught_up_with_before_the_cost_is_known() -> None:
    controller, _ = restarted(None, share=0.95)
    assert not controller.affords_catch_up(21)


def test_what_a_catch_up_costs_is_charged_over_the_tokens_behind_it() -> None:
    controller, known = restarted(DEAR, share=0.95)
    assert controller.affords_catch_up(1000)
    assert known.budget.credit == START
    known.add_round(OUTLOOK // 2, OUTLOOK / 2)
    assert known.budget.credit == pytest.approx(START + 0.01 * OUTLOOK / 2 - 1000 * 0.01 / 2)


def test_a_further_catch_up_of_a_reply_stays_within_the_credit() -> None:
    controller, known = restarted(DEAR, share=0.95)
    assert controller.affords_catch_up(1000)
    assert controller.affords_catch_up(int(known.budget.credit / 0.01) - 1)
    assert not controller.affords_catch_up(int(known.budget.credit / 0.01) + 1)
