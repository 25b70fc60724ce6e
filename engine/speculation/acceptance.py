"""How often drafted tokens turn out right, by source, confidence and position."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.configuration import MAX_DRAFT

FORGETTING = 0.99
"""A count keeps this share with each newer one of its cell: the last hundred decide."""
STRENGTH = 8.0
"""Outcomes that the wider mean is worth beside a cell's own: a cell without data, such as a
position that short drafts never reach, follows its neighbours and is not taken for hopeless."""
FIRST_MEAN = 0.8
"""Share of right guesses from which a source starts where its last few ones are looked at."""
FIRST_MISSES = 1.0
"""Wrong guesses, expected and seen, that a source starts with: its confidence is believed at first,
and a source nobody has seen is worth a try."""

CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.86, 0.9, 0.925, 0.97)
POSITION_EDGES = (1, 2, 4, 8)

POSITION_CELLS = tuple(bisect_right(POSITION_EDGES, position) for position in range(MAX_DRAFT))

MOST_SURE = 0.99
MOST_MISSES = 0.98

RECENT_WEIGHT = 0.2
MOSTLY_RIGHT = 0.7
"""Share of the last few guesses, as a moving mean, from which a passage counts as copied."""

Cell = tuple[str, bool | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Examined:
    """One guess that the line reached: every guess before it was right."""

    source: str
    confidence: float
    position: int
    """0 is the first guess of its draft."""
    is_right: bool


@dataclass(slots=True)
class _Count:
    n_right: float = 0.0
    n_seen: float = 0.0

    def add(self, *, is_right: bool) -> None:
        self.n_right = FORGETTING * self.n_right + is_right
        self.n_seen = FORGETTING * self.n_seen + 1.0


@dataclass(slots=True)
class _Misses:
    """How many guesses of a source were wrong, and how many its confidences promised."""

    seen: float = FIRST_MISSES
    promised: float = FIRST_MISSES

    def add(self, confidence: float, *, is_right: bool) -> None:
        self.seen = FORGETTING * self.seen + (not is_right)
        self.promised = FORGETTING * self.promised + 1.0 - min(confidence, MOST_SURE)

    def share(self, confidence: float) -> float:
        miss = (1.0 - min(confidence, MOST_SURE)) * self.seen / self.promised
        return 1.0 - min(miss, MOST_MISSES)


@dataclass(frozen=True, slots=True)
class _Common:
    """What the shares of a source and confidence share: their cell, its count, the mean around."""

    cell: Cell
    count: _Count
    mean: float


NONE = _Count()
NO_MISSES = _Misses()


class Acceptance:
    """Shares of right guesses, each given that the guesses before it were right.

    A source's confidence is taken at its word but for one factor: wrong guesses seen over wrong
    guesses that the confidences promised. From there a cell of source, confidence and position is
    shrunk to the rest of its confidence, and that to the rest of its source: Beta counts with
    forgetting, none of them counted twice. Each is kept twice, for passages where the last few
    guesses were mostly right and for all others: text that copies by turns is met again without
    learning it anew. Only examined guesses count, up to the
    first wrong one; what a refutation hides would bias the rest.
    """

    def __init__(self) -> None:
        self._counts: dict[Cell, _Count] = {}
        self._recent: dict[str, float] = {}
        self._misses: dict[str, _Misses] = {}
        self._tried: dict[str, tuple[int, int]] = {}
        self._commons: dict[tuple[str, float], _Common] = {}
        self._shares: dict[tuple[tuple[str, float], int], float] = {}

    def add(self, outcomes: Sequence[Examined]) -> None:
        """Count what one round examined."""
        if outcomes:
            self._commons.clear()
            self._shares.clear()
        are_recent = dict(self._recent)
        for outcome in outcomes:
            name = outcome.source
            recent = are_recent.get(name, FIRST_MEAN)
            for cell in _cells(name, recent, outcome.confidence, outcome.position):
                self._counts.setdefault(cell, _Count()).add(is_right=outcome.is_right)
            n_right, n_seen = self.tried(name)
            self._tried[name] = n_right + outcome.is_right, n_seen + 1
            misses = self._misses.setdefault(name, _Misses())
            misses.add(outcome.confidence, is_right=outcome.is_right)
            before = self._recent.get(name, FIRST_MEAN)
            self._recent[name] = before + RECENT_WEIGHT * (outcome.is_right - before)

    def tried(self, source: str) -> tuple[int, int]:
        """Give how many guesses of a source were right, and of how many that were examined."""
        return self._tried.get(source, (0, 0))

    def n_seen(self, source: str) -> float:
        """Give how many guesses of a source were examined, old ones counting less."""
        return self._counts.get((source, None, None, None), NONE).n_seen

    def share(self, source: str, confidence: float, position: int) -> float:
        """Give the share of right guesses to expect at this confidence and position."""
        return self._kept_share((source, confidence), POSITION_CELLS[position])

    def products(self, guesses: Sequence[tuple[str, float]]) -> list[float]:
        """Give for each guess of a draft, by source and confidence, that all are right up to it."""
        products: list[float] = []
        product, share = 1.0, 0.0
        last: tuple[str, float] | None = None
        last_cell = -1
        for position, guess in enumerate(guesses):
            cell = POSITION_CELLS[position]
            if cell != last_cell or guess is not last:
                last, last_cell, share = guess, cell, self._kept_share(guess, cell)
            product *= share
            products.append(product)
        return products

    def _kept_share(self, guess: tuple[str, float], place: int) -> float:
        key = (guess, place)
        share = self._shares.get(key)
        if share is None:
            common = self._commons.get(guess)
            if common is None:
                common = self._commons[guess] = self._common(*guess)
            share = self._shares[key] = self._share_at(common, place)
        return share

    def _common(self, source: str, confidence: float) -> _Common:
        """Give what the shares at all positions have in common."""
        recent = self._recent.get(source, FIRST_MEAN)
        mean = self._misses.get(source, NO_MISSES).share(confidence)
        cells = _cells(source, recent, confidence, 0)
        counts = [self._counts.get(cell, NONE) for cell in cells[:-1]]
        for wider, narrower in pairwise(counts):
            mean = _rest(wider, narrower, mean)
        return _Common(cells[-2], counts[-1], mean)

    def _share_at(self, common: _Common, place: int) -> float:
        source, is_copied, bucket, _ = common.cell
        count = self._counts.get((source, is_copied, bucket, place), NONE)
        mean = _rest(common.count, count, common.mean)
        return (count.n_right + STRENGTH * mean) / (count.n_seen + STRENGTH)


def _rest(wider: _Count, narrower: _Count, mean: float) -> float:
    """Shrink to a mean what is left of a cell without one in it.

    The one in it may have been forgotten less.
    """
    n_right = max(wider.n_right - narrower.n_right, 0.0)
    n_seen = max(wider.n_seen - narrower.n_seen, n_right)
    return (n_right + STRENGTH * mean) / (n_seen + STRENGTH)


def _cells(source: str, recent: float, confidence: float, position: int) -> tuple[Cell, ...]:
    """Give the cells of an outcome, each within the one before."""
    is_copied = recent >= MOSTLY_RIGHT
    bucket = bisect_right(CONFIDENCE_EDGES, confidence)
    return (
        (source, None, None, None),
        (source, is_copied, None, None),
        (source, is_copied, bucket, None),
        (source, is_copied, bucket, POSITION_CELLS[position]),
    )
