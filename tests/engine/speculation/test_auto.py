"""`auto`: its credit, when it asks whom, and how long its drafts are."""

import random
import re
from dataclasses import replace
from functools import partial

import pytest

from engine.speculation.acceptance import Examined
from engine.speculation.auto import (
    CHEAP,
    LIMIT,
    LOSS,
    N_PASSING,
    N_TRIAL,
    PASSING_LOSS,
    PROBE_EVERY,
    START,
    WON_FOR,
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
    said = re.fullmatch(
        r"off: a drafted token costs 0.60 steps, taken as (\d+)% right \(0 of 6 guesses\)",
        controller.reason,
    )
    assert said is not None
    assert 0 < int(said[1]) < 80


def test_off_for_want_of_credit_says_so() -> None:
    controller = AutoController()
    plain_round(controller)
    drafted_round(controller, 1, 1, 1.6)
    controller.credit.steps = -20.0
    drafted_round(controller, 1, 1, 1.6)
    assert controller.length == 0
    assert controller.reason.startswith("off: ")
    assert controller.reason.endswith("steps, but too many were wrong lately")


def test_what_was_learned_outlives_a_reply() -> None:
    controller = AutoController()
    plain_round(controller)
    for _ in range(8):
        drafted_round(controller, 1, 0, 1.6)
    controller.start_reply()
    assert controller.reason == "auto: measuring the plain step first"
    controller.wants("s")
    plain_round(controller)
    assert controller.length == 0


@pytest.mark.parametrize("curve", [TWO_CORES, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("source", [LOOKUP, SMALL_DRAFT, LARGE_DRAFT], ids=["l", "s", "d"])
def test_hopeless_guesses_hardly_cost_anything(curve: Curve, source: simulator.Source) -> None:
    for seed in range(3):
        played = play_auto(World(curve, steady(0.05), source, seed=seed), 600)
        assert played.speed >= 0.97


def test_it_drafts_long_where_guesses_are_right_and_batches_cheap() -> None:
    make = partial(World, GPU, steady(0.95))
    assert max(play_auto(make(seed=1), 400).lengths) == 16
    assert play_auto(make(seed=1), 400).speed > 4


CHEAP_COST = KnownCost(fixed=0.0, step=0.0005, catch_up=0.0, silence=0.0)
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


def test_a_source_of_unknown_cost_is_asked_once_the_plain_step_is_known() -> None:
    controller = AutoController()
    assert not controller.wants("s")
    assert not controller.wants("another")
    plain_round(controller)
    assert controller.wants("s")
    assert controller.wants("another")


def test_a_source_that_costs_time_is_asked_only_where_its_drafts_gain() -> None:
    assert knowing(DEAR, share=0.95).wants("s")
    assert not knowing(DEAR, share=0.01).wants("s")


def test_a_cheap_source_is_asked_in_passing_whatever_it_gains() -> None:
    assert knowing(CHEAP_COST, share=0.01).wants("s")


def test_a_source_that_is_off_is_asked_again_behind_a_pause() -> None:
    controller = knowing(DEAR, share=0.01)
    asked = []
    for place in range(40):
        if controller.wants("s"):
            asked.append(place)
        plain_round(controller)
    assert asked[0] == PROBE_EVERY[0]


def test_a_trial_asks_for_a_few_guesses_and_a_probe_for_one() -> None:
    trial, probed = knowing(None, share=0.01), knowing(DEAR, share=0.01)
    for _ in range(PROBE_EVERY[0]):
        probed.wants("s")
        plain_round(probed)
    for controller, n_asked in ((trial, N_TRIAL), (probed, 1)):
        assert controller.wants("s")
        guesses = [DraftToken(1, 0.8)]
        while controller.wants_another(guesses):
            guesses.append(DraftToken(1, 0.8))
        assert len(guesses) == n_asked


def test_where_a_batch_of_two_is_dear_a_probe_makes_guesses_that_only_the_line_judges() -> None:
    controller = knowing(DEAR, share=0.01)
    for n_rows in (2, 3, 4, 8, 17):
        for _ in range(3):
            controller.costs.add(n_rows, 0.01 * (3.0 + 0.05 * n_rows))
    for _ in range(PROBE_EVERY[0]):
        controller.wants("s")
        plain_round(controller)
    assert controller.wants("s")
    guesses = [DraftToken(1, 0.8)]
    while controller.wants_another(guesses):
        guesses.append(DraftToken(1, 0.8))
    assert len(guesses) == N_PASSING
    assert controller.n_to_verify(guesses) == 0
    plain = a_round(
        n_verified=0, n_examined=0, n_accepted=0, n_emitted=1, n_drafted=4, draft_s=0.003,
        verify_s=0.01,
    )  # fmt: skip
    controller.observe(plain)
    source = controller._sources["s"]
    assert source.awaits_probe
    assert not source.is_probe_due
    controller.wants("s")
    controller.observe(replace(plain, n_drafted=0), (Examined("s", 0.8, False),))
    assert not source.awaits_probe
    assert source.probe_after == 2 * PROBE_EVERY[0], "the line said that it was wrong"


def test_a_draft_is_right_up_to_a_place_if_all_before_it_are() -> None:
    controller = knowing(CHEAP_COST, share=0.5)
    controller.wants("s")
    plain_round(controller)
    share, length = controller.acceptance.share("s", 0.8), controller.length
    tokens = sum(share**n for n in range(length + 1))
    assert length > 1
    assert controller.reason.startswith(f"auto: {length} drafted should give {tokens:.1f} tokens")


def restarted(source: KnownCost | None, *, share: float) -> AutoController:
    """Such a controller, turned to the source."""
    controller = knowing(source, share=share)
    controller.wants("s")
    return controller


def test_all_is_caught_up_with_where_better_drafts_win_more_than_that_costs() -> None:
    controller = restarted(DEAR, share=0.95)
    assert controller.affords_catch_up(1000)
    assert not restarted(DEAR, share=0.95).affords_catch_up(100_000)
    assert not restarted(DEAR, share=0.01).affords_catch_up(1000)


def test_nothing_is_caught_up_with_before_the_cost_is_known() -> None:
    controller = restarted(None, share=0.95)
    assert not controller.affords_catch_up(21)


def test_a_first_catch_up_that_wins_leaves_the_credit_to_the_drafts_that_it_was_made_for() -> None:
    controller = restarted(DEAR, share=0.95)
    assert controller.affords_catch_up(1000)
    assert controller.credit.steps == START


def test_a_further_catch_up_of_a_reply_stays_within_the_credit_and_is_charged() -> None:
    controller = restarted(DEAR, share=0.95)
    assert controller.affords_catch_up(1000)
    n_left = int(START / DEAR.catch_up)
    assert not controller.affords_catch_up(n_left + 1)
    assert controller.affords_catch_up(n_left - 1)
    assert controller.credit.steps == pytest.approx(START - (n_left - 1) * DEAR.catch_up)


FIRST, LAST = PROBE_EVERY


def asked(step: float | None, fixed: float = 0.0) -> DraftSource:
    known = None if step is None else KnownCost(fixed, step, 0.0, 0.0)
    return DraftSource(DraftCost(known))


def test_a_source_is_known_once_its_cost_was_measured() -> None:
    source = asked(None)
    assert not source.is_known
    assert not source.is_cheap
    source.cost.add(4, 1, 0.004)
    assert not source.is_known
    source.cost.add(4, 1, 0.004)
    assert source.is_known
    assert source.is_cheap


def test_a_source_is_cheap_where_a_few_guesses_hardly_cost() -> None:
    assert asked(0.9 * CHEAP / N_PASSING).is_cheap
    assert not asked(1.1 * CHEAP / N_PASSING).is_cheap
    assert not asked(0.0, fixed=1.1 * CHEAP).is_cheap


def test_behind_a_draft_that_paid_a_cheap_source_is_asked_in_every_round() -> None:
    source = asked(0.01)
    source.tokens_since_won = 0
    for _ in range(WON_FOR):
        assert source.is_turn
        source.end_round(1, was_asked=True)
    assert source.is_turn
    source.end_round(1, was_asked=True)
    assert not source.is_turn


def test_a_cheap_source_is_asked_in_the_first_rounds_of_a_reply() -> None:
    source = asked(0.01)
    for _ in range(10):
        assert source.is_turn
        source.end_round(1, was_asked=True)


def test_a_cheap_source_that_is_off_takes_a_small_share_of_the_time() -> None:
    source = asked(0.01)
    source.end_round(WON_FOR + 1, was_asked=True)
    n_asked = 0
    for _ in range(1000):
        is_turn = source.is_turn
        n_asked += is_turn
        source.end_round(1, was_asked=is_turn)
    assert 0.7 * PASSING_LOSS < n_asked * 0.01 * N_PASSING / 1000 <= PASSING_LOSS


def test_a_source_that_costs_nothing_is_always_asked() -> None:
    source = asked(0.0)
    source.end_round(1000, was_asked=True)
    assert source.is_turn


def test_a_probe_is_due_behind_a_pause_of_some_tokens() -> None:
    source = asked(0.3)
    source.end_round(FIRST - 1, was_asked=False)
    assert not source.is_probe_due
    source.end_round(1, was_asked=False)
    assert source.is_probe_due


def test_wrong_probes_become_rarer_and_a_right_one_frequent_again() -> None:
    source = asked(0.3)
    pauses = []
    for _ in range(5):
        source.end_probe(was_right=False)
        pauses.append(source.probe_after)
    assert pauses == [2 * FIRST, 4 * FIRST, 8 * FIRST, LAST, LAST]
    source.end_probe(was_right=True)
    assert source.probe_after == FIRST


def test_drafts_that_gain_end_the_pause() -> None:
    source = asked(0.3)
    source.end_probe(was_right=False)
    source.end_round(100, was_asked=False)
    source.wakes()
    assert (source.probe_after, source.tokens_off) == (FIRST, 0)


def test_what_a_source_missed_is_counted_from_its_first_guess_on() -> None:
    source = asked(0.3)
    source.end_round(5, was_asked=False)
    assert source.n_behind is None
    source.end_round(3, was_asked=True)
    assert source.n_behind == 3
    source.end_round(4, was_asked=False)
    assert source.n_behind == 7
    source.end_round(2, was_asked=True)
    assert source.n_behind == 2


def products(share: float, n: int = 16) -> list[float]:
    return [share ** (k + 1) for k in range(n)]


@pytest.mark.parametrize(("share", "expected"), [(0.59, 0), (0.61, 1), (0.95, 9)])
def test_a_token_is_drafted_while_it_is_right_more_often_than_it_costs(
    share: float, expected: int
) -> None:
    steps = [0.6 * (k + 1) for k in range(16)]
    assert best_length(products(share), steps, rate=1.0, credit=99.0) == expected


def test_a_kink_is_jumped_where_the_other_side_is_worth_it() -> None:
    steps = [1.7 + 0.06 * k for k in range(16)]
    assert best_length(products(0.5), steps, rate=1.0, credit=99.0) == 0
    assert best_length(products(0.95), steps, rate=1.0, credit=99.0) == 16


def test_time_is_worth_more_the_faster_it_goes() -> None:
    steps = [0.3 * (k + 1) for k in range(16)]
    slow = best_length(products(0.9), steps, rate=1.0, credit=99.0)
    fast = best_length(products(0.9), steps, rate=2.0, credit=99.0)
    assert 0 < fast < slow


def test_no_more_is_risked_than_there_is_credit() -> None:
    steps = [0.5 * (k + 1) for k in range(16)]
    assert best_length(products(0.99), steps, rate=1.0, credit=2.6) == 5
    assert best_length(products(0.99), steps, rate=1.0, credit=0.4) == 0
    assert best_length(products(0.99), steps, rate=1.0, credit=0.6) == 1


def test_without_credit_a_well_known_source_drafts_where_it_pays_clearly() -> None:
    shares, added = (0.98, 0.96, 0.94, 0.92), (0.95, 1.9, 2.5, 3.0)
    assert best_length(shares, added, rate=1.0, credit=0.0) == 0
    assert best_length(shares, added, rate=1.0, credit=0.0, is_known=True) == 4


def test_without_credit_no_source_drafts_where_it_hardly_pays() -> None:
    shares, added = (0.9, 0.81), (0.85, 1.65)
    assert best_length(shares, added, rate=1.0, credit=9.0) > 0
    assert best_length(shares, added, rate=1.0, credit=0.0, is_known=True) == 0


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


def test_time_that_was_won_may_be_risked_up_to_a_limit() -> None:
    credit = Credit()
    assert credit.steps < LIMIT
    for _ in range(50):
        credit.settle(4, 2.0)
    assert credit.steps == LIMIT
