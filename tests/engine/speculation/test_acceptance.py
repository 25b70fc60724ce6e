import pytest

from engine.speculation.acceptance import Acceptance, Examined


def taught(outcomes: list[Examined]) -> Acceptance:
    acceptance = Acceptance()
    for outcome in outcomes:
        acceptance.add([outcome])
    return acceptance


def test_the_share_follows_what_was_examined() -> None:
    outcomes = [Examined("s", 0.6, n % 4 == 0) for n in range(400)]
    assert taught(outcomes).share("s", 0.6) == pytest.approx(0.25, abs=0.08)


def test_sure_and_unsure_guesses_are_told_apart() -> None:
    outcomes = [Examined("s", 0.95, True), Examined("s", 0.4, False)] * 40
    acceptance = taught(outcomes)
    assert acceptance.share("s", 0.95) > 0.8
    assert acceptance.share("s", 0.4) < 0.2


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
