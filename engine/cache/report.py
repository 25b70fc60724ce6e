"""What the cache may take, and what it tells: budgets, counts, and how full the tiers are."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.memory.units import MIB


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Budgets and thresholds of the warm and the cold tier."""

    folder: Path | None = None
    """Folder of the cold tier; None keeps nothing on disk."""
    warm_bytes: int = 1024 * MIB
    """Most bytes of snapshots in main memory; 0 keeps none."""
    cold_bytes: int = 8192 * MIB
    """Most bytes of snapshots on disk; 0 writes none."""
    min_tokens: int = 32
    """Shortest stretch of new tokens that is worth a snapshot of its own."""
    checkpoint_tokens: int = 512
    """New tokens of a running reply, or of a prompt that was read, after which they are saved in
    the middle; 0 saves at the end of replies only."""
    reserve_bytes: int = 512 * MIB
    """Main memory that stays available to others: below it the warm tier shrinks."""


TierName = Literal["hot", "warm", "cold"]


@dataclass(frozen=True, slots=True)
class TierUse:
    """How full one tier is."""

    name: TierName
    n_entries: int
    """Sequences in the hot tier, snapshots in the others."""
    n_tokens: int
    nbytes: int
    budget_bytes: int
    budget_tokens: int | None = None
    """Cells of the hot tier; None where bytes are the only limit."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One line of tokens that is kept, or a stretch of it."""

    key: str
    """Names it in commands: hexadecimal, 16 characters."""
    start: int
    """First token that the entry itself holds; those before are its parents'."""
    n_tokens: int
    """Length of the line up to the entry's end."""
    nbytes: int
    tiers: tuple[TierName, ...]
    owners: tuple[str, ...]
    """Chats whose prompts passed through it, such as `chat:12`."""
    is_pinned: bool
    n_uses: int
    used_at: float
    """Seconds since the epoch."""
    recompute_s: float
    """Measured time of the tokens that it spares."""


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Counts since the engine was started; never derived from each other."""

    n_hits: int = 0
    """Prompts of which main memory or disk held something beyond what the context had."""
    n_misses: int = 0
    """Prompts of which nothing was restored, and more was computed than the context had."""
    n_evictions: int = 0
    """Snapshots that left a tier for want of room and lie in no other."""
    n_promotions: int = 0
    """Snapshots that came from disk into main memory."""
    n_demotions: int = 0
    """Snapshots whose copy in main memory was given up for the one on disk."""
    n_prefetches: int = 0
    n_prefetches_used: int = 0
    n_prefetches_wasted: int = 0
    """Prefetched snapshots that left main memory without having been used."""
    n_refused: int = 0
    """Snapshots that were damaged or of another make, and were thrown away."""
    n_hot_tokens: int = 0
    """Tokens of prompts that were found in the context itself."""
    n_warm_tokens: int = 0
    n_cold_tokens: int = 0
    n_computed_tokens: int = 0
    """Tokens of prompts that had to be computed."""
    n_written_bytes: int = 0
    """Bytes of states that were written to disk, those among them that are gone again."""
    saved_s: float | None = None
    """Measured time that computing the restored tokens would have taken, less that of restoring;
    None before anything was restored whose computing was ever timed."""


@dataclass(frozen=True, slots=True)
class CacheNote:
    """One line of the cache's log."""

    at: float
    """Seconds since the epoch."""
    text: str
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The cache at one moment."""

    tiers: tuple[TierUse, ...] = ()
    """Hot, warm and cold, in this order."""
    counts: CacheCounts = field(default_factory=CacheCounts)
    entries: tuple[CacheEntry, ...] = ()
    """Those used last first; of the loaded model and settings only."""
    notes: tuple[CacheNote, ...] = ()
    """New lines of the log since the report before."""


MAX_NOTES = 200
"""Lines that are kept for the next report; older ones give way."""


class CacheStats:
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
        """The lines since the last call."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes
