"""Whether a predictor takes so long that no draft of it can pay."""

from engine.errors import PredictorError
from engine.speculation.cost import PlainStep

LATE_STEPS = 8.0
"""Plain steps that a guess may take. One is what the token costs without a draft; a draft model
that has to catch up needs two of its own steps for a first guess."""

LATE_AT_LEAST_S = 0.1
"""A round that was faster than this is never late: the system's clock ticks of 10 ms and other
programs make any code so slow now and then."""

ROUNDS_IN_A_ROW = 3
"""One late round is a cold cache or a long catch-up."""


class Lateness:
    """Compares the time that each round's guesses took to the plain step.

    A judgement needs a measured plain step; before there is one nothing is late.
    """

    def __init__(self, plain_step: PlainStep) -> None:
        self._plain_step = plain_step
        self.start()

    def start(self) -> None:
        """Forget the rounds so far; a reply begins."""
        self._n_late = 0
        self._begin_round()

    def spent(self, elapsed_s: float) -> None:
        """Add the time of one call."""
        self._elapsed_s += elapsed_s

    def ask(self) -> None:
        """Say that the predictor is asked for a draft in this round."""
        self._is_asked = True

    def count_guess(self) -> None:
        """Add a guess that was made."""
        self._n_guesses += 1

    def end_round(self) -> None:
        """Judge the round that ends; one in which nothing was asked says nothing.

        Raises:
            PredictorError: it was late, and so were the ones before it.
        """
        elapsed_s, allowed_s, is_asked = self._elapsed_s, self._allowed_s(), self._is_asked
        self._begin_round()
        if not is_asked:
            return
        if allowed_s is None or elapsed_s <= allowed_s:
            self._n_late = 0
            return
        self._n_late += 1
        if self._n_late >= ROUNDS_IN_A_ROW:
            step_s = self._plain_step.seconds or 0.0
            raise PredictorError(
                f"it answers late, {ROUNDS_IN_A_ROW} drafts in a row: the last one took "
                f"{elapsed_s * 1e3:.0f} ms, where a plain step takes {step_s * 1e3:.0f} ms"
            )

    def _allowed_s(self) -> float | None:
        step_s = self._plain_step.seconds
        if step_s is None:
            return None
        return max(LATE_AT_LEAST_S, LATE_STEPS * step_s * max(1, self._n_guesses))

    def _begin_round(self) -> None:
        self._elapsed_s = 0.0
        self._n_guesses = 0
        self._is_asked = False
