"""Draft length controllers: the protocol and the fixed one."""

from collections.abc import Sequence
from typing import Protocol

from engine.events import RoundFinished
from engine.speculation.acceptance import Examined
from engine.speculation.predictors.base import DraftToken

PLAIN_STEP_EVERY = 256
"""Tokens between two plain rounds that measure the plain step."""
ROUNDS_BEFORE_PLAIN_STEP = 4
MIN_PLAIN_STEPS = 3
"""Plain steps of a session needed to measure their spread."""


class Controller(Protocol):
    """Sets the length of each draft; 0 is a plain round."""

    @property
    def length(self) -> int:
        """Expected tokens of the next draft, at most `MAX_DRAFT`."""

    @property
    def reason(self) -> str:
        """Reason for the length, as text for the screen."""

    def wants(self, source: str) -> bool:
        """Whether to ask a source for its first token of the round."""

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        """Whether to pull another token after `pulled` from the same source."""

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        """Number of leading tokens to verify."""

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        """Record a finished round.

        Args:
            done: Its counts and times.
            examined: Drafted tokens, also of an earlier draft, that were compared with the text.
        """


class FixedController:
    """Drafts of a fixed length from any source, with plain rounds to measure the plain step.

    Args:
        n_draft: The length.
        n_plain_steps: Plain steps that the session has measured.
    """

    def __init__(self, n_draft: int, n_plain_steps: int = MIN_PLAIN_STEPS) -> None:
        self.reason = f"fixed at {n_draft}"
        self._n_draft, self._n_plain_steps = n_draft, n_plain_steps
        self._rounds_drafted = self._tokens_since_plain = 0

    @property
    def length(self) -> int:
        is_unknown = self._n_plain_steps < MIN_PLAIN_STEPS
        is_due = is_unknown and self._rounds_drafted >= ROUNDS_BEFORE_PLAIN_STEP
        return 0 if is_due or self._tokens_since_plain >= PLAIN_STEP_EVERY else self._n_draft

    def wants(self, source: str) -> bool:  # noqa: ARG002  one rule for all
        return self.length > 0

    def wants_another(self, pulled: Sequence[DraftToken]) -> bool:
        return len(pulled) < self._n_draft

    def n_to_verify(self, pulled: Sequence[DraftToken]) -> int:
        return len(pulled)

    def observe(self, done: RoundFinished, examined: Sequence[Examined] = ()) -> None:
        del examined
        self._tokens_since_plain += done.n_emitted
        if done.n_verified:
            self._rounds_drafted += 1
        else:
            self._n_plain_steps += 1
            self._tokens_since_plain = 0
