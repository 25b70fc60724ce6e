"""Suffixes: what mostly followed wherever the line's end stood before."""

from collections.abc import Iterator, Sequence
from itertools import islice

from engine.errors import PresetError
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.places import Place, Places

ORDERS = (2, 4, 8)
REACH = 32
MAX_PLACES = 32


class SuffixPredictor:
    """Proposes the most frequent continuation of the line's end, as long as it is likely enough.

    Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975) keeps counts in a suffix tree. Here the
    newest `MAX_PLACES` places that share the line's end stand for the nodes of that tree: those
    that agree in at least `m` tokens are the node of depth `m`, and the tokens behind them are its
    counts. A token that follows `c` of `n` places of depth `m` has probability `c / (n + 1 / m)`,
    so one place that agrees far is worth as much as several that agree little; the depth with the
    largest value decides. The draft ends where the product of its probabilities falls below
    `min_confidence`: there a further token would more often be wrong than that.
    """

    name = "suffix"

    def __init__(self, *, min_confidence: float) -> None:
        if not 0.0 <= min_confidence <= 1.0:
            raise PresetError(
                f"suffix_min_confidence is {min_confidence:g}: it is a probability, 0 to 1"
            )
        self._min_confidence = min_confidence
        self._places = Places(ORDERS, reach=REACH)

    def reset(self, history: Sequence[int]) -> None:
        self._places.become(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._places.append(tokens)

    def propose(self) -> Iterator[DraftToken]:
        alive = self._deepest_first()
        drafted: list[int] = []
        expected = 1.0
        while alive:
            followers = [self._places.token(at + len(drafted), drafted) for at, _ in alive]
            token, confidence = most_likely(followers, [n + len(drafted) for _, n in alive])
            expected *= confidence
            if expected < self._min_confidence:
                return
            yield DraftToken(token, confidence)
            drafted.append(token)
            alive = [place for place, said in zip(alive, followers, strict=True) if said == token]

    def close(self) -> None:
        self._places.reset(())

    def _deepest_first(self) -> list[Place]:
        """Give the places that agree furthest, newest first among equals."""
        found: dict[int, Place] = {}
        for order in self._places.orders:
            for place in islice(self._places.of_order(order), MAX_PLACES):
                if len(found) < MAX_PLACES:
                    found[place.at] = place
        return sorted(found.values(), key=lambda place: (-place.n_agreed, -place.at))


def most_likely(followers: Sequence[int], depths: Sequence[int]) -> tuple[int, float]:
    """Give the likeliest of the tokens that follow places, with its probability.

    `depths` is how far each place agrees, deepest first; every depth is asked, with the places
    that agree at least as far.
    """
    counts: dict[int, int] = {}
    leader, best, best_probability = followers[0], followers[0], 0.0
    for index, (token, depth) in enumerate(zip(followers, depths, strict=True)):
        counts[token] = counts.get(token, 0) + 1
        if counts[token] > counts[leader]:
            leader = token
        if index + 1 < len(depths) and depths[index + 1] == depth:
            continue
        probability = counts[leader] / (index + 1 + 1 / depth)
        if probability > best_probability:
            best, best_probability = leader, probability
    return best, best_probability
