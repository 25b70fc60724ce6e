"""Settings and report of the cache: budgets, counts, entries and use of the tiers."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.cache.segments import CachedSegment, Segment
from engine.memory.units import MIB


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Budgets and thresholds of the warm and the cold tier."""

    folder: Path | None = None
    """Folder of the cold tier; None disables it."""
    warm_bytes: int = 1024 * MIB
    """Maximum bytes of states in RAM; 0 disables the warm tier."""
    cold_bytes: int = 8192 * MIB
    """Maximum bytes of states on disk; 0 writes none."""
    min_tokens: int = 32
    """Fewest new tokens that are saved as a state."""
    checkpoint_tokens: int = 512
    """New tokens of a running prefill or reply after which a state is saved; 0 saves at the end of
    replies only."""
    reserve_bytes: int = 512 * MIB
    """RAM to leave available to other programs; the warm tier shrinks below it."""


TierName = Literal["hot", "warm", "cold"]


@dataclass(frozen=True, slots=True)
class TierUse:
    """Size and limits of one tier."""

    name: TierName
    n_entries: int
    """Sequences in the hot tier, states in the others."""
    n_tokens: int
    nbytes: int
    budget_bytes: int
    budget_tokens: int | None = None
    """Cells of the hot tier; None for the tiers limited by bytes only."""

    @classmethod
    def of(cls, name: TierName, segments: Sequence[Segment], budget_bytes: int) -> "TierUse":
        """The use of a tier by these segments."""
        n_tokens = sum(each.end - each.start for each in segments)
        nbytes = sum(each.nbytes for each in segments)
        return cls(name, len(segments), n_tokens, nbytes, budget_bytes)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A cached state."""

    key: str
    """Name of the state in commands: 16 hexadecimal characters."""
    start: int
    """Index of the state's first token; earlier tokens are in its parents."""
    n_tokens: int
    """Length of the sequence up to the state's end."""
    nbytes: int
    tiers: tuple[TierName, ...]
    owners: tuple[str, ...]
    """Conversations whose prompts used it, such as `chat:12`."""
    is_pinned: bool
    n_uses: int
    used_at: float
    """Seconds since the epoch."""
    recompute_s: float
    """Measured time of computing its tokens."""

    @classmethod
    def of(cls, entry: CachedSegment) -> "CacheEntry":
        """The report of a segment, which omits its tokens."""
        segment = entry.segment
        tiers: list[TierName] = ["warm"] if entry.payload is not None else []
        if entry.is_on_disk:
            tiers.append("cold")
        return cls(
            key=segment.key,
            start=segment.start,
            n_tokens=segment.end,
            nbytes=segment.nbytes,
            tiers=tuple(tiers),
            owners=tuple(sorted(segment.owners)),
            is_pinned=segment.is_pinned,
            n_uses=segment.n_uses,
            used_at=segment.used_at,
            recompute_s=segment.recompute_s,
        )


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Counts since the engine was started."""

    n_hits: int = 0
    """Prompts with tokens restored from RAM or disk."""
    n_misses: int = 0
    """Prompts without restored tokens that computed more tokens than the context held."""
    n_evictions: int = 0
    """States removed from their last tier to free space."""
    n_promotions: int = 0
    """States loaded from disk into RAM."""
    n_demotions: int = 0
    """States whose copy in RAM was dropped while one on disk exists."""
    n_prefetches: int = 0
    """States loaded from disk into RAM before a prompt needed them."""
    n_refused: int = 0
    """States deleted because they were damaged or the backend could not load them."""
    n_hot_tokens: int = 0
    """Prompt tokens found in the context itself."""
    n_warm_tokens: int = 0
    n_cold_tokens: int = 0
    n_computed_tokens: int = 0
    """Prompt tokens that were computed."""
    n_written_bytes: int = 0
    """Bytes of all states written to disk, including those deleted since."""
    saved_s: float | None = None
    """Measured time of computing the restored tokens minus that of restoring them; None before a
    restored state had a measured time."""


@dataclass(frozen=True, slots=True)
class CacheNote:
    """A message of the cache's log."""

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
    """Most recently used first; only those of the loaded model and settings."""
    notes: tuple[CacheNote, ...] = ()
    """Log messages since the previous report."""


MAX_NOTES = 200
"""Log messages buffered for the next report; the oldest are dropped."""


class CacheStats:
    """Counts and log messages, of all threads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._saved_s: float | None = None
        self._notes: deque[CacheNote] = deque(maxlen=MAX_NOTES)

    @property
    def counts(self) -> CacheCounts:
        """The present counts."""
        with self._lock:
            return CacheCounts(**self._counts, saved_s=self._saved_s)

    @property
    def n_notes(self) -> int:
        """Number of unreported log messages."""
        return len(self._notes)

    def count(self, **more: int) -> None:
        """Add to the fields of `CacheCounts`."""
        with self._lock:
            self._counts.update(more)

    def count_prompt(
        self, *, n_hot: int, n_warm: int, n_cold: int, n_computed: int, saved_s: float | None
    ) -> None:
        """Count a prompt's tokens by tier, and the time that restoring saved, if known.

        A hit restored tokens from RAM or disk. A miss restored none and computed more tokens than
        the context held. Other prompts are neither.
        """
        is_hit = n_warm + n_cold > 0
        self.count(
            n_hits=int(is_hit),
            n_misses=int(not is_hit and n_computed > n_hot),
            n_hot_tokens=n_hot,
            n_warm_tokens=n_warm,
            n_cold_tokens=n_cold,
            n_computed_tokens=n_computed,
        )
        if saved_s is not None:
            self._saved_s = (self._saved_s or 0.0) + saved_s

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a log message."""
        self._notes.append(CacheNote(self._now(), text, is_problem))

    def take_notes(self) -> tuple[CacheNote, ...]:
        """Return and clear the unreported log messages."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes
