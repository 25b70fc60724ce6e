"""How often drafted tokens turn out right, by source, passage and confidence."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FORGETTING = 0.99
"""A count keeps this share with each newer one of its cell: the last hundred decide."""
STRENGTH = 8.0
"""Outcomes that the wider mean is worth beside a cell's own."""
CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.86, 0.9, 0.925, 0.97)
MAX_SURE = 0.99

FIRST_RECENT = 0.8
"""Share of right guesses from which a source starts where its last few ones are looked at."""
RECENT_WEIGHT = 0.2
MOSTLY_RIGHT = 0.7
"""Share of the last few guesses, as a moving mean, from which a passage counts as copied."""

Cell = tuple[str, bool | None, int | None]


@dataclass(frozen=True, slots=True)
class Examined:
    """One guess that the line reached: every guess before it was right."""

    source: str
    confidence: float
    is_right: bool


@dataclass(slots=True)
class _Count:
    n_right: float = 0.0
    n_seen: float = 0.0

    def add(self, *, is_right: bool) -> None:
        self.n_right = FORGETTING * self.n_right + is_right
        self.n_seen = FORGETTING * self.n_seen + 1.0


NONE = _Count()


class Acceptance:
    """Shares of right guesses, each given that the guesses before it were right.

    A source's confidence is believed at first. What is examined of a source shifts that, what is
    examined of a passage of its kind more, and of like confidence in such a passage most: Beta
    counts with forgetting, each shrunk to the rest of the wider one, none counted twice. Passages
    where the last few guesses were mostly right are kept apart from all others: text that is copied
    now and then is met again without learning it anew. Only examined guesses count, up to the first
    wrong one; what a refutation hides would bias the rest.
    """

    def __init__(self) -> None:
        self._counts: dict[Cell, _Count] = {}
        self._recent: dict[str, float] = {}
        self._tried: dict[str, tuple[int, int]] = {}

    def add(self, outcomes: Sequence[Examined]) -> None:
        """Count what one round examined."""
        before = dict(self._recent)
        for outcome in outcomes:
            source, is_right = outcome.source, outcome.is_right
            for cell in _cells(source, before.get(source, FIRST_RECENT), outcome.confidence):
                self._counts.setdefault(cell, _Count()).add(is_right=is_right)
            n_right, n_seen = self.counts_of(source)
            self._tried[source] = n_right + is_right, n_seen + 1
            recent = self._recent.get(source, FIRST_RECENT)
            self._recent[source] = recent + RECENT_WEIGHT * (is_right - recent)

    def counts_of(self, source: str) -> tuple[int, int]:
        """How many guesses of a source were right, and of how many that were examined."""
        return self._tried.get(source, (0, 0))

    def is_known(self, source: str) -> bool:
        """Whether a source's own outcomes weigh as much as what it says of itself."""
        return self.counts_of(source)[1] >= STRENGTH

    def share(self, source: str, confidence: float) -> float:
        """The share of right guesses to expect at this confidence, where the source is now."""
        mean = min(confidence, MAX_SURE)
        cells = _cells(source, self._recent.get(source, FIRST_RECENT), confidence)
        counts = [self._counts.get(cell, NONE) for cell in cells]
        for wider, narrower in pairwise(counts):
            # The narrower cell is taken out of the wider one; it may have been forgotten less.
            n_right = max(wider.n_right - narrower.n_right, 0.0)
            n_seen = max(wider.n_seen - narrower.n_seen, n_right)
            mean = (n_right + STRENGTH * mean) / (n_seen + STRENGTH)
        return (counts[-1].n_right + STRENGTH * mean) / (counts[-1].n_seen + STRENGTH)


def _cells(source: str, recent: float, confidence: float) -> tuple[Cell, ...]:
    """The cells of an outcome, each within the one before."""
    is_copied = recent >= MOSTLY_RIGHT
    bucket = bisect_right(CONFIDENCE_EDGES, confidence)
    return (source, None, None), (source, is_copied, None), (source, is_copied, bucket)
