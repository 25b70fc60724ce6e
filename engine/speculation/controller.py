"""How many tokens to draft: what a rule promises, the fixed rule and the band rule."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.speculation.acceptance import Examined
from engine.speculation.predictors.base import DraftToken


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a controller learns about a round."""

    n_verified: int
    n_examined: int
    n_accepted: int
    n_emitted: int
    n_drafted: int = 0
    """Guesses that were made, verified or not."""
    draft_s: float = 0.0
    verify_s: float | None = None
    """None where the time says nothing about later rounds, as behind a prefill."""
    examined: tuple[Examined, ...] = ()
    """Guesses of this draft or an earlier one that the line reached in this round."""


class Controller(Protocol):
    """Sets the length of each draft; 0 is a plain round."""

    @property
    def length(self) -> int:
        """Tokens that the next draft is likely to have, at most `MAX_DRAFT`."""
        ...

    @property
    def reason(self) -> str:
        """Why the length is what it is, in words for the screen."""
        ...

    def wants(self, source: str) -> bool:
        """Whether a source of guesses is asked for its first one in this round."""
        ...

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        """Whether the source that was asked last is to make one more guess behind those."""
        ...

    def affords_catch_up(self, n_tokens: int) -> bool:
        """Whether a draft model that missed that many tokens is to decode all of them."""
        ...

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        """The number of guesses that are verified, from the first one on."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Take the outcome of the round."""
        ...


class _ByLength:
    """A rule that knows its length before the round: it takes that many guesses, from anyone."""

    def __init__(self, length: int) -> None:
        self.length = length

    def wants(self, source: str) -> bool:  # noqa: ARG002  one rule for all
        return self.length > 0

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        return len(pulled) < self.length

    def affords_catch_up(self, n_tokens: int) -> bool:  # noqa: ARG002  whatever it costs
        return True

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        return len(pulled)


class FixedController(_ByLength):
    """Always the same length."""

    def __init__(self, n_draft: int) -> None:
        super().__init__(n_draft)
        self.reason = f"fixed at {n_draft}"

    def observe(self, outcome: RoundOutcome) -> None:
        """A fixed rule learns nothing."""


class BandController(_ByLength):
    """Longer above 80 % accepted, shorter below 40 %, off below a floor, and able to come back.

    The rate is accepted over examined tokens of the last rounds, 32 tokens at least half full. At
    length 1 and a rate under the floor it turns off; then one token is tried every so often, first
    after `RETRY_FIRST` emitted tokens, twice as late after each failed try. One accepted trial
    turns it on again at length 1 with an empty window.
    """

    WINDOW = 32
    UP, DOWN, FLOOR = 0.80, 0.40, 0.20
    RETRY_FIRST, RETRY_LAST = 24, 384

    def __init__(self, n_draft: int, n_draft_max: int) -> None:
        self._max = n_draft_max
        super().__init__(min(n_draft, n_draft_max))
        self._window: deque[bool] = deque(maxlen=self.WINDOW)
        self._is_on = True
        self._tokens_off = 0
        self._retry_after = self.RETRY_FIRST
        self.reason = "band: no rate yet"

    def observe(self, outcome: RoundOutcome) -> None:
        if self._is_on:
            self._adjust(outcome)
        else:
            self._consider_return(outcome)

    def _adjust(self, outcome: RoundOutcome) -> None:
        self._window.extend(index < outcome.n_accepted for index in range(outcome.n_examined))
        if len(self._window) < self.WINDOW // 2:
            return
        rate = sum(self._window) / len(self._window)
        if rate < self.FLOOR and self.length == 1:
            self._turn_off(rate)
        elif rate > self.UP and self.length < self._max:
            self._set_length(self.length + 1, f"{rate:.0%} accepted, above {self.UP:.0%}")
        elif rate < self.DOWN and self.length > 1:
            self._set_length(self.length - 1, f"{rate:.0%} accepted, below {self.DOWN:.0%}")
        else:
            self.reason = f"band: {rate:.0%} accepted, kept at {self.length}"

    def _set_length(self, length: int, why: str) -> None:
        self.length = length
        self._window.clear()
        self.reason = f"band: {why}, now {length}"

    def _turn_off(self, rate: float) -> None:
        self._is_on = False
        self.length = self._tokens_off = 0
        self.reason = f"band: off at {rate:.0%} accepted, tries again in {self._retry_after} tokens"

    def _consider_return(self, outcome: RoundOutcome) -> None:
        self._tokens_off += outcome.n_emitted
        if outcome.n_examined == 0:
            self.length = 1 if self._tokens_off >= self._retry_after else 0
            return
        self._tokens_off = 0
        self.length = 1 if outcome.n_accepted else 0
        if outcome.n_accepted:
            self._is_on = True
            self._window.clear()
            self._retry_after = self.RETRY_FIRST
            self.reason = "band: on again, a trial token was right"
        else:
            self._retry_after = min(2 * self._retry_after, self.RETRY_LAST)
            self.reason = f"band: off, a trial token was wrong, next in {self._retry_after} tokens"
