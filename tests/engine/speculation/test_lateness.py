"""A predictor that is many times slower than the model itself is told apart from a slow moment."""

import pytest

from engine.errors import PredictorError
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.guard import (
    LATE_AT_LEAST_S,
    LATE_STEPS,
    ROUNDS_IN_A_ROW,
    Lateness,
)

STEP_S = 0.01


@pytest.fixture
def lateness() -> Lateness:
    step = PlainStep()
    step.add(STEP_S)
    return Lateness(step)


def round_of(lateness: Lateness, elapsed_s: float, n_guesses: int = 1) -> None:
    lateness.ask()
    for _ in range(n_guesses):
        lateness.count_guess()
    lateness.spent(elapsed_s)
    lateness.end_round()


def test_many_times_late_again_and_again_is_a_fault_with_both_times(lateness: Lateness) -> None:
    for _ in range(ROUNDS_IN_A_ROW - 1):
        round_of(lateness, 0.5)
    with pytest.raises(PredictorError, match=r"500 ms, where a plain step takes 10 ms"):
        round_of(lateness, 0.5)


def test_a_predictor_that_finds_nothing_is_late_too(lateness: Lateness) -> None:
    for _ in range(ROUNDS_IN_A_ROW - 1):
        round_of(lateness, 0.5, n_guesses=0)
    with pytest.raises(PredictorError):
        round_of(lateness, 0.5, n_guesses=0)


def test_a_slow_moment_is_forgiven(lateness: Lateness) -> None:
    for _ in range(10):
        for _ in range(ROUNDS_IN_A_ROW - 1):
            round_of(lateness, 0.5)
        round_of(lateness, 0.0)


def test_rounds_without_a_draft_between_late_ones_forgive_nothing(lateness: Lateness) -> None:
    for _ in range(ROUNDS_IN_A_ROW - 1):
        round_of(lateness, 0.5)
        lateness.spent(0.001)
        lateness.end_round()
    with pytest.raises(PredictorError):
        round_of(lateness, 0.5)


def test_each_guess_may_take_its_time(lateness: Lateness) -> None:
    for _ in range(10):
        round_of(lateness, 8 * LATE_STEPS * STEP_S, n_guesses=8)


def test_nothing_is_late_before_a_plain_step_is_known() -> None:
    lateness = Lateness(PlainStep())
    for _ in range(10):
        round_of(lateness, 100.0)


def test_a_fast_model_does_not_make_a_predictor_late_within_milliseconds() -> None:
    step = PlainStep()
    step.add(1e-6)
    lateness = Lateness(step)
    for _ in range(10):
        round_of(lateness, LATE_AT_LEAST_S)


def test_a_new_reply_starts_without_late_rounds(lateness: Lateness) -> None:
    for _ in range(10):
        lateness.start()
        for _ in range(ROUNDS_IN_A_ROW - 1):
            round_of(lateness, 0.5)
