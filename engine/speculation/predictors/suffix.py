"""Suffix decoding: propose the most frequent continuation of the last tokens in this chat."""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.ngram_index import NgramIndex, Occurrence

ORDERS = (2, 4, 8)
REACH = 32
MAX_OCCURRENCES = 32
DEEPEST = itemgetter(1, 0)


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
        self._index = NgramIndex(ORDERS, reach=REACH)

    def reset(self, history: Sequence[int]) -> None:
        self._index.replace(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._index.append(tokens)

    def propose(self) -> Iterator[DraftToken]:
        alive = self._deepest_first()
        drafted: list[int] = []
        expected = 1.0
        while alive:
            following = self._index.following(alive, drafted)
            depths = [n_agreed + len(drafted) for _, n_agreed in alive]
            token, confidence = most_likely(following, depths)
            expected *= confidence
            if token < 0 or expected < self._min_confidence:  # an image
                return
            yield DraftToken(token, confidence)
            drafted.append(token)
            alive = [one for one, each in zip(alive, following, strict=True) if each == token]

    def _deepest_first(self) -> list[Occurrence]:
        """Up to `MAX_OCCURRENCES` by match length, newest first among equals."""
        found: dict[int, Occurrence] = {}
        for order in self._index.orders:
            for occurrence in islice(self._index.of_order(order), MAX_OCCURRENCES):
                found[occurrence.at] = occurrence
                if len(found) == MAX_OCCURRENCES:
                    return sorted(found.values(), key=DEEPEST, reverse=True)
        return sorted(found.values(), key=DEEPEST, reverse=True)


def most_likely(following: Sequence[int], depths: Sequence[int]) -> tuple[int, float]:
    """The likeliest token that follows the occurrences, and its probability.

    `depths` are the match lengths, deepest first. For each depth `m`, a token that follows `c` of
    the `n` occurrences with at least that depth has probability `c / (n + 1 / m)`.
    """
    counts: dict[int, int] = {}
    leader, best, best_probability = following[0], following[0], 0.0
    for index, (token, depth) in enumerate(zip(following, depths, strict=True)):
        counts[token] = counts.get(token, 0) + 1
        if counts[token] > counts[leader]:
            leader = token
        if index + 1 < len(depths) and depths[index + 1] == depth:
            continue
        probability = counts[leader] / (index + 1 + 1.0 / depth)
        if probability > best_probability:
            best, best_probability = leader, probability
    return best, best_probability
