import pytest

from engine.speculation.drafting_cost import CATCH_UP_SHARE, DraftingCost, KnownCost


def test_nothing_costs_before_it_was_timed() -> None:
    assert DraftingCost().steps(4, 0) == 0.0


def test_the_fixed_part_and_the_step_are_told_apart() -> None:
    cost = DraftingCost()
    for n_drafted in (1, 3, 5, 2, 4):
        cost.add(n_drafted, 1, 0.004 + 0.002 * n_drafted)
    assert cost.step == pytest.approx(0.002)
    assert cost.steps(8, 1) == pytest.approx(0.020)


def test_drafts_of_one_length_are_shared_out_evenly() -> None:
    cost = DraftingCost()
    cost.add(4, 1, 0.008)
    assert cost.steps(2, 1) == pytest.approx(0.004)


def test_a_stalled_draft_does_not_move_the_step() -> None:
    cost = DraftingCost()
    for n_drafted in (1, 3, 5, 2, 4, 6):
        cost.add(n_drafted, 1, 0.002 * n_drafted)
    cost.add(4, 1, 0.5)
    assert cost.step == pytest.approx(0.002, rel=0.2)


def test_a_first_draft_that_caught_up_says_what_the_next_will_cost() -> None:
    cost = DraftingCost()
    cost.add(1, 100, 0.1)
    assert cost.steps(1, 100) == pytest.approx(0.1, rel=0.1)
    assert cost.steps(1, 1) < 0.01


def test_a_source_that_rested_has_to_catch_up() -> None:
    cost = DraftingCost()
    cost.add(1, 1, 0.002)
    cost.add(2, 1, 0.004)
    guessed = cost.steps(1, 100)
    assert guessed > 0.01
    cost.add(1, 100, 0.002 + 0.1)
    assert cost.steps(1, 100) == pytest.approx(0.102)
    assert cost.steps(1, 2) == pytest.approx(0.002)


KNOWN = KnownCost(fixed=0.1, step=0.2, catch_up=0.01, silence=0.05)


def test_what_one_run_leaves_is_where_the_next_one_starts() -> None:
    cost = DraftingCost(KNOWN)
    known = cost.known()
    assert known is not None
    assert tuple(known) == pytest.approx(tuple(KNOWN))
    assert cost.steps(4, 0) == pytest.approx(0.9)
    assert cost.steps(4, 100) == pytest.approx(1.9)


def test_nothing_is_left_before_anything_was_timed() -> None:
    cost = DraftingCost()
    cost.add_silent(0.1)
    assert cost.known() is None
    cost.add(1, 1, 0.2)
    assert cost.known() is not None


def test_one_draft_does_not_overturn_an_earlier_run_and_many_do() -> None:
    cost = DraftingCost(KNOWN)
    cost.add(2, 1, 5.0)
    assert cost.steps(4, 0) < 3.0
    for n_drafted in (1, 2, 4, 8) * 4:
        cost.add(n_drafted, 1, 0.01 * n_drafted)
    assert cost.steps(4, 0) == pytest.approx(0.04)


def test_silence_costs_what_it_mostly_took() -> None:
    cost = DraftingCost()
    assert cost.silence == 0.0
    for n_steps in (0.01, 0.02, 9.0):
        cost.add_silent(n_steps)
    assert cost.silence == 0.02


def test_silence_is_no_draft() -> None:
    cost = DraftingCost()
    cost.add_silent(3.0)
    assert cost.step is None
    assert cost.steps(4, 0) == 0.0


def test_catching_up_costs_by_the_token_as_it_was_measured() -> None:
    cost = DraftingCost()
    assert cost.catch_up(100) == 0.0
    cost.add(1, 1, 0.2)
    assert cost.catch_up(100) == pytest.approx(100 * CATCH_UP_SHARE * 0.2)
    cost.add(1, 50, 0.2 + 50 * 0.03)
    assert cost.catch_up(100) == pytest.approx(3.0)


def test_what_asking_costs_is_not_taken_for_the_cost_of_a_guess() -> None:
    cost = DraftingCost()
    cost.add_silent(0.015)
    cost.add(1, 1, 0.02)
    assert cost.steps(1, 1) == pytest.approx(0.02)
    assert cost.steps(4, 1) == pytest.approx(0.035)


def test_a_draft_behind_a_pause_that_took_less_than_one_without_corrects_it() -> None:
    cost = DraftingCost()
    cost.add(1, 1, 0.2)
    for _ in range(2):
        cost.add(1, 50, 0.02)
    assert cost.steps(1, 1) == pytest.approx(0.02)
    assert cost.catch_up(100) == 0.0


def test_lengths_that_are_alike_do_not_split_the_step_from_the_fixed_part() -> None:
    cost = DraftingCost()
    assert not cost.is_split
    cost.add(1, 1, 0.02)
    assert not cost.is_split
    cost.add(1, 1, 0.03)
    assert not cost.is_split
    cost.add(2, 1, 0.03)
    assert cost.is_split
    assert DraftingCost(KNOWN).is_split
