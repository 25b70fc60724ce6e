"""What a predictor promises."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.sampling import Distribution


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One guess.

    `confidence` is between 0 and 1: a probability where the predictor has one, else a rank.
    """

    token: int
    confidence: float
    distribution: Distribution | None = None
    """The law that the token was drawn from, None where it follows from the line alone.

    Rejection and block verification need it, and are exact only if no token is dropped for what
    was drawn: with a law, `confidence` is that of the likeliest token, whichever was drawn, and a
    draft may be ended in front of a token of low confidence but not be withdrawn for it."""


class Predictor(Protocol):
    """Guesses the next tokens; a wrong guess costs time and never text.

    Life cycle: `reset` once a reply, then `commit` after each round and `propose` before the next,
    `close` at the end. `propose` is pulled one token at a time and may be left at any point.
    """

    @property
    def name(self) -> str: ...

    def reset(self, history: Sequence[int]) -> None:
        """Start from a line of committed tokens, the pending one included."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Add tokens that became part of the line."""
        ...

    def propose(self) -> Iterator[DraftToken]:
        """Guess the tokens behind the line, most likely continuation, lazily."""
        ...

    def close(self) -> None:
        """Free what is held."""
        ...
