"""How many tokens to draft: what a rule promises, and the fixed rule."""

from collections.abc import Sequence
from typing import Protocol

from engine.events import RoundFinished
from engine.speculation.acceptance import Examined
from engine.speculation.predictors.base import DraftToken


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

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        """Take a round that was made.

        Args:
            done: Its counts and times; what comes next is not decided yet. The time of one that
                was decoded again says nothing of later ones.
            examined: Guesses of this draft or an earlier one that the text reached in it.
        """
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

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        """A fixed rule learns nothing."""
