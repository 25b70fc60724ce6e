"""What mostly followed where the line's end stood before in this chat."""

from collections.abc import Iterator, Sequence

from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.ngram_index import (
    Places,
    deepest_first,
    likely_continuation,
)

ORDERS = (2, 4, 8)
REACH = 32


class SuffixPredictor:
    """Proposes the most frequent continuation of the line's end, as long as it is likely enough.

    Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975) keeps counts in a suffix tree. Here the
    newest places that share the line's end stand for the nodes of that tree: those
    that agree in at least `m` tokens are the node of depth `m`, and the tokens behind them are its
    counts. A token that follows `c` of `n` places of depth `m` has probability `c / (n + 1 / m)`,
    so one place that agrees far is worth as much as several that agree little; the depth with the
    largest value decides. The draft ends where the product of its probabilities falls below
    `min_confidence`: there a further token would more often be wrong than that.
    """

    name = "suffix"

    def __init__(self, *, min_confidence: float) -> None:
        self._min_confidence = min_confidence
        self._places = Places(ORDERS, reach=REACH)

    def reset(self, history: Sequence[int]) -> None:
        self._places.become(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._places.append(tokens)

    def propose(self) -> Iterator[DraftToken]:
        alive = deepest_first(self._places)
        return likely_continuation(self._places, alive, self._min_confidence)

    def close(self) -> None:
        self._places.reset(())
