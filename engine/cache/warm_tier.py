"""The copies of states in main memory: how many bytes they may take, and which leave first."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator

from engine.cache.catalog import CacheState, KeptNode, value
from engine.cache.eviction import worth
from engine.memory.units import MIB

PENDING_BYTES = 256 * MIB
"""Most bytes beyond the budget that wait to be written."""


class WarmTier:
    """Main memory's side of the cache.

    Args:
        cache: What the tiers share.
        available: Gives the bytes of main memory that are available.
        can_write: Whether the disk is expected to take something now.
    """

    def __init__(
        self, cache: CacheState, available: Callable[[], int], can_write: Callable[[], bool]
    ) -> None:
        self._cache = cache
        self._catalog = cache.catalog
        self._available = available
        self._can_write = can_write
        self._ceiling = math.inf

    def look_at_memory(self) -> None:
        """Find how much the tier may hold now, and give up what is beyond."""
        settings, ledger = self._cache.settings, self._cache.ledger
        room = self._available() - settings.reserve_bytes
        with self._cache.lock:
            was_short, self._ceiling = self._ceiling < settings.warm_bytes, math.inf
            if room < 0:
                self._ceiling = max(self._catalog.warm_bytes + room, 0)
                if not was_short and self._catalog.warm_bytes > self._ceiling:
                    ledger.note(f"RAM is running low: the warm tier frees {-room / MIB:,.0f} MiB.")
            self.shrink()

    def room(self) -> int:
        """The bytes that the tier may hold, or that main memory still has, if less."""
        free = self._available() - self._cache.settings.reserve_bytes
        return min(self._cache.settings.warm_bytes, max(free, 0))

    def shrink(self, *, newest: KeptNode | None = None) -> None:
        """Drop copies beyond what is allowed now; the lock is held.

        First go those that lie on disk too: that costs a read at most. Up to `PENDING_BYTES` that
        are still to be written may stay beyond the limit. What lies nowhere else and exceeds that
        is lost, ends of lines first. Nothing that is locked goes, and nothing that is pinned is
        lost. The copy at `newest` goes last.
        """
        limit = int(min(self._cache.settings.warm_bytes, self._ceiling))
        if self._catalog.warm_bytes <= limit:
            return
        if newest is not None:
            self._catalog.tree.lock(newest)
            self._shrink_to(limit)
            self._catalog.tree.unlock(newest)
        self._shrink_to(limit)

    def _shrink_to(self, limit: int) -> None:
        pending = PENDING_BYTES if self._can_write() else 0
        over = self._catalog.warm_bytes - limit - self._waiting_bytes(pending)
        for node in self._weakest(each for each in self._catalog.warm if not each.n_locks):
            if over <= 0:
                return
            if value(node).file is not None:
                over -= value(node).state.nbytes
                was_in_vain = self._catalog.drop_payload(node)
                self._cache.ledger.count(n_demotions=1, n_prefetches_wasted=int(was_in_vain))
        self._lose(limit + self._waiting_bytes(pending), may_wait=False, pending=pending)
        self._lose(limit + pending, may_wait=True, pending=pending)

    def _lose(self, bound: int, *, may_wait: bool, pending: int) -> None:
        """Evict what lies in main memory only; what waits to be written only if it `may_wait`."""
        while self._catalog.warm_bytes > bound:
            victims = [
                node
                for node in self._catalog.warm
                if self._can_be_lost(node) and (may_wait or not _waits(node, pending))
            ]
            if not victims:
                return
            for node in self._weakest(victims):
                if self._catalog.warm_bytes <= bound:
                    return
                self._cache.ledger.count(n_evictions=len(self._catalog.remove(node)))

    def _waiting_bytes(self, pending: int) -> int:
        """The bytes that only main memory holds and that are going to be written."""
        waiting = (each for each in self._catalog.unwritten if _waits(each, pending))
        return min(sum(value(each).state.nbytes for each in waiting), pending)

    def _weakest(self, nodes: Iterable[KeptNode]) -> Iterator[KeptNode]:
        """Nodes by rising worth; among whole states, those that a later one supersedes first."""
        now = self._cache.now()

        def rank(node: KeptNode) -> tuple[bool, float]:
            kept = value(node)
            used_at = kept.state.used_at
            age_s = max(min(now - kept.came_at, now - used_at), 0.0)
            return not self._catalog.is_superseded(node), worth(kept.state, used_at + age_s)

        ranked = [(rank(node), index, node) for index, node in enumerate(nodes)]
        heapq.heapify(ranked)
        while ranked:
            yield heapq.heappop(ranked)[2]

    def _can_be_lost(self, node: KeptNode) -> bool:
        kept = value(node)
        if node.n_locks or kept.state.is_pinned or kept.file is not None:
            return False
        return not (self._catalog.can_slice and node.children)


def _waits(node: KeptNode, pending: int) -> bool:
    kept = value(node)
    return pending > 0 and kept.wants_disk and kept.file is None
