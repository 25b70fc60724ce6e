"""A predictor that is many times slower than the model itself is told apart from a slow moment."""

import pytest

from engine.errors import PredictorError
from engine.speculation.costs import PlainStep
from engine.speculation.predictors.guard import (
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
    with pytest.raises(PredictorError, match=r"500 ms.* 10 ms"):
        round_of(latency, 0.5)


def test_a_slow_moment_is_forgiven(latency: LatencyBudget) -> None:
    for _ in range(10):
        for _ in range(ROUNDS_IN_A_ROW - 1):
            round_of(latency, 0.5)
        round_of(latency, 0.0)


def test_each_guess_may_take_its_time(latency: LatencyBudget) -> None:
    for _ in range(10):
        round_of(latency, 8 * LATE_STEPS * STEP_S, n_guesses=8)


def test_nothing_is_late_before_a_plain_step_is_known() -> None:
    latency = LatencyBudget(PlainStep())
    for _ in range(10):
        round_of(latency, 100.0)
