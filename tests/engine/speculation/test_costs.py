"""What rows and guesses cost, learned from rounds; what one run leaves to the next."""

import pytest

from engine.speculation.costs import (
    CATCH_UP_SHARE,
    CHANGED,
    CHECKED_AT,
    MAX_ROWS,
    CostProfile,
    Costs,
    DraftCost,
    KnownCost,
    PlainStep,
    RowCosts,
)


def measured(points: dict[int, float], n_samples: int = 5) -> RowCosts:
    rows = RowCosts()
    for _ in range(n_samples):
        for n_rows, seconds in points.items():
            rows.add(n_rows, seconds)
    return rows


def test_nothing_is_known_before_a_plain_step() -> None:
    rows = RowCosts()
    rows.add(4, 0.03)
    assert rows.plain.seconds is None
    assert rows.measured_points() == ()
    assert rows.reach == 0


def test_measured_numbers_of_rows_cost_what_was_measured() -> None:
    rows = measured({1: 0.010, 2: 0.016, 4: 0.028})
    assert rows.plain.seconds == pytest.approx(0.010)
    assert [rows.steps(n) for n in (1, 2, 4)] == pytest.approx([1.0, 1.6, 2.8])


def test_between_measured_numbers_the_kinks_stay() -> None:
    rows = measured({1: 1.0, 2: 2.6, 8: 3.2})
    assert rows.steps(2) == pytest.approx(2.6)
    assert rows.steps(5) == pytest.approx(2.9)


def test_a_stalled_round_does_not_move_the_rows() -> None:
    rows = measured({1: 0.010, 4: 0.028})
    rows.add(4, 0.9)
    rows.add(1, 0.5)
    assert rows.steps(4) == pytest.approx(2.8)


def test_one_stalled_round_alone_is_not_believed() -> None:
    rows = measured({1: 0.010, 2: 0.016})
    rows.add(4, 0.9)
    assert rows.steps(4) < 4


def test_longer_drafts_are_tried_step_by_step() -> None:
    rows = measured({1: 1.0})
    assert rows.reach == 2
    rows.add(2, 1.6)
    assert rows.reach == 4
    assert rows.steps(4) < 1.6 + 2 * 0.6
    rows.add(16, 5.0)
    assert rows.reach == MAX_ROWS


def test_the_measured_points_can_be_drawn() -> None:
    assert measured({1: 2.0, 3: 4.0}).measured_points() == ((1, 1.0), (3, 2.0))


def test_a_machine_that_becomes_slower_does_not_bend_the_rows() -> None:
    rows = measured({1: 0.010, 2: 0.017, 4: 0.028})
    for slowdown in (1.2, 1.5, 2.0):
        for n_rows, steps in ((1, 1.0), (1, 1.0), (1, 1.0), (2, 1.7), (4, 2.8)):
            rows.add(n_rows, 0.010 * slowdown * steps)
    assert [rows.steps(n) for n in (2, 4)] == pytest.approx([1.7, 2.8], rel=0.01)
    assert rows.plain.seconds == pytest.approx(0.020)


def test_long_drafts_without_a_plain_step_tell_the_speed_and_not_the_cost() -> None:
    rows = measured({1: 0.010, 4: 0.028})
    for _ in range(40):
        rows.add(4, 0.056)
    assert rows.steps(4) == pytest.approx(2.8)
    assert rows.plain.seconds == pytest.approx(0.020)


def test_a_stall_in_the_plain_step_between_drafts_is_not_taken_for_the_speed() -> None:
    rows = measured({1: 0.010, 4: 0.028})
    for _ in range(40):
        rows.add(4, 0.028)
    rows.add(1, 0.3)
    assert rows.plain.seconds == pytest.approx(0.010)


def test_plain_steps_that_stay_slow_behind_drafts_are_the_machine() -> None:
    rows = measured({1: 0.010, 2: 0.015, 3: 0.02, 4: 0.025, 6: 0.035})
    for _ in range(20):
        rows.add(4, 0.025)
    for _ in range(5):
        rows.add(1, 0.025)
    assert rows.plain.seconds == pytest.approx(0.025)


def test_what_an_earlier_run_measured_is_where_it_starts() -> None:
    rows = RowCosts(((1, 1.0), (4, 2.8), (17, 9.0)))
    rows.add(1, 0.010)
    assert rows.steps(4) == pytest.approx(2.8)
    assert rows.reach == MAX_ROWS
    for _ in range(5):
        rows.add(1, 0.010)
        rows.add(4, 0.015)
    assert rows.steps(4) == pytest.approx(1.5)


def test_what_switching_costs_is_no_speed_of_the_machine() -> None:
    rows = measured({1: 0.010, 4: 0.028}, n_samples=1)
    for _ in range(8):
        for n_rows, seconds in ((4, 0.028), (1, 0.012), (1, 0.010)):
            rows.add(n_rows, seconds)
    assert rows.switching == pytest.approx(0.2)
    rows.add(4, 0.028)
    for _ in range(5):
        rows.add(1, 0.012)
        rows.add(4, 0.028)
    assert rows.plain.seconds == pytest.approx(0.010)
    assert rows.steps(4) == pytest.approx(2.8)


def test_one_stall_behind_a_batch_is_no_cost_of_switching() -> None:
    rows = measured({1: 0.010, 4: 0.028})
    for seconds in (0.010, 0.060, 0.010, 0.010, 0.010):
        rows.add(4, 0.028)
        rows.add(1, seconds)
        rows.add(1, 0.010)
    assert rows.switching == pytest.approx(0.0)


def plain_step(*seconds: float) -> PlainStep:
    step = PlainStep()
    for each in seconds:
        step.add(each)
    return step


def test_it_is_the_median_of_the_last_steps_and_unknown_before_one() -> None:
    assert PlainStep().seconds is None
    assert plain_step(0.010, 0.011, 0.5).seconds == 0.011


@pytest.mark.parametrize("slower", [1.5, 2.5, 20.0])
def test_a_machine_that_becomes_slower_is_believed_from_the_second_step_on(slower: float) -> None:
    step = plain_step(0.010, 0.010, 0.010)
    for _ in range(20):
        step.infer(0.010)
    for _ in range(5):
        step.add(slower * 0.010)
    assert step.seconds == pytest.approx(slower * 0.010)


def test_one_slow_step_between_drafts_is_a_stall() -> None:
    step = plain_step(0.010)
    step.infer(0.010)
    assert not step.add(0.3)
    assert step.seconds == pytest.approx(0.010)
    assert step.add(0.011)
    assert not step._was_refused


def test_the_spread_is_how_far_most_steps_were_from_what_was_expected() -> None:
    assert plain_step(0.010, 0.010).spread is None
    assert plain_step(*[0.010] * 3).spread == pytest.approx(0.0)
    calm = plain_step(*[0.010, 0.0102] * 10).spread
    noisy = plain_step(*[0.010, 0.018] * 10).spread
    assert calm is not None
    assert noisy is not None
    assert calm < 0.03 < 0.3 < noisy


def test_one_stall_in_fifteen_steps_is_not_the_spread() -> None:
    spread = plain_step(*[0.010] * 8, 0.4, *[0.010] * 6).spread
    assert spread == pytest.approx(0.0)


def test_nothing_costs_before_it_was_timed() -> None:
    assert DraftCost().steps(4, 0) == 0.0


def test_the_fixed_part_and_the_step_are_told_apart() -> None:
    cost = DraftCost()
    for n_drafted in (1, 3, 5, 2, 4):
        cost.add(n_drafted, 1, 0.004 + 0.002 * n_drafted)
    assert cost.step == pytest.approx(0.002)
    assert cost.steps(8, 1) == pytest.approx(0.020)


def test_drafts_of_one_length_are_shared_out_evenly() -> None:
    cost = DraftCost()
    cost.add(4, 1, 0.008)
    assert cost.steps(2, 1) == pytest.approx(0.004)


def test_a_stalled_draft_does_not_move_the_step() -> None:
    cost = DraftCost()
    for n_drafted in (1, 3, 5, 2, 4, 6):
        cost.add(n_drafted, 1, 0.002 * n_drafted)
    cost.add(4, 1, 0.5)
    assert cost.step == pytest.approx(0.002, rel=0.2)


def test_one_stalled_draft_alone_makes_no_source_dear() -> None:
    cost = DraftCost()
    cost.add(3, 32, 5.0)
    assert not cost.is_known
    assert cost.known() is None
    cost.add(3, 1, 0.003)
    assert cost.is_known
    assert cost.steps(4, 1) == pytest.approx(0.004)


def test_one_stalled_draft_of_another_length_does_not_set_the_step() -> None:
    cost = DraftCost()
    for n_drafted, n_steps in [(1, 0.02), (1, 0.02), (1, 0.02), (2, 4.8)]:
        cost.add(n_drafted, 0, n_steps)
    assert cost.steps(4, 0) == pytest.approx(0.08)


def test_a_first_draft_that_caught_up_says_what_the_next_will_cost() -> None:
    cost = DraftCost()
    cost.add(1, 100, 0.1)
    assert cost.steps(1, 100) == pytest.approx(0.1, rel=0.1)
    assert cost.steps(1, 1) < 0.01


def test_a_source_that_rested_has_to_catch_up() -> None:
    cost = DraftCost()
    cost.add(1, 1, 0.002)
    cost.add(2, 1, 0.004)
    guessed = cost.steps(1, 100)
    assert guessed > 0.01
    cost.add(1, 100, 0.002 + 0.1)
    assert cost.steps(1, 100) == pytest.approx(0.102)
    assert cost.steps(1, 2) == pytest.approx(0.002)


KNOWN_DRAFTS = KnownCost(fixed=0.1, step=0.2, catch_up=0.01, silence=0.05)


def test_what_one_run_leaves_is_where_the_next_one_starts() -> None:
    cost = DraftCost(KNOWN_DRAFTS)
    known = cost.known()
    assert known is not None
    assert tuple(known) == pytest.approx(tuple(KNOWN_DRAFTS))
    assert cost.steps(4, 0) == pytest.approx(0.9)
    assert cost.steps(4, 100) == pytest.approx(1.9)


def test_nothing_is_left_before_anything_was_timed() -> None:
    cost = DraftCost()
    cost.add_silent(0.1)
    assert cost.known() is None
    cost.add(1, 1, 0.2)
    assert cost.known() is None
    cost.add(1, 1, 0.2)
    assert cost.known() is not None


def test_one_draft_does_not_overturn_an_earlier_run_and_many_do() -> None:
    cost = DraftCost(KNOWN_DRAFTS)
    cost.add(2, 1, 5.0)
    assert cost.steps(4, 0) < 3.0
    for n_drafted in (1, 2, 4, 8) * 4:
        cost.add(n_drafted, 1, 0.01 * n_drafted)
    assert cost.steps(4, 0) == pytest.approx(0.04)


def test_silence_costs_what_it_mostly_took() -> None:
    cost = DraftCost()
    assert cost.silence == 0.0
    for n_steps in (0.01, 0.02, 9.0):
        cost.add_silent(n_steps)
    assert cost.silence == 0.02


def test_silence_is_no_draft() -> None:
    cost = DraftCost()
    cost.add_silent(3.0)
    assert cost.step is None
    assert cost.steps(4, 0) == 0.0


def test_catching_up_costs_by_the_token_as_it_was_measured() -> None:
    cost = DraftCost()
    assert cost.catch_up(100) == 0.0
    cost.add(1, 1, 0.2)
    assert cost.catch_up(100) == pytest.approx(100 * CATCH_UP_SHARE * 0.2)
    cost.add(1, 50, 0.2 + 50 * 0.03)
    assert cost.catch_up(100) == pytest.approx(3.0)


def test_what_asking_costs_is_not_taken_for_the_cost_of_a_guess() -> None:
    cost = DraftCost()
    cost.add_silent(0.015)
    cost.add(1, 1, 0.02)
    assert cost.steps(1, 1) == pytest.approx(0.02)
    assert cost.steps(4, 1) == pytest.approx(0.035)


def test_a_draft_behind_a_pause_that_took_less_than_one_without_corrects_it() -> None:
    cost = DraftCost()
    cost.add(1, 1, 0.2)
    for _ in range(2):
        cost.add(1, 50, 0.02)
    assert cost.steps(1, 1) == pytest.approx(0.02)
    assert cost.catch_up(100) == 0.0


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


def test_an_earlier_run_s_costs_are_left_only_with_a_plain_step_of_this_one() -> None:
    costs = Costs(KNOWN)
    assert costs.profile() is None
    add_plain(costs, 0.012, 1)
    left = costs.profile()
    assert left is not None
    assert left.plain_s == 0.012
    assert left.points == KNOWN.points


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


@pytest.mark.parametrize("times", [1 / CHANGED, 1.0, CHANGED])
def test_costs_stay_where_the_machine_is_about_as_fast(times: float) -> None:
    costs = Costs(KNOWN)
    add_plain(costs, 0.010 * times, CHECKED_AT)
    assert costs.rows.measured_points() == KNOWN.points
    assert list(costs.drafts) == ["suffix"]


@pytest.mark.parametrize("times", [0.45, 2.2])
def test_costs_are_forgotten_where_the_machine_is_another_one(times: float) -> None:
    costs = Costs(KNOWN)
    add_plain(costs, 0.010 * times, CHECKED_AT)
    assert costs.rows.measured_points() == ((1, 1.0),)
    assert costs.plain.seconds == pytest.approx(0.010 * times)
    assert costs.drafts == {}


def test_a_few_slow_steps_say_nothing_of_the_machine_yet() -> None:
    costs = Costs(KNOWN)
    add_plain(costs, 0.1, CHECKED_AT - 1)
    assert costs.rows.measured_points() == KNOWN.points


def test_the_machine_is_judged_once_and_may_become_slower_afterwards() -> None:
    costs = Costs(KNOWN)
    add_plain(costs, 0.010, CHECKED_AT)
    add_plain(costs, 0.030, 20)
    assert costs.rows.measured_points() == KNOWN.points


def test_without_costs_of_an_earlier_run_nothing_is_forgotten() -> None:
    costs = timed(Costs())
    assert len(costs.rows.measured_points()) == 3


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
