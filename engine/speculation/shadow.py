"""What the line says about guesses, verified or not."""

from collections.abc import Sequence

from engine.speculation.acceptance import Examined
from engine.speculation.predictors.base import DraftToken


class Shadow:
    """Follows one draft until the line parts from it.

    A guess is examined when the line reaches it, whether a batch verified it or a plain step came
    by, so a source that is off stays known without being paid for. A draft that was verified takes
    the place of the one followed; one that was not waits for its turn, so that outcomes do not
    overlap.
    """

    def __init__(self) -> None:
        self._guesses: Sequence[DraftToken] = ()
        self._n_reached = 0

    def follow(self, guesses: Sequence[DraftToken], *, is_verified: bool) -> None:
        """Take the draft of a round."""
        if is_verified or self._n_reached >= len(self._guesses):
            self._guesses, self._n_reached = guesses, 0

    def examine(self, committed: Sequence[int]) -> tuple[Examined, ...]:
        """Compare what the line became with the guesses, up to the first wrong one."""
        examined: list[Examined] = []
        for token in committed:
            if self._n_reached >= len(self._guesses):
                break
            guess = self._guesses[self._n_reached]
            is_right = guess.token == token
            examined.append(Examined(guess.confidence, self._n_reached, is_right, guess.source))
            self._n_reached = self._n_reached + 1 if is_right else len(self._guesses)
        return tuple(examined)
