"""How often drafted tokens turn out right, by source, confidence and position."""

from bisect import bisect_right
from dataclasses import dataclass

FORGETTING = 0.98
"""A count keeps this share with each newer one of its cell: the last fifty tokens decide."""
STRENGTH = 3.0
"""Outcomes that the wider mean is worth beside a cell's own: a cell without data, such as a
position that short drafts never reach, follows its neighbours and is not taken for hopeless."""
FIRST_MEAN, FIRST_STRENGTH = 0.8, 2.0
"""A source nobody has seen is worth a try."""

CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.86, 0.9, 0.925, 0.97)
POSITION_EDGES = (1, 2, 4, 8)

Cell = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Examined:
    """One guess whose place in the line was reached: every guess before it was right."""

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

    def mean(self, wider: float, strength: float = STRENGTH) -> float:
        return (self.n_right + strength * wider) / (self.n_seen + strength)


class Acceptance:
    """Shares of right guesses, each given that the guesses before it were right.

    A cell of source, confidence and position is shrunk to its source and confidence, and that to
    its source: Beta counts with forgetting. Only examined guesses count, up to the first wrong one;
    what a refutation hides would bias the rest.
    """

    def __init__(self) -> None:
        self._counts: dict[Cell, _Count] = {}

    def add(self, source: str, outcome: Examined) -> None:
        """Count one examined guess."""
        for cell in _cells(source, outcome.confidence, outcome.position):
            self._counts.setdefault(cell, _Count()).add(is_right=outcome.is_right)

    def share(self, source: str, confidence: float, position: int) -> float:
        """Give the share of right guesses to expect at this confidence and position."""
        exact, of_confidence, of_source = _cells(source, confidence, position)
        none = _Count()
        mean = self._counts.get(of_source, none).mean(FIRST_MEAN, FIRST_STRENGTH)
        mean = self._counts.get(of_confidence, none).mean(mean)
        return self._counts.get(exact, none).mean(mean)


def _cells(source: str, confidence: float, position: int) -> tuple[Cell, Cell, Cell]:
    """Give the cell, its confidence over all positions, and its source over all confidences."""
    bucket = bisect_right(CONFIDENCE_EDGES, confidence)
    return (
        (source, bucket, bisect_right(POSITION_EDGES, position)),
        (source, bucket, -1),
        (source, -1, -1),
    )
