import pytest

from engine.speculation.acceptance import Acceptance, Examined


def taught(outcomes: list[Examined], source: str = "s") -> Acceptance:
    acceptance = Acceptance()
    for outcome in outcomes:
        acceptance.add(source, outcome)
    return acceptance


def test_an_unknown_source_is_worth_a_try() -> None:
    assert Acceptance().share("s", 0.5, 0) > 0.6


def test_the_share_follows_what_was_examined() -> None:
    outcomes = [Examined(0.6, 0, n % 4 == 0) for n in range(400)]
    assert taught(outcomes).share("s", 0.6, 0) == pytest.approx(0.25, abs=0.08)


def test_sure_and_unsure_guesses_are_told_apart() -> None:
    outcomes = [Examined(0.95, 0, True), Examined(0.4, 0, False)] * 40
    acceptance = taught(outcomes)
    assert acceptance.share("s", 0.95, 0) > 0.9
    assert acceptance.share("s", 0.4, 0) < 0.15


def test_a_position_that_was_never_reached_follows_its_neighbours() -> None:
    acceptance = taught([Examined(0.6, 0, False)] * 60)
    assert acceptance.share("s", 0.6, 12) < 0.2


def test_sources_do_not_learn_from_one_another() -> None:
    acceptance = taught([Examined(0.6, 0, False)] * 60, source="other")
    assert acceptance.share("s", 0.6, 0) == Acceptance().share("s", 0.6, 0)


def test_old_text_is_forgotten() -> None:
    old, new = [Examined(0.6, 0, False)] * 300, [Examined(0.6, 0, True)] * 200
    assert taught(old + new).share("s", 0.6, 0) > 0.75
