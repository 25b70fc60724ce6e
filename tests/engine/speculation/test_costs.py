"""What rows and guesses cost, learned from rounds; what one run leaves to the next."""

import pytest

from engine.speculation.costs import (
    CHECKED_AT,
    CostProfile,
    Costs,
    DraftCost,
    KnownCost,
    RowCosts,
)


def measured(points: dict[int, float], n_samples: int = 5) -> RowCosts:
    rows = RowCosts()
    for _ in range(n_samples):
        for n_rows, seconds in points.items():
            rows.add(n_rows, seconds)
    return rows


def test_measured_numbers_of_rows_cost_what_was_measured() -> None:
    rows = measured({1: 0.010, 2: 0.016, 4: 0.028})
    assert rows.plain.seconds == pytest.approx(0.010)
    assert [rows.steps(n) for n in (1, 2, 4)] == pytest.approx([1.0, 1.6, 2.8])


def test_a_stalled_round_does_not_move_the_rows() -> None:
    rows = measured({1: 0.010, 4: 0.028})
    rows.add(4, 0.9)
    rows.add(1, 0.5)
    assert rows.steps(4) == pytest.approx(2.8)


def test_a_machine_that_becomes_slower_does_not_bend_the_rows() -> None:
    rows = measured({1: 0.010, 2: 0.017, 4: 0.028})
    for slowdown in (1.2, 1.5, 2.0):
        for n_rows, steps in ((1, 1.0), (1, 1.0), (1, 1.0), (2, 1.7), (4, 2.8)):
            rows.add(n_rows, 0.010 * slowdown * steps)
    assert [rows.steps(n) for n in (2, 4)] == pytest.approx([1.7, 2.8], rel=0.01)
    assert rows.plain.seconds == pytest.approx(0.020)


def test_a_source_that_rested_has_to_catch_up() -> None:
    cost = DraftCost()
    cost.add(1, 1, 0.002)
    cost.add(2, 1, 0.004)
    guessed = cost.steps(1, 100)
    assert guessed > 0.01
    cost.add(1, 100, 0.002 + 0.1)
    assert cost.steps(1, 100) == pytest.approx(0.102)
    assert cost.steps(1, 2) == pytest.approx(0.002)


SUFFIX = KnownCost(0.002, 0.001, 0.0005, 0.003)
KNOWN = CostProfile(0.010, ((1, 1.0), (2, 1.6), (8, 4.5)), {"suffix": SUFFIX})


def timed(costs: Costs, plain_s: float = 0.010) -> Costs:
    for n_rows, steps in ((1, 1.0), (2, 1.6), (4, 2.8)):
        for _ in range(3):
            costs.add(n_rows, plain_s * steps)
    return costs


def add_plain(costs: Costs, plain_s: float, n_times: int) -> None:
    for _ in range(n_times):
        costs.add(1, plain_s)


def test_nothing_is_left_before_enough_was_measured() -> None:
    costs = Costs()
    assert costs.profile() is None
    add_plain(costs, 0.010, 3)
    costs.add(2, 0.016)
    assert costs.profile() is None
    costs.add(4, 0.028)
    assert costs.profile() is not None


def test_what_was_measured_is_left() -> None:
    costs = timed(Costs())
    costs.drafts["draft"] = drafting = DraftCost()
    costs.drafts["never asked"] = DraftCost()
    drafting.add(4, 1, 0.4)
    drafting.add(4, 1, 0.4)
    left = costs.profile()
    assert left is not None
    assert left.plain_s == pytest.approx(0.010)
    assert [n_rows for n_rows, _ in left.points] == [1, 2, 4]
    assert [steps for _, steps in left.points] == pytest.approx([1.0, 1.6, 2.8])
    assert left.drafting == {"draft": drafting.known()}


def test_a_run_starts_from_the_costs_of_an_earlier_one() -> None:
    costs = Costs(KNOWN)
    assert costs.rows.measured_points() == KNOWN.points
    known = costs.drafts["suffix"].known()
    assert known is not None
    assert tuple(known) == pytest.approx(tuple(SUFFIX))


@pytest.mark.parametrize("times", [0.45, 2.2])
def test_costs_are_forgotten_where_the_machine_is_another_one(times: float) -> None:
    costs = Costs(KNOWN)
    add_plain(costs, 0.010 * times, CHECKED_AT)
    assert costs.rows.measured_points() == ((1, 1.0),)
    assert costs.plain.seconds == pytest.approx(0.010 * times)
    assert costs.drafts == {}


def test_each_number_of_threads_has_rows_and_a_plain_step_of_its_own() -> None:
    costs = Costs()
    costs.use_threads(2)
    for _ in range(5):
        costs.add(1, 0.010)
        costs.add(4, 0.028)
    costs.use_threads(1)
    assert costs.plain.seconds is None, "what one thread takes was not measured"
    assert costs.rows.measured_points() == ((1, 1.0),), (
        "others may have slowed the batches of two threads"
    )
    for _ in range(12):
        costs.add(1, 0.020)
        costs.add(4, 0.076)
    assert costs.rows.steps(4) == pytest.approx(3.8)
    assert costs.plain.seconds == pytest.approx(0.020)
    kept = costs.profile()
    assert kept is None, "a later run begins with two threads, of which two points are known"
    costs.use_threads(2)
    assert costs.rows.steps(4) == pytest.approx(2.8)
    assert costs.plain.seconds == pytest.approx(0.010)
    costs.add(2, 0.016)
    costs.use_threads(1)
    kept = costs.profile()
    assert kept is not None
    assert kept.plain_s == pytest.approx(0.010)
    assert dict(kept.points)[4] == pytest.approx(2.8)
