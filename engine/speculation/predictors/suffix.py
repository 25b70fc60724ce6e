"""Suffix decoding: propose the most frequent continuation of the last tokens in this chat."""

from collections.abc import Iterator, Sequence

from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.ngram_index import (
    NgramIndex,
    deepest_first,
    likely_continuation,
)

ORDERS = (2, 4, 8)
REACH = 32


class SuffixPredictor:
    """Proposes the most frequent continuation of the last tokens while it is likely enough.

    Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975) stores counts in a suffix tree. Here the
    newest occurrences of the last tokens replace it: those that match at least `m` tokens are the
    node of depth `m`, and the tokens after them are its counts. A token that follows `c` of `n`
    occurrences of depth `m` has probability `c / (n + 1 / m)`, so one long match is worth as much
    as several short ones; the depth with the largest value decides. The draft ends when the product
    of its probabilities falls below `min_confidence`.
    """

    name = "suffix"

    def __init__(self, *, min_confidence: float) -> None:
        self._min_confidence = min_confidence
        self._places = NgramIndex(ORDERS, reach=REACH)

    def reset(self, history: Sequence[int]) -> None:
        self._places.replace(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._places.append(tokens)

    def propose(self) -> Iterator[DraftToken]:
        alive = deepest_first(self._places)
        return likely_continuation(self._places, alive, self._min_confidence)

    def close(self) -> None:
        self._places.reset(())
