"""What the user may set of the cache, as plain numbers."""

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


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
