import numpy as np
import pytest

from engine.sampling import Dice, Distribution, uniform

EVEN = Distribution(np.arange(64), np.full(64, 1 / 64))
N = 3000


def draws(start_step: int, name: str) -> list[int]:
    """What is drawn for position n by the round that starts `start_step` tokens before it."""
    return [getattr(Dice(3, at - start_step), name)(EVEN, at) for at in range(100, 100 + N)]


def test_the_two_makers_of_a_round_s_dice_draw_the_same() -> None:
    assert draws(1, "draw_draft") == draws(1, "draw_draft")
    assert Dice(3, 8).accepts(0.4, 9) == Dice(3, 8).accepts(0.4, 9)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "draw_draft"), (1, "draw_draft")),
        ((0, "draw"), (1, "draw")),
        ((0, "draw"), (0, "draw_draft")),
    ],
)
def test_another_round_and_another_use_draw_afresh(
    one: tuple[int, str], other: tuple[int, str]
) -> None:
    same = sum(a == b for a, b in zip(draws(*one), draws(*other), strict=True))
    assert abs(same - N / 64) < 4 * (N / 64) ** 0.5


def test_it_accepts_with_the_given_probability() -> None:
    for probability in (0.0, 0.1, 0.7, 1.0):
        yes = sum(Dice(5, at).accepts(probability, at + 1) for at in range(N))
        assert abs(yes - probability * N) <= 4 * (N * probability * (1 - probability)) ** 0.5


def test_acceptance_is_independent_of_the_draft() -> None:
    table = np.zeros((2, 2))
    half = Distribution(np.arange(2), np.full(2, 0.5))
    for at in range(N):
        dice = Dice(5, at)
        table[dice.draw_draft(half, at), int(dice.accepts(0.5, at))] += 1
    assert float(((table - N / 4) ** 2 / (N / 4)).sum()) < 16.3, "p < 0.001"


def test_uniform_numbers_are_inside_the_unit_and_even() -> None:
    numbers = np.array([uniform(11, at) for at in range(N)])
    assert 0.0 < numbers.min() < numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert float(((counts - N / 10) ** 2 / (N / 10)).sum()) < 27.9, "p < 0.001"


def test_probabilities_of_cut_tokens_are_zero() -> None:
    found = Distribution(np.array([7, 2]), np.array([0.75, 0.25]))
    assert found.probabilities(np.array([0, 2, 7, 900])).tolist() == [0.0, 0.25, 0.75, 0.0]
    assert found.probability(7) == 0.75
    assert found.probability(3) == 0.0
