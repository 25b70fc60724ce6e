"""What a grammar leaves no choice about needs no guess by anyone: it is drafted as it must come."""

from collections.abc import Iterator, Sequence

from engine.grammar.mask import GrammarMask
from engine.speculation.predictors.base import DraftToken

CONFIDENCE = 0.95
"""The text is certain; that the model spells it with the same tokens nearly is."""


class ForcedPredictor:
    """Proposes the tokens of the text that a grammar forces behind the line, and else nothing.

    Keys of a JSON object and what stands between them are such text. Where the model would spell it
    with other tokens that the grammar allows too, the draft is refuted like any other.
    """

    name = "grammar"

    def __init__(self, mask: GrammarMask) -> None:
        self._mask = mask
        self._line: list[int] = []

    def reset(self, history: Sequence[int]) -> None:
        self._line = list(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._line.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        for token in self._mask.forced(self._line):
            yield DraftToken(token, CONFIDENCE)

    def close(self) -> None:
        self._line = []
