"""What one reply, and one run, leaves to the next."""

import pytest

from engine.speculation.budget import SHARE, START
from engine.speculation.drafting_cost import DraftingCost, KnownCost
from engine.speculation.experience import CHANGED, CHECKED_AT, Experience
from engine.speculation.profile import CostProfile

SUFFIX = KnownCost(0.002, 0.001, 0.0005, 0.003)
KNOWN = CostProfile(0.010, ((1, 1.0), (2, 1.6), (8, 4.5)), {"suffix": SUFFIX})


def measured(experience: Experience, plain_s: float = 0.010) -> Experience:
    for n_rows, steps in ((1, 1.0), (2, 1.6), (4, 2.8)):
        for _ in range(3):
            experience.curve.add(n_rows, plain_s * steps)
    return experience


def add_plain(experience: Experience, plain_s: float, n_times: int) -> None:
    for _ in range(n_times):
        experience.curve.add(1, plain_s)


def test_nothing_is_left_before_enough_was_measured() -> None:
    experience = Experience()
    assert experience.profile() is None
    add_plain(experience, 0.010, 3)
    experience.curve.add(2, 0.016)
    assert experience.profile() is None
    experience.curve.add(4, 0.028)
    assert experience.profile() is not None


def test_an_earlier_run_s_costs_are_left_only_with_a_plain_step_of_this_one() -> None:
    experience = Experience(KNOWN)
    assert experience.profile() is None
    add_plain(experience, 0.012, 1)
    left = experience.profile()
    assert left is not None
    assert left.plain_s == 0.012
    assert left.points == KNOWN.points


def test_what_was_measured_is_left() -> None:
    experience = measured(Experience())
    experience.drafting["draft"] = drafting = DraftingCost()
    experience.drafting["never asked"] = DraftingCost()
    drafting.add(4, 1, 0.4)
    left = experience.profile()
    assert left is not None
    assert left.plain_s == pytest.approx(0.010)
    assert [n_rows for n_rows, _ in left.points] == [1, 2, 4]
    assert [steps for _, steps in left.points] == pytest.approx([1.0, 1.6, 2.8])
    assert left.drafting == {"draft": drafting.known()}


def test_a_run_starts_from_the_costs_of_an_earlier_one() -> None:
    experience = Experience(KNOWN)
    assert experience.curve.measured() == KNOWN.points
    known = experience.drafting["suffix"].known()
    assert known is not None
    assert tuple(known) == pytest.approx(tuple(SUFFIX))


@pytest.mark.parametrize("times", [1 / CHANGED, 1.0, CHANGED])
def test_costs_stay_where_the_machine_is_about_as_fast(times: float) -> None:
    experience = Experience(KNOWN)
    add_plain(experience, 0.010 * times, CHECKED_AT)
    experience.check()
    assert experience.curve.measured() == KNOWN.points
    assert list(experience.drafting) == ["suffix"]


@pytest.mark.parametrize("times", [0.45, 2.2])
def test_costs_are_forgotten_where_the_machine_is_another_one(times: float) -> None:
    experience = Experience(KNOWN)
    add_plain(experience, 0.010 * times, CHECKED_AT)
    experience.check()
    assert experience.curve.measured() == ((1, 1.0),)
    assert experience.curve.plain_s == pytest.approx(0.010 * times)
    assert experience.drafting == {}


def test_a_few_slow_steps_say_nothing_of_the_machine_yet() -> None:
    experience = Experience(KNOWN)
    add_plain(experience, 0.1, CHECKED_AT - 1)
    experience.check()
    assert experience.curve.measured() == KNOWN.points


def test_the_machine_is_judged_once_and_may_become_slower_afterwards() -> None:
    experience = Experience(KNOWN)
    add_plain(experience, 0.010, CHECKED_AT)
    experience.check()
    add_plain(experience, 0.030, 20)
    experience.check()
    assert experience.curve.measured() == KNOWN.points


def test_without_costs_of_an_earlier_run_nothing_is_forgotten() -> None:
    experience = measured(Experience())
    experience.check()
    assert len(experience.curve.measured()) == 3


def test_a_debt_is_paid_over_the_next_tokens_and_then_is_none() -> None:
    experience = Experience()
    experience.owe(1.0, 10)
    assert experience.budget.credit == START
    experience.add_round(4, 4.0)
    assert experience.budget.credit == pytest.approx(START + 4 * SHARE - 0.4)
    for _ in range(5):
        experience.add_round(4, 4.0)
    assert experience.budget.credit == pytest.approx(START + 24 * SHARE - 1.0)


def test_debts_add_up() -> None:
    experience = Experience()
    experience.owe(1.0, 10)
    experience.owe(1.0, 10)
    experience.add_round(5, 5.0)
    assert experience.budget.credit == pytest.approx(START + 5 * SHARE - 1.0)


def test_a_debt_does_not_slow_the_rate() -> None:
    experience, free = Experience(), Experience()
    experience.owe(1.0, 4)
    for each in (experience, free):
        each.add_round(4, 2.0)
    assert experience.tokens_per_step == free.tokens_per_step > 1.0
