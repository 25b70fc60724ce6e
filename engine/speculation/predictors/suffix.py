"""What mostly followed where the line's end stood before: in this chat, or in past replies."""

from collections.abc import Iterator, Sequence

from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.ngram_index import (
    BETWEEN,
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


PAST_ORDERS = (3, 6)
PAST_REACH = 32
DOUBT = 2.0


class PastRepliesPredictor:
    """Proposes the most frequent continuation of the line's end in replies of other chats.

    The second tree of suffix decoding (Oliaro et al. 2024, arXiv 2411.04975). Another chat says
    less about this one than this one itself, so three tokens must agree at least, and a place
    weighs less (`DOUBT` in `c / (n + DOUBT / m)`, 1 for the suffixes of this chat). Replies are
    token ids of one vocabulary; who gives them bounds their number and leaves deleted chats out.
    """

    name = "past"

    def __init__(self, replies: Sequence[Sequence[int]], *, min_confidence: float) -> None:
        self._min_confidence = min_confidence
        self._end: list[int] = []
        self._places = Places(PAST_ORDERS, reach=PAST_REACH)
        self.learn(replies)

    def learn(self, replies: Sequence[Sequence[int]]) -> None:
        """Add newer replies."""
        for reply in replies:
            self._places.append((*reply, BETWEEN))

    def reset(self, history: Sequence[int]) -> None:
        self._end = list(history[-PAST_REACH:])

    def commit(self, tokens: Sequence[int]) -> None:
        self._end = [*self._end, *tokens][-PAST_REACH:]

    def propose(self) -> Iterator[DraftToken]:
        alive = deepest_first(self._places, self._end)
        return likely_continuation(self._places, alive, self._min_confidence, doubt=DOUBT)

    def close(self) -> None:
        self._end = []
