"""A predictor that is many times slower than the model itself is told apart from a slow moment."""

import pytest

from engine.errors import PredictorError
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.guard import (
    LATE_AT_LEAST_S,
    LATE_STEPS,
    ROUNDS_IN_A_ROW,
    LatencyBudget,
)

STEP_S = 0.01


@pytest.fixture
def latency() -> LatencyBudget:
    step = PlainStep()
    step.add(STEP_S)
    return LatencyBudget(step)


def round_of(latency: LatencyBudget, elapsed_s: float, n_guesses: int = 1) -> None:
    latency.ask()
    latency.n_guesses += n_guesses
    latency.elapsed_s += elapsed_s
    latency.end_round()


def test_many_times_late_again_and_again_is_a_fault_with_both_times(latency: LatencyBudget) -> None:
    for _ in range(ROUNDS_IN_A_ROW - 1):
        round_of(latency, 0.5)
    with pytest.raises(PredictorError, match=r"500 ms, where a plain step takes 10 ms"):
        round_of(latency, 0.5)


def test_a_predictor_that_finds_nothing_is_late_too(latency: LatencyBudget) -> None:
    for _ in range(ROUNDS_IN_A_ROW - 1):
        round_of(latency, 0.5, n_guesses=0)
    with pytest.raises(PredictorError):
        round_of(latency, 0.5, n_guesses=0)


def test_a_slow_moment_is_forgiven(latency: LatencyBudget) -> None:
    for _ in range(10):
        for _ in range(ROUNDS_IN_A_ROW - 1):
            round_of(latency, 0.5)
        round_of(latency, 0.0)


def test_rounds_without_a_draft_between_late_ones_forgive_nothing(latency: LatencyBudget) -> None:
    for _ in range(ROUNDS_IN_A_ROW - 1):
        round_of(latency, 0.5)
        latency.elapsed_s += 0.001
        latency.end_round()
    with pytest.raises(PredictorError):
        round_of(latency, 0.5)


def test_each_guess_may_take_its_time(latency: LatencyBudget) -> None:
    for _ in range(10):
        round_of(latency, 8 * LATE_STEPS * STEP_S, n_guesses=8)


def test_nothing_is_late_before_a_plain_step_is_known() -> None:
    latency = LatencyBudget(PlainStep())
    for _ in range(10):
        round_of(latency, 100.0)


def test_a_fast_model_does_not_make_a_predictor_late_within_milliseconds() -> None:
    step = PlainStep()
    step.add(1e-6)
    latency = LatencyBudget(step)
    for _ in range(10):
        round_of(latency, LATE_AT_LEAST_S)


def test_a_new_reply_starts_without_late_rounds(latency: LatencyBudget) -> None:
    for _ in range(10):
        latency.start()
        for _ in range(ROUNDS_IN_A_ROW - 1):
            round_of(latency, 0.5)
