import pytest

from engine.speculation.acceptance import Acceptance, Examined


def taught(outcomes: list[Examined]) -> Acceptance:
    acceptance = Acceptance()
    for outcome in outcomes:
        acceptance.add([outcome])
    return acceptance


def test_the_confidence_of_an_unknown_source_is_believed() -> None:
    assert Acceptance().share("s", 0.5) == pytest.approx(0.5)
    assert Acceptance().share("s", 0.9) == pytest.approx(0.9)


def test_a_source_that_is_right_more_often_than_it_says_is_known_for_it_at_every_confidence() -> (
    None
):
    acceptance = taught([Examined("s", 0.5, n % 10 > 0) for n in range(100)])
    assert acceptance.share("s", 0.75) > 0.85


def test_the_share_follows_what_was_examined() -> None:
    outcomes = [Examined("s", 0.6, n % 4 == 0) for n in range(400)]
    assert taught(outcomes).share("s", 0.6) == pytest.approx(0.25, abs=0.08)


def test_sure_and_unsure_guesses_are_told_apart() -> None:
    outcomes = [Examined("s", 0.95, True), Examined("s", 0.4, False)] * 40
    acceptance = taught(outcomes)
    assert acceptance.share("s", 0.95) > 0.8
    assert acceptance.share("s", 0.4) < 0.2


def test_a_confidence_that_was_never_seen_follows_its_neighbours() -> None:
    acceptance = taught([Examined("s", 0.6, False)] * 60)
    assert acceptance.share("s", 0.75) < 0.4


def test_sources_do_not_learn_from_one_another() -> None:
    acceptance = taught([Examined("other", 0.6, False)] * 60)
    assert acceptance.share("s", 0.6) == Acceptance().share("s", 0.6)


def test_old_text_is_forgotten() -> None:
    old, new = [Examined("s", 0.6, False)] * 300, [Examined("s", 0.6, True)] * 200
    assert taught(old + new).share("s", 0.6) > 0.75


def test_a_passage_that_is_copied_again_is_known_at_once() -> None:
    prose, copied = [Examined("s", 0.6, False)] * 60, [Examined("s", 0.6, True)] * 60
    assert taught(copied + prose).share("s", 0.6) < 0.2
    assert taught(copied + prose + copied[:8]).share("s", 0.6) > 0.8


def test_a_source_is_known_once_its_outcomes_weigh_as_much_as_its_own_word() -> None:
    assert not taught([Examined("s", 0.6, True)] * 7).is_known("s")
    assert taught([Examined("s", 0.6, True)] * 8).is_known("s")
    assert not taught([Examined("other", 0.6, True)] * 8).is_known("s")
