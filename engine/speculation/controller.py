"""How many tokens to draft: what a rule promises, and the fixed rule."""

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


class FixedController:
    """Always the same length, of guesses from anyone."""

    def __init__(self, n_draft: int) -> None:
        self.length = n_draft
        self.reason = f"fixed at {n_draft}"

    def wants(self, source: str) -> bool:  # noqa: ARG002  one rule for all
        return self.length > 0

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        return len(pulled) < self.length

    def affords_catch_up(self, n_tokens: int) -> bool:  # noqa: ARG002  whatever it costs
        return True

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        return len(pulled)

    def observe(self, outcome: RoundOutcome) -> None:
        """A fixed rule learns nothing."""
