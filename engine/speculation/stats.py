"""What drafts saved in one reply, and where two replies part."""

from collections.abc import Sequence as Tokens
from math import hypot

from engine.events import most_saved_s
from engine.speculation.costs import PlainStep


class TimeSaved:
    """What the drafts of a reply saved against plain steps, and how far that may be off.

    A round that verified a draft is compared with the plain steps that its tokens would have taken.
    Any other one lost what it spent on guesses and, right behind a batch, on switching back; that
    it was slow itself is the machine's doing and no draft's. Rounds from before the plain step and
    its spread are known are compared as soon as they are.

    Rounds between two plain steps share an error of the plain step, those of different stretches do
    not. No round decides alone: what the one that won or lost most did is a part of the error.
    """

    def __init__(self) -> None:
        self._n_rounds = self._n_emitted = self._n_counted = 0
        self._decode_s = self._won_s = self._most_s = 0.0
        self._error_s = self._stretch_error_s = 0.0
        self._is_behind_draft = False
        self._waiting: list[tuple[int, int, float, float, float]] = []
        """Rounds that nothing could be compared with yet."""

    @property
    def seconds(self) -> float | None:
        """Negative is a loss; None where no verified draft could be compared."""
        if not self._n_counted:
            return None
        return min(self._won_s, most_saved_s(self._n_emitted, self._n_rounds, self._decode_s))

    @property
    def error_s(self) -> float | None:
        """How far it may be off, either way; None where it is."""
        if not self._n_counted:
            return None
        return hypot(self._error_s, self._stretch_error_s) + self._most_s

    def add(
        self,
        step: PlainStep,
        *,
        n_verified: int,
        n_emitted: int,
        draft_s: float,
        elapsed_s: float,
        switching: float = 0.0,
    ) -> None:
        """Take a round.

        Args:
            step: the plain step as it is known by now.
            n_verified: drafted tokens in the batch, 0 of a plain round.
            n_emitted: tokens that it gave.
            draft_s: time of guessing, whether anything was guessed or not.
            elapsed_s: time of the whole round.
            switching: share that a plain step right behind a batch takes longer.
        """
        self._n_rounds += 1
        self._n_emitted += n_emitted
        self._decode_s += elapsed_s
        was_behind_draft, self._is_behind_draft = self._is_behind_draft, n_verified > 0
        switching *= was_behind_draft
        self._waiting.append((n_verified, n_emitted, draft_s, elapsed_s, switching))
        if step.seconds is not None and step.spread is not None:
            for counts in self._waiting:
                self._compare(step.seconds, step.spread, *counts)
            self._waiting.clear()

    def _compare(
        self,
        plain_step_s: float,
        spread: float,
        n_verified: int,
        n_emitted: int,
        draft_s: float,
        elapsed_s: float,
        switching: float,
    ) -> None:
        if not n_verified:
            self._error_s = hypot(self._error_s, self._stretch_error_s)
            self._stretch_error_s = 0.0
            self._won_s -= draft_s + switching * plain_step_s
            return
        plain_s = n_emitted * plain_step_s
        self._n_counted += 1
        self._won_s += plain_s - elapsed_s
        self._most_s = max(self._most_s, abs(plain_s - elapsed_s))
        self._stretch_error_s += plain_s * spread


def first_divergence(first: Tokens[object], second: Tokens[object]) -> int | None:
    """The index of the first token or letter that differs, None where two replies are the same.

    Where one reply is the start of the other, that is the length of the shorter one: it ended
    where the other went on.
    """
    pairs = zip(first, second, strict=False)
    differing = (index for index, (one, other) in enumerate(pairs) if one != other)
    shorter = min(len(first), len(second))
    return next(differing, None if len(first) == len(second) else shorter)
