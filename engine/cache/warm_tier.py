"""Warm tier: the budget and the eviction of the states in RAM."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator

from engine.cache.catalog import CacheState, StateNode, value
from engine.cache.eviction import worth
from engine.memory.units import MIB

PENDING_BYTES = 256 * MIB
"""Bytes of unwritten states that may exceed the budget."""


class WarmTier:
    """States in RAM.

    Args:
        cache: State shared by the tiers.
        available: Returns the available bytes of RAM.
        can_write: Whether writing to disk is not paused.
    """

    def __init__(
        self, cache: CacheState, available: Callable[[], int], can_write: Callable[[], bool]
    ) -> None:
        self._cache = cache
        self._catalog = cache.catalog
        self._available = available
        self._can_write = can_write
        self._ceiling = math.inf

    def check_memory(self) -> None:
        """Update the ceiling from the available RAM, and shrink to it."""
        settings, ledger = self._cache.settings, self._cache.ledger
        free = self._available() - settings.reserve_bytes
        with self._cache.lock:
            was_short, self._ceiling = self._ceiling < settings.warm_bytes, math.inf
            if free < 0:
                self._ceiling = max(self._catalog.warm_bytes + free, 0)
                if not was_short and self._catalog.warm_bytes > self._ceiling:
                    ledger.note(f"RAM is running low: the warm tier frees {-free / MIB:,.0f} MiB.")
            self.shrink()

    def free_bytes(self) -> int:
        """Bytes available to the tier: its budget, or the free RAM if less."""
        free = self._available() - self._cache.settings.reserve_bytes
        return min(self._cache.settings.warm_bytes, max(free, 0))

    def shrink(self, *, newest: StateNode | None = None) -> None:
        """Drop copies until the tier is within its limit; the lock is held.

        Copies that are also on disk go first, at the cost of a later read. Up to `PENDING_BYTES`
        of unwritten states may exceed the limit. Unwritten states beyond that are evicted, ends
        of sequences first. Locked copies stay, pinned states are never lost, and the copy at
        `newest` goes last.
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
        for node in self._by_worth(each for each in self._catalog.warm if not each.n_locks):
            if over <= 0:
                return
            if value(node).file is not None:
                over -= value(node).state.nbytes
                was_wasted = self._catalog.drop_payload(node)
                self._cache.ledger.count(n_demotions=1, n_prefetches_wasted=int(was_wasted))
        self._evict(limit + self._waiting_bytes(pending), may_wait=False, pending=pending)
        self._evict(limit + pending, may_wait=True, pending=pending)

    def _evict(self, bound: int, *, may_wait: bool, pending: int) -> None:
        """Evict states that are only in RAM; those queued for writing only if `may_wait`."""
        while self._catalog.warm_bytes > bound:
            victims = [
                node
                for node in self._catalog.warm
                if self._can_be_lost(node) and (may_wait or not _waits(node, pending))
            ]
            if not victims:
                return
            for node in self._by_worth(victims):
                if self._catalog.warm_bytes <= bound:
                    return
                self._cache.ledger.count(n_evictions=len(self._catalog.remove(node)))

    def _waiting_bytes(self, pending: int) -> int:
        """Bytes of the states that are only in RAM and queued for writing, up to `pending`."""
        waiting = (each for each in self._catalog.unwritten if _waits(each, pending))
        return min(sum(value(each).state.nbytes for each in waiting), pending)

    def _by_worth(self, nodes: Iterable[StateNode]) -> Iterator[StateNode]:
        """Nodes by rising worth; superseded whole states first."""
        now = self._cache.now()

        def rank(node: StateNode) -> tuple[bool, float]:
            cached = value(node)
            used_at = cached.state.used_at
            age_s = max(min(now - cached.loaded_at, now - used_at), 0.0)
            return not self._catalog.is_superseded(node), worth(cached.state, used_at + age_s)

        ranked = [(rank(node), index, node) for index, node in enumerate(nodes)]
        heapq.heapify(ranked)
        while ranked:
            yield heapq.heappop(ranked)[2]

    def _can_be_lost(self, node: StateNode) -> bool:
        cached = value(node)
        if node.n_locks or cached.state.is_pinned or cached.file is not None:
            return False
        return not (self._catalog.can_slice and node.children)


def _waits(node: StateNode, pending: int) -> bool:
    cached = value(node)
    return pending > 0 and cached.should_write and cached.file is None
