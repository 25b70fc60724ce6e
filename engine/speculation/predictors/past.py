"""Past replies: what a model said in other chats, it may say again."""

from collections.abc import Iterator, Sequence

from engine.errors import PresetError
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.continuation import deepest_first, likely_continuation
from engine.speculation.predictors.places import BETWEEN, Places

ORDERS = (3, 6)
REACH = 32
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
        if not 0.0 <= min_confidence <= 1.0:
            raise PresetError(
                f"suffix_min_confidence is {min_confidence:g}: it is a probability, 0 to 1"
            )
        self._min_confidence = min_confidence
        self._end: list[int] = []
        self._places = Places(ORDERS, reach=REACH)
        self.learn(replies)

    def learn(self, replies: Sequence[Sequence[int]]) -> None:
        """Add newer replies."""
        for reply in replies:
            self._places.append((*reply, BETWEEN))

    def reset(self, history: Sequence[int]) -> None:
        self._end = list(history[-REACH:])

    def commit(self, tokens: Sequence[int]) -> None:
        self._end = [*self._end, *tokens][-REACH:]

    def propose(self) -> Iterator[DraftToken]:
        alive = deepest_first(self._places, self._end)
        return likely_continuation(self._places, alive, self._min_confidence, doubt=DOUBT)

    def close(self) -> None:
        self._end = []
