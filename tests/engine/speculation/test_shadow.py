from engine.speculation.acceptance import Examined
from engine.speculation.drafter import Shadow
from engine.speculation.predictors.base import DraftToken


def guesses(*tokens: int) -> list[DraftToken]:
    return [DraftToken(token, 0.5) for token in tokens]


def test_guesses_are_examined_up_to_the_first_wrong_one() -> None:
    shadow = Shadow()
    shadow.follow(guesses(1, 2, 3), is_verified=True)
    assert shadow.examine([1, 9]) == (Examined(0.5, 0, True), Examined(0.5, 1, False))
    assert shadow.examine([3]) == ()


def test_guesses_that_nobody_verified_are_examined_as_the_line_goes_on() -> None:
    shadow = Shadow()
    shadow.follow(guesses(1, 2, 3), is_verified=False)
    assert shadow.examine([1]) == (Examined(0.5, 0, True),)
    shadow.follow(guesses(7, 8), is_verified=False)
    assert shadow.examine([2]) == (Examined(0.5, 1, True),)


def test_a_verified_draft_takes_the_place_of_an_older_one() -> None:
    shadow = Shadow()
    shadow.follow(guesses(1, 2, 3), is_verified=False)
    shadow.follow(guesses(5), is_verified=True)
    assert shadow.examine([5]) == (Examined(0.5, 0, True),)
