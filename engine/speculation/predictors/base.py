"""What a predictor promises."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One guess.

    `confidence` is between 0 and 1: a probability where the predictor has one, else a rank.
    """

    token: int
    confidence: float


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
        """Give back what is held."""
        ...
