"""Prompt lookup: propose the tokens after an earlier occurrence of the last tokens."""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from engine.errors import PresetError
from engine.speculation.predictors.base import DraftToken
from engine.speculation.predictors.ngram_index import NgramIndex, Occurrence

MAX_CANDIDATES = 64


class InputLookupPredictor:
    """Proposes the tokens that followed the longest earlier occurrence of the last tokens.

    Prompt lookup decoding (Saxena 2023), over prompt and reply. Of the occurrences that match at
    least `pattern_min` tokens the longest match wins, up to `pattern_max` tokens; among equals the
    newest. A few pattern lengths between the two are indexed; the longest one found supplies the
    newest `MAX_CANDIDATES` candidates.

    An occurrence must be followed by at least `length_min` tokens. Up to `length_max` tokens are
    copied; a copy that reaches the end of the text continues with its own tokens.
    """

    name = "lookup"

    def __init__(
        self, *, pattern_min: int, pattern_max: int, length_min: int = 1, length_max: int = 16
    ) -> None:
        _check_range("lookup_pattern", pattern_min, pattern_max)
        _check_range("lookup_length", length_min, length_max)
        self._length_min, self._length_max = length_min, length_max
        orders = [pattern_min]  # and its doublings up to the maximum
        while 2 * orders[-1] < pattern_max:
            orders.append(2 * orders[-1])
        self._index = NgramIndex([*orders, pattern_max], reach=pattern_max)

    def reset(self, history: Sequence[int]) -> None:
        self._index.replace(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self._index.append(tokens)

    def propose(self) -> Iterator[DraftToken]:
        occurrence = self._longest_match()
        if occurrence is None:
            return
        confidence = occurrence.n_agreed / (occurrence.n_agreed + 1)
        copied: list[int] = []
        for _ in range(self._length_max):
            copied += self._index.following((occurrence,), copied)
            if copied[-1] < 0:  # a token of an image
                return
            yield DraftToken(copied[-1], confidence)

    def _longest_match(self) -> Occurrence | None:
        newest_start = len(self._index) - self._length_min
        for order in self._index.orders:
            usable = (one for one in self._index.of_order(order) if one.at <= newest_start)
            n_candidates = 1 if order == self._index.orders[0] else MAX_CANDIDATES
            best = max(islice(usable, n_candidates), key=attrgetter("n_agreed"), default=None)
            if best is not None:
                return best
        return None


def _check_range(name: str, least: int, most: int) -> None:
    if not 1 <= least <= most:
        raise PresetError(
            f"{name}_min is {least} and {name}_max is {most}, but they must satisfy 1 <= "
            f"{name}_min <= {name}_max"
        )
