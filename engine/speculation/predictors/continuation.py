"""What mostly followed the places where the end of a line stood before."""

from collections.abc import Iterator, Sequence
from itertools import islice

from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.places import BETWEEN, Place, Places

MAX_PLACES = 32


def deepest_first(places: Places, end: Sequence[int] | None = None) -> list[Place]:
    """Give the newest places that agree furthest, `MAX_PLACES` of them, newest first among equals.

    `end` is what they agree with, None for the end of the indexed line itself.
    """
    found: dict[int, Place] = {}
    for order in places.orders:
        for place in islice(places.of_order(order, end), MAX_PLACES):
            if len(found) < MAX_PLACES:
                found[place.at] = place
    return sorted(found.values(), key=lambda place: (-place.n_agreed, -place.at))


def likely_continuation(
    places: Places, alive: list[Place], min_confidence: float, *, doubt: float = 1.0
) -> Iterator[DraftToken]:
    """Follow the likeliest token as long as the product of the probabilities stays large enough.

    `alive` comes deepest first; places where another token follows are left behind on the way.
    """
    drafted: list[int] = []
    expected = 1.0
    while alive:
        followers = [places.token(at + len(drafted), drafted) for at, _ in alive]
        depths = [n_agreed + len(drafted) for _, n_agreed in alive]
        token, confidence = most_likely(followers, depths, doubt=doubt)
        expected *= confidence
        if token == BETWEEN or expected < min_confidence:
            return
        yield DraftToken(token, confidence)
        drafted.append(token)
        alive = [place for place, said in zip(alive, followers, strict=True) if said == token]


def most_likely(
    followers: Sequence[int], depths: Sequence[int], *, doubt: float = 1.0
) -> tuple[int, float]:
    """Give the likeliest of the tokens that follow places, with its probability.

    `depths` is how far each place agrees, deepest first. Every depth `m` is asked, with the places
    that agree at least as far: a token that follows `c` of these `n` has probability
    `c / (n + doubt / m)`.
    """
    counts: dict[int, int] = {}
    leader, best, best_probability = followers[0], followers[0], 0.0
    for index, (token, depth) in enumerate(zip(followers, depths, strict=True)):
        counts[token] = counts.get(token, 0) + 1
        if counts[token] > counts[leader]:
            leader = token
        if index + 1 < len(depths) and depths[index + 1] == depth:
            continue
        probability = counts[leader] / (index + 1 + doubt / depth)
        if probability > best_probability:
            best, best_probability = leader, probability
    return best, best_probability
