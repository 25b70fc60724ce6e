"""When a source is asked for its first guess."""

from engine.speculation.asking import (
    CHEAP,
    N_SHADOW,
    N_TRIAL,
    PROBE_EVERY,
    SHADOW_LOSS,
    WON_FOR,
    Asked,
)
from engine.speculation.drafting_cost import DraftingCost, KnownCost

FIRST, LAST = PROBE_EVERY


def asked(step: float | None, fixed: float = 0.0) -> Asked:
    known = None if step is None else KnownCost(fixed, step, 0.0, 0.0)
    return Asked(DraftingCost(known))


def test_a_source_is_known_once_its_cost_was_measured() -> None:
    source = asked(None)
    assert not source.is_known
    assert not source.is_cheap
    source.drafting.add(4, 1, 0.004)
    assert source.is_known
    assert source.is_cheap


def test_a_source_is_cheap_where_a_few_guesses_hardly_cost() -> None:
    assert asked(0.9 * CHEAP / N_SHADOW).is_cheap
    assert not asked(1.1 * CHEAP / N_SHADOW).is_cheap
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
    assert 0.7 * SHADOW_LOSS < n_asked * 0.01 * N_SHADOW / 1000 <= SHADOW_LOSS


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


def test_a_probe_asks_for_a_few_guesses_where_they_may_be_cheap() -> None:
    source = asked(None)
    source.drafting.add(1, 1, 0.9 * CHEAP)
    assert not source.is_cheap
    assert source.n_to_probe == N_TRIAL
    source.drafting.add(N_TRIAL, 1, 0.95 * CHEAP)
    assert source.n_to_probe == 1
    assert source.is_cheap


def test_a_probe_of_a_dear_source_is_one_guess() -> None:
    source = asked(None)
    source.drafting.add(1, 1, 2 * CHEAP)
    assert source.n_to_probe == 1
