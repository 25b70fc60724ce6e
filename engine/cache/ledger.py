"""Counts of what the cache did, and the lines of its log."""

from collections import Counter, deque
from collections.abc import Callable

from engine.cache.report import CacheCounts, CacheNote

MAX_NOTES = 200
"""Lines that are kept for the next report; older ones give way."""


class Ledger:
    """What happened so far; guarded by the cache's lock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: Counter[str] = Counter()
        self._saved_s: float | None = None
        self._notes: deque[CacheNote] = deque(maxlen=MAX_NOTES)

    @property
    def counts(self) -> CacheCounts:
        """The counts up to now."""
        return CacheCounts(**self._counts, saved_s=self._saved_s)

    @property
    def n_notes(self) -> int:
        """Lines that nobody was told yet."""
        return len(self._notes)

    def count(self, **more: int) -> None:
        """Add to counts, by their names in `CacheCounts`."""
        self._counts.update(more)

    def save(self, seconds: float) -> None:
        """Add time that was saved; negative is a loss."""
        self._saved_s = (self._saved_s or 0.0) + seconds

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a line to the log."""
        self._notes.append(CacheNote(self._now(), text, is_problem))

    def take_notes(self) -> tuple[CacheNote, ...]:
        """Give the lines since the last call."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes
