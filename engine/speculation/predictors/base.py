"""What a predictor promises."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.sampling.distribution import Distribution


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
    source: str | None = None
    """Name of the predictor that guessed it, where that is not the one that proposes it."""


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


@runtime_checkable
class AsksSources(Protocol):
    """A predictor that may ask several sources, each only by leave."""

    @property
    def asks_sources(self) -> bool:
        """Whether it asks for leave itself; else it is one source by its own name."""
        ...

    def gate(self, may_ask: Callable[[str], bool]) -> None:
        """Take who says, by name, whether a source is asked in this round."""
        ...


@runtime_checkable
class CatchesUp(Protocol):
    """A predictor that falls behind the line while it is not asked."""

    def limit_catch_up(self, affords: Callable[[int], bool]) -> None:
        """Take who says whether that many missed tokens are taken in, or a few of the last."""
        ...
