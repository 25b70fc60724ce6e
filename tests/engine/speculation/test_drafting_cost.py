import pytest

from engine.speculation.drafting_cost import DraftingCost


def test_nothing_costs_before_it_was_timed() -> None:
    assert DraftingCost().steps(4, 0) == 0.0


def test_the_fixed_part_and_the_step_are_told_apart() -> None:
    cost = DraftingCost()
    for n_pulled in (1, 3, 5, 2, 4):
        cost.add(n_pulled, 1, 0.004 + 0.002 * n_pulled)
    assert cost.step == pytest.approx(0.002)
    assert cost.steps(8, 1) == pytest.approx(0.020)


def test_drafts_of_one_length_are_shared_out_evenly() -> None:
    cost = DraftingCost()
    cost.add(4, 1, 0.008)
    assert cost.steps(2, 1) == pytest.approx(0.004)


def test_a_stalled_draft_does_not_move_the_step() -> None:
    cost = DraftingCost()
    for n_pulled in (1, 3, 5, 2, 4, 6):
        cost.add(n_pulled, 1, 0.002 * n_pulled)
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
