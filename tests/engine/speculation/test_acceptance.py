import random

import pytest

from engine.speculation.acceptance import FORGETTING, STRENGTH, Acceptance, Examined


def outcomes(confidence: float, rights: list[bool]) -> list[Examined]:
    return [Examined("suffix", confidence, right) for right in rights]


def test_outcomes_of_one_confidence_are_averaged_with_it() -> None:
    found = Acceptance()
    found.add(outcomes(0.6, [True, True, False]))
    n_right, n_seen = FORGETTING**2 + FORGETTING, FORGETTING**2 + FORGETTING + 1
    wanted = (n_right + STRENGTH * 0.6) / (n_seen + STRENGTH)
    assert found.share("suffix", 0.6) == pytest.approx(wanted)
    assert found.share("lookup", 0.6) == 0.6


@pytest.mark.parametrize("rate", [0.2, 0.6, 0.9])
def test_a_rate_is_learned_whatever_the_source_believes(rate: float) -> None:
    dice, found = random.Random(3), Acceptance()
    for _ in range(300):
        found.add(outcomes(0.85, [dice.random() < rate]))
    assert found.share("suffix", 0.85) == pytest.approx(rate, abs=0.12)


def test_each_confidence_has_its_own_rate_and_lends_it_to_those_without() -> None:
    found = Acceptance()
    for _ in range(100):
        found.add([*outcomes(0.95, [True]), *outcomes(0.4, [False])])
    assert found.share("suffix", 0.95) > 0.9
    assert found.share("suffix", 0.4) < 0.15
    assert 0.3 < found.share("suffix", 0.75) < 0.7
