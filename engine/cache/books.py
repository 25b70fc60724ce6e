"""What all parts of the cache share, and how much of it main memory may hold."""

import math
import threading
from collections.abc import Callable, Iterable

from engine.cache.catalog import Catalog, KeptNode, Payload, value
from engine.cache.eviction import shrink
from engine.cache.report import CacheSettings, Ledger
from engine.memory.units import MIB

PENDING_BYTES = 256 * MIB
"""Most bytes beyond the budget of the warm tier that wait to be written."""

Split = Callable[[Payload, int], tuple[bytes, bytes]]
Span = tuple[int, int]
"""First token of a line, and the one behind the last."""


def part_of(state: Payload, held: Span, wanted: Span, split: Split) -> Payload:
    """The part of a state of `held` tokens that holds those `wanted` that it has.

    Raises:
        StateError: the state is damaged, or cannot be cut.
    """
    (first, end), (start, stop) = held, wanted
    if stop < end:
        state = split(state, stop - first)[0]
    return split(state, start - first)[1] if start > first else state


class Books:
    """What all parts of the cache share. One lock guards it all."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: Ledger,
        settings: CacheSettings,
        *,
        split_state: Split,
        now: Callable[[], float],
        available: Callable[[], int],
    ) -> None:
        self.catalog = catalog
        self.ledger = ledger
        self.lock = threading.Lock()
        self.settings = settings
        self.split_state = split_state
        self.now = now
        self.available = available
        self.wake: Callable[[], None] = _rest
        """Lets the background work begin at once."""
        self.can_write: Callable[[], bool] = _never
        """Whether the disk is expected to take something now."""
        self._ceiling = math.inf

    def look_at_memory(self) -> None:
        """Find how much the warm tier may hold now, and give up what is beyond."""
        room = self.available() - self.settings.reserve_bytes
        with self.lock:
            was_short, self._ceiling = self._ceiling < self.settings.warm_bytes, math.inf
            if room < 0:
                self._ceiling = max(self.catalog.warm_bytes + room, 0)
                if not was_short and self.catalog.warm_bytes > self._ceiling:
                    self.ledger.note(
                        f"Main memory is short: the warm tier gives back {-room / MIB:,.0f} MiB."
                    )
            self.shrink()

    def room(self) -> int:
        """The bytes that the warm tier may hold, or that main memory still has, if less."""
        spare = self.available() - self.settings.reserve_bytes
        return min(self.settings.warm_bytes, max(spare, 0))

    def shrink(self, *, spare: KeptNode | None = None) -> None:
        """Drop copies in main memory beyond what is allowed now; the lock is held.

        The copy at `spare` goes last: it came just now.
        """
        limit = int(min(self.settings.warm_bytes, self._ceiling))
        pending = PENDING_BYTES if self.can_write() else 0
        if spare is not None:
            self.catalog.tree.lock(spare)
            shrink(self.catalog, self.ledger, limit, self.now(), pending=pending)
            self.catalog.tree.unlock(spare)
        shrink(self.catalog, self.ledger, limit, self.now(), pending=pending)

    def mark(self, nodes: Iterable[KeptNode], owner: str) -> None:
        """Note that these are used now, and by whom; the lock is held."""
        for node in nodes:
            self.catalog.touch(node, self.now())
            if owner:
                value(node).owners |= {owner}

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a line to the log."""
        with self.lock:
            self.ledger.note(text, is_problem=is_problem)


def _rest() -> None:
    """Wake nobody: there is no background."""


def _never() -> bool:
    """Without a disk."""
    return False
