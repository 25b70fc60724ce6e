"""Input look-up: the line has been here before, so it may go on as it did."""

from collections.abc import Iterator, Sequence
from itertools import islice

from engine.errors import PresetError
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.ngram_index import Occurrence, Places

MAX_CANDIDATES = 64


class InputLookupPredictor:
    """Proposes what followed the longest earlier occurrence of the line's end.

    Prompt look-up decoding (Saxena 2023), over prompt and reply. Of the places that agree in at
    least `pattern_min` tokens the one that agrees furthest back wins, `pattern_max` tokens at most,
    the newest among equals. Patterns of a few lengths between the two have an index, and the
    longest that is found gives the candidates, the newest `MAX_CANDIDATES` of them.

    A place counts only where `length_min` tokens of the line stand behind it, and is copied for
    `length_max` tokens at most; a copy that reaches the end of the line goes on with itself.
    """

    name = "lookup"

    def __init__(
        self, *, pattern_min: int, pattern_max: int, length_min: int = 1, length_max: int = 16
    ) -> None:
        _check_range("lookup_pattern", pattern_min, pattern_max)
        _check_range("lookup_length", length_min, length_max)
        self._length_min = length_min
        self._length_max = length_max
        self._pattern_max = pattern_max
        self._places = Places(_orders(pattern_min, pattern_max), reach=pattern_max)

    def reset(self, history: Sequence[int]) -> None:
        self._places.become(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._places.append(tokens)

    def propose(self) -> Iterator[DraftToken]:
        place = self._longest_match()
        if place is None:
            return
        confidence = place.n_agreed / (place.n_agreed + 1)
        copied: list[int] = []
        for _ in range(self._length_max):
            copied += self._places.tokens((place,), copied)
            if copied[-1] < 0:  # an image is nothing that the model could say
                return
            yield DraftToken(copied[-1], confidence)

    def close(self) -> None:
        self._places.reset(())

    def _longest_match(self) -> Occurrence | None:
        newest_start = len(self._places) - self._length_min
        for order in self._places.orders:
            best: Occurrence | None = None
            for place in islice(self._places.of_order(order), MAX_CANDIDATES):
                is_longer = best is None or place.n_agreed > best.n_agreed
                if is_longer and place.at <= newest_start:
                    best = place
                    if place.n_agreed == self._pattern_max:
                        break
            if best is not None:
                return best
        return None


def _orders(pattern_min: int, pattern_max: int) -> list[int]:
    """The pattern lengths with an index: the least, its doubles, and the longest."""
    orders = [pattern_min]
    while 2 * orders[-1] < pattern_max:
        orders.append(2 * orders[-1])
    return [*orders, pattern_max]


def _check_range(name: str, least: int, most: int) -> None:
    if not 1 <= least <= most:
        raise PresetError(
            f"{name}_min is {least} and {name}_max is {most}, but they must satisfy 1 <= "
            f"{name}_min <= {name}_max"
        )
