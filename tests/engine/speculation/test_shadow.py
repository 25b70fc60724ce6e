from engine.speculation.acceptance import Examined
from engine.speculation.drafter import Examiner
from engine.speculation.predictors.base import DraftToken


def guesses(*tokens: int) -> list[DraftToken]:
    return [DraftToken(token, 0.5) for token in tokens]


def test_guesses_are_examined_up_to_the_first_wrong_one() -> None:
    examiner = Examiner()
    examiner.follow("s", guesses(1, 2, 3), is_verified=True)
    assert examiner.examine([1, 9]) == (Examined("s", 0.5, 0, True), Examined("s", 0.5, 1, False))
    assert examiner.examine([3]) == ()


def test_guesses_that_nobody_verified_are_examined_as_the_line_goes_on() -> None:
    examiner = Examiner()
    examiner.follow("s", guesses(1, 2, 3), is_verified=False)
    assert examiner.examine([1]) == (Examined("s", 0.5, 0, True),)
    examiner.follow("s", guesses(7, 8), is_verified=False)
    assert examiner.examine([2]) == (Examined("s", 0.5, 1, True),)


def test_a_verified_draft_takes_the_place_of_an_older_one() -> None:
    examiner = Examiner()
    examiner.follow("s", guesses(1, 2, 3), is_verified=False)
    examiner.follow("s", guesses(5), is_verified=True)
    assert examiner.examine([5]) == (Examined("s", 0.5, 0, True),)
