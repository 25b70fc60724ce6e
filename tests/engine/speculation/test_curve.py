import pytest

from engine.speculation.curve import MAX_ROWS, BatchCurve


def measured(points: dict[int, float], n_samples: int = 5) -> BatchCurve:
    curve = BatchCurve()
    for _ in range(n_samples):
        for n_rows, seconds in points.items():
            curve.add(n_rows, seconds)
    return curve


def test_nothing_is_known_before_a_plain_step() -> None:
    curve = BatchCurve()
    curve.add(4, 0.03)
    assert curve.plain_s is None
    assert curve.measured() == ()
    assert curve.reach == 0


def test_measured_numbers_of_rows_cost_what_was_measured() -> None:
    curve = measured({1: 0.010, 2: 0.016, 4: 0.028})
    assert curve.plain_s == pytest.approx(0.010)
    assert [curve.steps(n) for n in (1, 2, 4)] == pytest.approx([1.0, 1.6, 2.8])


def test_between_measured_numbers_the_kinks_stay() -> None:
    curve = measured({1: 1.0, 2: 2.6, 8: 3.2})
    assert curve.steps(2) == pytest.approx(2.6)
    assert curve.steps(5) == pytest.approx(2.9)


def test_a_stalled_round_does_not_move_the_curve() -> None:
    curve = measured({1: 0.010, 4: 0.028})
    curve.add(4, 0.9)
    curve.add(1, 0.5)
    assert curve.steps(4) == pytest.approx(2.8)


def test_one_stalled_round_alone_is_not_believed() -> None:
    curve = measured({1: 0.010, 2: 0.016})
    curve.add(4, 0.9)
    assert curve.steps(4) < 4


def test_it_never_falls() -> None:
    curve = measured({1: 1.0, 2: 2.0, 3: 1.5, 4: 2.2})
    costs = [curve.steps(n) for n in range(1, MAX_ROWS + 1)]
    assert costs == sorted(costs)
    assert curve.steps(2) == pytest.approx(1.75)


def test_longer_drafts_are_tried_step_by_step() -> None:
    curve = measured({1: 1.0})
    assert curve.reach == 2
    curve.add(2, 1.6)
    assert curve.reach == 4
    assert curve.steps(4) < 1.6 + 2 * 0.6
    curve.add(16, 5.0)
    assert curve.reach == MAX_ROWS


def test_the_measured_points_can_be_drawn() -> None:
    assert measured({1: 2.0, 3: 4.0}).measured() == ((1, 1.0), (3, 2.0))


def test_a_machine_that_becomes_slower_does_not_bend_the_curve() -> None:
    curve = measured({1: 0.010, 2: 0.017, 4: 0.028})
    for slowdown in (1.2, 1.5, 2.0):
        for n_rows, steps in ((1, 1.0), (1, 1.0), (1, 1.0), (2, 1.7), (4, 2.8)):
            curve.add(n_rows, 0.010 * slowdown * steps)
    assert [curve.steps(n) for n in (2, 4)] == pytest.approx([1.7, 2.8], rel=0.01)
    assert curve.plain_s == pytest.approx(0.020)


def test_long_drafts_without_a_plain_step_tell_the_speed_and_not_the_cost() -> None:
    curve = measured({1: 0.010, 4: 0.028})
    for _ in range(40):
        curve.add(4, 0.056)
    assert curve.steps(4) == pytest.approx(2.8)
    assert curve.plain_s == pytest.approx(0.020)


def test_a_stall_in_the_plain_step_between_drafts_is_not_taken_for_the_speed() -> None:
    curve = measured({1: 0.010, 4: 0.028})
    for _ in range(40):
        curve.add(4, 0.028)
    curve.add(1, 0.3)
    assert curve.plain_s == pytest.approx(0.010)


def test_plain_steps_that_stay_slow_behind_drafts_are_the_machine() -> None:
    curve = measured({1: 0.010, 2: 0.015, 3: 0.02, 4: 0.025, 6: 0.035})
    for _ in range(20):
        curve.add(4, 0.025)
    for _ in range(5):
        curve.add(1, 0.025)
    assert curve.plain_s == pytest.approx(0.025)


def test_what_an_earlier_run_measured_is_where_it_starts() -> None:
    curve = BatchCurve(((1, 1.0), (4, 2.8), (17, 9.0)))
    curve.add(1, 0.010)
    assert curve.steps(4) == pytest.approx(2.8)
    assert curve.reach == MAX_ROWS
    for _ in range(5):
        curve.add(1, 0.010)
        curve.add(4, 0.015)
    assert curve.steps(4) == pytest.approx(1.5)


def test_what_switching_costs_is_no_speed_of_the_machine() -> None:
    curve = measured({1: 0.010, 4: 0.028}, n_samples=1)
    for _ in range(8):
        for n_rows, seconds in ((4, 0.028), (1, 0.012), (1, 0.010)):
            curve.add(n_rows, seconds)
    assert curve.switching == pytest.approx(0.2)
    curve.add(4, 0.028)
    for _ in range(5):
        curve.add(1, 0.012)
        curve.add(4, 0.028)
    assert curve.plain_s == pytest.approx(0.010)
    assert curve.steps(4) == pytest.approx(2.8)


def test_one_stall_behind_a_batch_is_no_cost_of_switching() -> None:
    curve = measured({1: 0.010, 4: 0.028})
    for seconds in (0.010, 0.060, 0.010, 0.010, 0.010):
        curve.add(4, 0.028)
        curve.add(1, seconds)
        curve.add(1, 0.010)
    assert curve.switching == pytest.approx(0.0)
