"""Which copies in main memory give way when there are too many."""

import heapq
from collections.abc import Iterable, Iterator

from engine.cache.catalog import Catalog, KeptNode, value
from engine.cache.report import Ledger
from engine.cache.worth import worth


def shrink(catalog: Catalog, ledger: Ledger, limit: int, now: float, *, pending: int) -> None:
    """Give up copies in main memory, those of least worth first, until they are `limit` bytes.

    First go those that lie on disk too: that costs a read at most. Up to `pending` bytes that are
    still to be written may stay beyond the limit. What lies nowhere else and exceeds that is lost,
    ends of lines first. Nothing that is locked goes, and nothing that is pinned is lost.
    """
    if catalog.warm_bytes <= limit:
        return
    over = catalog.warm_bytes - limit - _waiting_bytes(catalog, pending)
    if over <= 0:
        return
    for node in _weakest(catalog, (each for each in catalog.warm if not each.n_locks), now):
        if over <= 0:
            return
        if value(node).file is not None:
            over -= value(node).nbytes
            _demote(catalog, ledger, node)
    _lose(catalog, ledger, limit, now, pending=pending)


def _lose(catalog: Catalog, ledger: Ledger, limit: int, now: float, *, pending: int) -> None:
    """Evict what lies in main memory only, what is not going to be written first."""
    for may_wait in (False, True):
        bound = limit + (pending if may_wait else _waiting_bytes(catalog, pending))
        while catalog.warm_bytes > bound:
            victims = [
                node
                for node in catalog.warm
                if _can_be_lost(catalog, node) and (may_wait or not _waits(node, pending))
            ]
            if not victims:
                break
            for node in _weakest(catalog, victims, now):
                if catalog.warm_bytes <= bound:
                    break
                ledger.count(n_evictions=len(catalog.remove(node)))


def _waiting_bytes(catalog: Catalog, pending: int) -> int:
    """Give the bytes that only main memory holds and that are going to be written."""
    waiting = (each for each in catalog.unwritten if _waits(each, pending))
    return min(sum(value(each).nbytes for each in waiting), pending)


def _waits(node: KeptNode, pending: int) -> bool:
    kept = value(node)
    return pending > 0 and kept.wants_disk and kept.file is None


def _weakest(catalog: Catalog, nodes: Iterable[KeptNode], now: float) -> Iterator[KeptNode]:
    """Give nodes by rising worth; among whole states, those that a later one makes idle first."""

    def rank(node: KeptNode) -> tuple[bool, float]:
        kept = value(node)
        spent_s = min(max(now - kept.came_at, 0.0), max(now - kept.used_at, 0.0))
        return not catalog.is_idle(node), worth(kept, kept.used_at + spent_s)

    ranked = [(rank(node), index, node) for index, node in enumerate(nodes)]
    heapq.heapify(ranked)
    while ranked:
        yield heapq.heappop(ranked)[2]


def _demote(catalog: Catalog, ledger: Ledger, node: KeptNode) -> None:
    was_in_vain = catalog.drop_payload(node)
    ledger.count(n_demotions=1, n_prefetches_wasted=int(was_in_vain))


def _can_be_lost(catalog: Catalog, node: KeptNode) -> bool:
    kept = value(node)
    if node.n_locks or kept.is_pinned or kept.file is not None:
        return False
    return not (catalog.can_slice and node.children)
