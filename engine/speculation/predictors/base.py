"""What a predictor promises, and the one that drafts what a grammar leaves no choice about."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # with numpy, which the screen does without
    from engine.grammar.mask import GrammarMask
    from engine.sampling import Distribution

FORCED_CONFIDENCE = 0.95
"""The forced text is certain; that the model spells it with the same tokens nearly is."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One guess.

    `confidence` is between 0 and 1: a probability where the predictor has one, else a rank.
    """

    token: int
    confidence: float
    distribution: "Distribution | None" = None
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


class ForcedPredictor:
    """Proposes the tokens of the text that a grammar forces behind the line, and else nothing.

    Keys of a JSON object and what stands between them are such text. Where the model would spell it
    with other tokens that the grammar allows too, the draft is refuted like any other.
    """

    name = "grammar"

    def __init__(self, mask: "GrammarMask") -> None:
        self._mask = mask
        self._line: list[int] = []

    def reset(self, history: Sequence[int]) -> None:
        self._line = list(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._line.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        for token in self._mask.forced_tokens(self._line):
            yield DraftToken(token, FORCED_CONFIDENCE)

    def close(self) -> None:
        self._line = []
