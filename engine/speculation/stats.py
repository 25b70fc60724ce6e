"""Time that drafts saved in one reply, and the first divergence of two replies."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from math import hypot

from engine.events import most_saved_s
from engine.speculation.costs import PlainStep


@dataclass(frozen=True, slots=True)
class _Round:
    n_verified: int
    n_emitted: int
    draft_s: float
    elapsed_s: float


class TimeSaved:
    """Time that the drafts of a reply saved against plain steps, and its error.

    A round with a verified draft is compared with the plain steps of its tokens; a plain round
    loses its drafting time. Rounds before the plain step and its spread are known are compared
    later.

    Rounds between two plain steps share the plain step's error; the errors of different such runs
    are independent. The largest single gain or loss is added to the error.
    """

    def __init__(self) -> None:
        self._n_rounds = self._n_emitted = self._n_compared = 0
        self._decode_s = self._won_s = self._most_s = 0.0
        self._error_s = self._run_error_s = 0.0
        self._waiting: list[_Round] = []

    @property
    def seconds(self) -> float | None:
        """Saved seconds, negative for a loss; None before a verified draft was compared."""
        if not self._n_compared:
            return None
        return min(self._won_s, most_saved_s(self._n_emitted, self._n_rounds, self._decode_s))

    @property
    def error_s(self) -> float | None:
        """Error of `seconds` in either direction; None if that is None."""
        if not self._n_compared:
            return None
        return hypot(self._error_s, self._run_error_s) + self._most_s

    def add(
        self, step: PlainStep, *, n_verified: int, n_emitted: int, draft_s: float, elapsed_s: float
    ) -> None:
        """Record a round.

        Args:
            step: the present plain step.
            n_verified: drafted tokens in the batch; 0 in a plain round.
            n_emitted: tokens emitted.
            draft_s: drafting time, also if nothing was drafted.
            elapsed_s: time of the whole round.
        """
        self._n_rounds += 1
        self._n_emitted += n_emitted
        self._decode_s += elapsed_s
        self._waiting.append(_Round(n_verified, n_emitted, draft_s, elapsed_s))
        spread = step.spread
        if step.seconds is not None and spread is not None:
            for each in self._waiting:
                self._compare(each, step.seconds, spread)
            self._waiting.clear()

    def _compare(self, done: _Round, plain_step_s: float, spread: float) -> None:
        if not done.n_verified:
            self._error_s = hypot(self._error_s, self._run_error_s)
            self._run_error_s = 0.0
            self._won_s -= done.draft_s
            return
        plain_s = done.n_emitted * plain_step_s
        self._n_compared += 1
        self._won_s += plain_s - done.elapsed_s
        self._most_s = max(self._most_s, abs(plain_s - done.elapsed_s))
        self._run_error_s += plain_s * spread


def first_divergence(first: Tokens[object], second: Tokens[object]) -> int | None:
    """Index of the first differing token or character; None if the replies are equal.

    If one reply is a prefix of the other, its length.
    """
    pairs = zip(first, second, strict=False)
    differing = (index for index, (one, other) in enumerate(pairs) if one != other)
    shorter = min(len(first), len(second))
    return next(differing, None if len(first) == len(second) else shorter)
