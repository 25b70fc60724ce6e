import random

from engine.speculation.budget import LIMIT, SHARE, START, SlowdownBudget


def test_the_worst_luck_costs_no_more_than_promised() -> None:
    rng = random.Random(3)
    budget, n_tokens, n_steps = SlowdownBudget(), 0, 0.0
    for _ in range(2000):
        extra = rng.uniform(0.0, 4.0)
        spent = 1.0 + extra if budget.allows(extra) else 1.0
        budget.settle(1, spent)
        n_tokens, n_steps = n_tokens + 1, n_steps + spent
        assert n_steps <= (1 + SHARE) * n_tokens + START + 1e-9
    assert n_steps > n_tokens + START


def test_time_that_was_won_may_be_risked_up_to_a_limit() -> None:
    budget = SlowdownBudget()
    assert not budget.allows(LIMIT)
    for _ in range(50):
        budget.settle(4, 2.0)
    assert budget.allows(LIMIT)
    assert not budget.allows(LIMIT + 0.1)
