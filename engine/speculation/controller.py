"""Draft length controllers: the protocol and the fixed one."""

from collections.abc import Sequence
from typing import Protocol

from engine.events import RoundFinished
from engine.speculation.acceptance import Examined
from engine.speculation.predictors.base import DraftToken


class Controller(Protocol):
    """Sets the length of each draft; 0 is a plain round."""

    @property
    def length(self) -> int:
        """Expected tokens of the next draft, at most `MAX_DRAFT`."""
        ...

    @property
    def reason(self) -> str:
        """Reason for the length, as text for the screen."""
        ...

    def wants(self, source: str) -> bool:
        """Whether to ask a source for its first guess of the round."""
        ...

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        """Whether to pull another guess after `pulled` from the same source."""
        ...

    def affords_catch_up(self, n_tokens: int) -> bool:
        """Whether a draft model should decode all `n_tokens` that it missed."""
        ...

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        """Number of leading guesses to verify."""
        ...

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        """Record a finished round.

        Args:
            done: Its counts and times.
            examined: Guesses, also of an earlier draft, that were compared with the text.
        """
        ...


class FixedController:
    """Drafts of a fixed length from any source."""

    def __init__(self, n_draft: int) -> None:
        self.length = n_draft
        self.reason = f"fixed at {n_draft}"

    def wants(self, source: str) -> bool:  # noqa: ARG002  one rule for all
        return self.length > 0

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        return len(pulled) < self.length

    def affords_catch_up(self, n_tokens: int) -> bool:  # noqa: ARG002  at any cost
        return True

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        return len(pulled)

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        """A fixed rule learns nothing."""
