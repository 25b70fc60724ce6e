"""Time that drafts saved in one reply, and the first divergence of two replies."""

from collections.abc import Sequence as Tokens
from math import hypot

from engine.events import most_saved_s
from engine.speculation.costs import PlainStep


class TimeSaved:
    """Time that the drafts of a reply saved against plain steps, and its error.

    A round with a verified draft is compared with the plain steps of its tokens. A plain round
    loses its drafting time and, right after a batch, the time of switching back; its own speed is
    the machine's. Rounds before the plain step and its spread are known are compared later.

    Rounds between two plain steps share the plain step's error; the errors of different such runs
    are independent. The largest single gain or loss is added to the error.
    """

    def __init__(self) -> None:
        self._n_rounds = self._n_emitted = self._n_counted = 0
        self._decode_s = self._won_s = self._most_s = 0.0
        self._error_s = self._run_error_s = 0.0
        self._is_after_draft = False
        self._waiting: list[tuple[int, int, float, float, float]] = []
        """Rounds not compared yet."""

    @property
    def seconds(self) -> float | None:
        """Saved seconds, negative for a loss; None before a verified draft was compared."""
        if not self._n_counted:
            return None
        return min(self._won_s, most_saved_s(self._n_emitted, self._n_rounds, self._decode_s))

    @property
    def error_s(self) -> float | None:
        """Error of `seconds` in either direction; None if that is None."""
        if not self._n_counted:
            return None
        return hypot(self._error_s, self._run_error_s) + self._most_s

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
        """Record a round.

        Args:
            step: the present plain step.
            n_verified: drafted tokens in the batch; 0 in a plain round.
            n_emitted: tokens emitted.
            draft_s: drafting time, also if nothing was drafted.
            elapsed_s: time of the whole round.
            switching: extra share of a plain step right after a batch.
        """
        self._n_rounds += 1
        self._n_emitted += n_emitted
        self._decode_s += elapsed_s
        was_after_draft, self._is_after_draft = self._is_after_draft, n_verified > 0
        switching *= was_after_draft
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
            self._error_s = hypot(self._error_s, self._run_error_s)
            self._run_error_s = 0.0
            self._won_s -= draft_s + switching * plain_step_s
            return
        plain_s = n_emitted * plain_step_s
        self._n_counted += 1
        self._won_s += plain_s - elapsed_s
        self._most_s = max(self._most_s, abs(plain_s - elapsed_s))
        self._run_error_s += plain_s * spread


def first_divergence(first: Tokens[object], second: Tokens[object]) -> int | None:
    """Index of the first differing token or character; None if the replies are equal.

    If one reply is a prefix of the other, its length.
    """
    pairs = zip(first, second, strict=False)
    differing = (index for index, (one, other) in enumerate(pairs) if one != other)
    shorter = min(len(first), len(second))
    return next(differing, None if len(first) == len(second) else shorter)
