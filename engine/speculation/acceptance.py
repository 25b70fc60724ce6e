"""Estimated acceptance of drafted tokens by source, passage and confidence."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FORGETTING = 0.99
"""Factor on a cell's counts per newer outcome: about the last hundred count."""
STRENGTH = 8.0
"""Weight of the wider cell's mean, in outcomes."""
CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.86, 0.9, 0.925, 0.97)
MAX_SURE = 0.99

FIRST_RECENT = 0.8
"""Initial value of a source's moving mean of right guesses."""
RECENT_WEIGHT = 0.2
MOSTLY_RIGHT = 0.7
"""Moving mean of right guesses from which a passage counts as copied."""

Cell = tuple[str, bool | None, int | None]


@dataclass(frozen=True, slots=True)
class Examined:
    """A drafted token that was compared with the text; all guesses before it were right."""

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
    """Probability that a guess is right, given that the guesses before it were right.

    The prior is the source's own confidence. Nested cells refine it: the source, the source in
    copied or other passages, and a confidence bucket there. Each cell is a Beta count with
    forgetting, shrunk to the mean of the rest of the wider cell. Copied passages, where the last
    few guesses were mostly right, have separate counts, so that their rates are not relearned each
    time. Guesses after the first wrong one are not counted: they would bias the estimate.
    """

    def __init__(self) -> None:
        self._counts: dict[Cell, _Count] = {}
        self._recent: dict[str, float] = {}
        self._tried: dict[str, tuple[int, int]] = {}
        self._shares: dict[tuple[str, float], float] = {}
        """Results of `share` since the last round."""

    def add(self, outcomes: Sequence[Examined]) -> None:
        """Count the outcomes of one round."""
        self._shares.clear()
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
        """Right guesses and examined guesses of a source."""
        return self._tried.get(source, (0, 0))

    def share(self, source: str, confidence: float) -> float:
        """Expected share of right tokens at this confidence in the source's present passage."""
        known = self._shares.get((source, confidence))
        if known is None:
            known = self._shares[source, confidence] = self._estimate(source, confidence)
        return known

    def _estimate(self, source: str, confidence: float) -> float:
        mean = min(confidence, MAX_SURE)
        cells = _cells(source, self._recent.get(source, FIRST_RECENT), confidence)
        counts = [self._counts.get(cell, NONE) for cell in cells]
        for wider, narrower in pairwise(counts):
            # Subtract the narrower cell from the wider one; forgetting may make it the larger.
            n_right = max(wider.n_right - narrower.n_right, 0.0)
            n_seen = max(wider.n_seen - narrower.n_seen, n_right)
            mean = (n_right + STRENGTH * mean) / (n_seen + STRENGTH)
        return (counts[-1].n_right + STRENGTH * mean) / (counts[-1].n_seen + STRENGTH)


def _cells(source: str, recent: float, confidence: float) -> tuple[Cell, ...]:
    is_copied = recent >= MOSTLY_RIGHT
    bucket = bisect_right(CONFIDENCE_EDGES, confidence)
    return (source, None, None), (source, is_copied, None), (source, is_copied, bucket)
