"""Input look-up: the line has been here before, so it may go on as it did."""

from collections.abc import Iterator, Sequence

from engine.errors import PresetError
from engine.speculation.predictors.base import DraftToken

MAX_CANDIDATES = 64


class InputLookupPredictor:
    """Proposes what followed the longest earlier occurrence of the line's end.

    Prompt look-up decoding (Saxena 2023), over prompt and reply. The last `pattern_min` tokens find
    earlier places through an index; of the newest `MAX_CANDIDATES` places the one that agrees
    furthest back, `pattern_max` tokens at most, wins, the newest among equals. Committing a token
    and finding a match take constant time, whatever the length of the line.
    """

    name = "lookup"

    def __init__(self, *, pattern_min: int, pattern_max: int) -> None:
        if not 1 <= pattern_min <= pattern_max:
            raise PresetError(
                f"lookup_pattern_min is {pattern_min} and lookup_pattern_max {pattern_max}: "
                "the first is at least 1 and at most the second"
            )
        self._pattern_min = pattern_min
        self._pattern_max = pattern_max
        self._line: list[int] = []
        self._newest: dict[tuple[int, ...], int] = {}
        self._older: list[int] = []

    def reset(self, history: Sequence[int]) -> None:
        self._line = []
        self._newest = {}
        self._older = []
        self.commit(history)

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._index_continuation()
            self._line.append(token)

    def propose(self) -> Iterator[DraftToken]:
        place, n_matched = self._longest_match()
        if place is None:
            return
        confidence = n_matched / (n_matched + 1)
        copied: list[int] = []
        while True:
            at = place + len(copied)
            beyond = at - len(self._line)
            token = self._line[at] if beyond < 0 else copied[beyond]
            copied.append(token)
            yield DraftToken(token, confidence)

    def close(self) -> None:
        self.reset(())

    def _index_continuation(self) -> None:
        """Remember that the pattern at the end of the line goes on at the coming token's place."""
        place = len(self._line)
        if place < self._pattern_min:
            self._older.append(-1)
            return
        pattern = tuple(self._line[place - self._pattern_min :])
        self._older.append(self._newest.get(pattern, -1))
        self._newest[pattern] = place

    def _longest_match(self) -> tuple[int | None, int]:
        if len(self._line) < self._pattern_min:
            return None, 0
        best: int | None = None
        best_length = 0
        place = self._newest.get(tuple(self._line[-self._pattern_min :]), -1)
        for _ in range(MAX_CANDIDATES):
            if place < 0 or best_length == self._pattern_max:
                break
            length = self._agreement(place)
            if length > best_length:
                best, best_length = place, length
            place = self._older[place]
        return best, best_length

    def _agreement(self, place: int) -> int:
        """Count how many tokens before `place` equal those at the end of the line."""
        line, end = self._line, len(self._line)
        length = self._pattern_min
        limit = min(self._pattern_max, place)
        while length < limit and line[place - 1 - length] == line[end - 1 - length]:
            length += 1
        return length
