"""The predictor protocol, and the predictor of text that a grammar forces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # they import numpy, which the screen does not need
    from engine.grammar.mask import GrammarMask
    from engine.sampling import Distribution

FORCED_CONFIDENCE = 0.95
"""The forced text is certain, the model's tokenisation of it nearly so."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A drafted token; `confidence` from 0 to 1 is a probability or, without one, a rank."""

    token: int
    confidence: float
    distribution: "Distribution | None" = None
    """The distribution that the token was drawn from; None if it was chosen.

    Rejection needs it, and is exact only if no token is dropped because of the draw. So with a
    distribution, `confidence` is that of the likeliest token, and a draft may end before a token
    of low confidence but not drop one that was drawn."""


class Predictor(Protocol):
    """Proposes the next tokens; wrong ones cost time but never change the text.

    Life cycle: `reset` once per reply, `propose` before and `commit` after each round. `propose` is
    consumed one token at a time and may be abandoned at any point.
    """

    @property
    def name(self) -> str: ...

    def reset(self, history: Sequence[int]) -> None:
        """Start a reply after these committed tokens, including the pending one."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""

    def propose(self) -> Iterator[DraftToken]:
        """Yield the most likely next tokens, lazily."""


class ForcedPredictor:
    """Proposes the tokens of text that a grammar forces, such as the keys of a JSON object.

    If the model tokenises the text differently, the draft is refuted like any other.
    """

    name = "grammar"

    def __init__(self, mask: "GrammarMask") -> None:
        self._mask = mask
        self._tokens: list[int] = []

    def reset(self, history: Sequence[int]) -> None:
        self._tokens = list(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        for token in self._mask.forced_tokens(self._tokens):
            yield DraftToken(token, FORCED_CONFIDENCE)
