"""What rows and drafts cost, learned from rounds; what one run leaves to the next."""

import pytest

from engine.speculation.costs import CostProfile, Costs, DraftCost, KnownCost, RowCosts


def measured(points: dict[int, float], n_samples: int = 5) -> RowCosts:
    rows = RowCosts()
    for _ in range(n_samples):
        for n_rows, seconds in points.items():
            rows.add(n_rows, seconds)
    return rows


def test_measured_numbers_of_rows_cost_what_was_measured() -> None:
    rows = measured({1: 0.010, 2: 0.016, 4: 0.028})
    assert rows.plain.seconds == pytest.approx(0.010)
    assert [rows.steps(n) for n in (1, 2, 3, 4)] == pytest.approx([1.0, 1.6, 2.2, 2.8])


def test_a_stalled_round_does_not_move_the_rows() -> None:
    rows = measured({1: 0.010, 4: 0.028})
    rows.add(4, 0.9)
    rows.add(1, 0.5)
    assert rows.steps(4) == pytest.approx(2.8)
    assert rows.plain.seconds == pytest.approx(0.010)


def test_a_machine_that_becomes_slower_does_not_bend_the_rows() -> None:
    rows = measured({1: 0.010, 2: 0.017, 4: 0.028})
    for slowdown in (1.2, 1.5, 2.0):
        for n_rows, steps in (*((1, 1.0),) * 3, (2, 1.7), (4, 2.8)):
            rows.add(n_rows, 0.010 * slowdown * steps)
    assert [rows.steps(n) for n in (2, 4)] == pytest.approx([1.7, 2.8], rel=0.01)
    assert rows.plain.seconds == pytest.approx(0.020)


def test_larger_batches_are_expected_to_be_cheap() -> None:
    rows = measured({1: 0.010})
    assert rows.steps(17) < 3.0
    rows.add(2, 0.016)
    assert 1.6 < rows.steps(4) < 2.2


def test_asking_and_drafting_have_costs_of_their_own() -> None:
    cost = DraftCost()
    cost.add(0, 0.003)
    cost.add(4, 0.011)
    assert not cost.is_known
    cost.add(2, 0.007)
    assert cost.is_known
    assert (cost.ask, cost.step) == (0.003, pytest.approx(0.002))
    assert [cost.steps(n) for n in (0, 1, 3)] == pytest.approx([0.0, 0.005, 0.009])


SUFFIX = KnownCost(0.003, 0.001)
KNOWN = CostProfile(((1, 1.0), (2, 1.6), (8, 4.5)), {"suffix": SUFFIX})


def test_nothing_is_saved_before_enough_was_measured() -> None:
    costs = Costs()
    assert costs.profile() is None
    costs.rows.add(1, 0.010)
    for _ in range(2):
        costs.rows.add(2, 0.016)
    assert costs.profile() is None, "both batches may have stalled"
    costs.rows.add(2, 0.016)
    costs.rows.add(4, 0.500)
    costs.drafts["never timed"] = DraftCost()
    saved = costs.profile()
    assert saved is not None
    assert [n_rows for n_rows, _ in saved.points] == [1, 2]
    assert saved.drafting == {}


def test_a_run_starts_from_the_costs_of_an_earlier_one_and_corrects_them() -> None:
    costs = Costs(KNOWN)
    assert costs.rows.points == KNOWN.points
    known = costs.drafts["suffix"].known
    assert known is not None
    assert (known.ask, known.step) == pytest.approx((SUFFIX.ask, SUFFIX.step))
    costs.rows.add(1, 0.020)
    for _ in range(4):
        costs.rows.add(2, 0.024)
    assert costs.rows.steps(2) == pytest.approx(1.2)
    assert costs.profile() is not None


def test_each_number_of_threads_has_rows_and_a_plain_step_of_its_own() -> None:
    costs = Costs()
    costs.use_threads(2)
    for _ in range(5):
        costs.rows.add(1, 0.010)
        costs.rows.add(4, 0.028)
    costs.use_threads(1)
    assert costs.plain.seconds is None
    assert costs.rows.points == ((1, 1.0),)
    for _ in range(5):
        costs.rows.add(1, 0.020)
        costs.rows.add(4, 0.076)
    costs.use_threads(2)
    assert costs.rows.steps(4) == pytest.approx(2.8)
    assert costs.plain.seconds == pytest.approx(0.010)
    costs.use_threads(1)
    saved = costs.profile()
    assert saved is not None
    assert dict(saved.points)[4] == pytest.approx(2.8)
