import pytest

from engine.speculation.acceptance import Acceptance, Examined


def taught(outcomes: list[Examined]) -> Acceptance:
    acceptance = Acceptance()
    for outcome in outcomes:
        acceptance.add([outcome])
    return acceptance


def test_the_confidence_of_an_unknown_source_is_believed() -> None:
    assert Acceptance().share("s", 0.5, 0) == pytest.approx(0.5)
    assert Acceptance().share("s", 0.9, 0) == pytest.approx(0.9)


def test_a_source_that_is_right_more_often_than_it_says_is_known_for_it_at_every_confidence() -> (
    None
):
    acceptance = taught([Examined("s", 0.5, 0, n % 10 > 0) for n in range(100)])
    assert acceptance.share("s", 0.75, 0) > 0.85


def test_the_share_follows_what_was_examined() -> None:
    outcomes = [Examined("s", 0.6, 0, n % 4 == 0) for n in range(400)]
    assert taught(outcomes).share("s", 0.6, 0) == pytest.approx(0.25, abs=0.08)


def test_sure_and_unsure_guesses_are_told_apart() -> None:
    outcomes = [Examined("s", 0.95, 0, True), Examined("s", 0.4, 0, False)] * 40
    acceptance = taught(outcomes)
    assert acceptance.share("s", 0.95, 0) > 0.8
    assert acceptance.share("s", 0.4, 0) < 0.2


def test_a_position_that_was_never_reached_follows_its_neighbours() -> None:
    acceptance = taught([Examined("s", 0.6, 0, False)] * 60)
    assert acceptance.share("s", 0.6, 12) < 0.2


def test_sources_do_not_learn_from_one_another() -> None:
    acceptance = taught([Examined("other", 0.6, 0, False)] * 60)
    assert acceptance.share("s", 0.6, 0) == Acceptance().share("s", 0.6, 0)


def test_old_text_is_forgotten() -> None:
    old, new = [Examined("s", 0.6, 0, False)] * 300, [Examined("s", 0.6, 0, True)] * 200
    assert taught(old + new).share("s", 0.6, 0) > 0.75


def test_a_passage_that_is_copied_again_is_known_at_once() -> None:
    prose, copied = [Examined("s", 0.6, 0, False)] * 60, [Examined("s", 0.6, 0, True)] * 60
    assert taught(copied + prose).share("s", 0.6, 0) < 0.2
    assert taught(copied + prose + copied[:8]).share("s", 0.6, 0) > 0.8


def test_a_draft_is_right_up_to_a_place_if_all_before_it_are() -> None:
    acceptance = taught([Examined("s", 0.6, 0, True), Examined("s", 0.6, 1, True)] * 40)
    first = acceptance.share("s", 0.6, 0)
    second = acceptance.share("s", 0.6, 1)
    assert acceptance.products([("s", 0.6)] * 2) == pytest.approx([first, first * second])
