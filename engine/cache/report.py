"""What the cache tells about itself: where everything lies, and what it was good for."""

from dataclasses import dataclass, field
from typing import Literal

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
