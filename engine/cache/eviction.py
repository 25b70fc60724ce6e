"""What leaves a full tier first: least worth first, the end of a line before its start."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from engine.cache.catalog import Catalog, KeptNode, value
from engine.cache.disk_index import ColdEntry
from engine.cache.report import Ledger

HALF_LIFE_S = 3600.0
"""Time without use after which a state counts half."""
LEAST_RECOMPUTE_S = 1e-6
"""Stands for a time that was not measured."""


class Weighable(Protocol):
    """What a state's worth is made of."""

    @property
    def recompute_s(self) -> float: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def n_uses(self) -> int: ...

    @property
    def used_at(self) -> float: ...


def worth(state: Weighable, now: float) -> float:
    """The logarithm (base 2) of seconds spared per byte, weighted by uses and by age.

    Only comparing two of them at one moment means something. Uses x cost / bytes is the value of
    GreedyDual-Size-Frequency (Cherkasova 1998, HP Labs HPL-98-69R1). That algorithm ages by a
    clock that rises with each eviction and lives in one process; here age itself counts,
    halving the value every `HALF_LIFE_S`, so that restarts and other processes agree.
    """
    cost_s = max(state.recompute_s, LEAST_RECOMPUTE_S)
    value = (1 + state.n_uses) * cost_s / max(state.nbytes, 1)
    return math.log2(value) - max(now - state.used_at, 0.0) / HALF_LIFE_S


def shrink(catalog: Catalog, ledger: Ledger, limit: int, now: float, *, pending: int) -> None:
    """Drop copies in main memory, those of least worth first, until they are `limit` bytes.

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
    """The bytes that only main memory holds and that are going to be written."""
    waiting = (each for each in catalog.unwritten if _waits(each, pending))
    return min(sum(value(each).nbytes for each in waiting), pending)


def _waits(node: KeptNode, pending: int) -> bool:
    kept = value(node)
    return pending > 0 and kept.wants_disk and kept.file is None


def _weakest(catalog: Catalog, nodes: Iterable[KeptNode], now: float) -> Iterator[KeptNode]:
    """Nodes by rising worth; among whole states, those that a later one makes idle first."""

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


Place = tuple[str, str]
"""A namespace and the digest of a line in it."""


class LeavingOrder:
    """States as they leave a full disk: of least worth first, the end of a line before its start.

    No end is of use without its start, so the start of what may not go never goes. The states of
    models that are gone are worth nothing, nor are those whose line's start is missing.

    Args:
        entries: All states of the namespaces that are looked at.
        may_go: Whether a state may be lost at all.
        orphaned: Namespaces whose model is gone.
        now: Seconds since the epoch.
    """

    def __init__(
        self,
        entries: Iterable[ColdEntry],
        *,
        may_go: Callable[[ColdEntry], bool],
        orphaned: Collection[str],
        now: float,
    ) -> None:
        self._may_go = may_go
        self._orphaned = orphaned
        self._now = now
        self._ending_at: defaultdict[Place, list[ColdEntry]] = defaultdict(list)
        self._n_behind: Counter[Place] = Counter()
        for entry in entries:
            self._ending_at[entry.namespace, entry.state.line].append(entry)
            if entry.state.start:
                self._n_behind[_before(entry)] += 1
        self._lines = frozenset(self._ending_at)

    def __iter__(self) -> Iterator[tuple[float, ColdEntry]]:
        """Each state that may go, with its worth."""
        free: list[tuple[float, str, str, ColdEntry]] = []
        for place in self._lines:
            self._release(place, free)
        while free:
            least, _, _, entry = heapq.heappop(free)
            yield least, entry
            if entry.state.start:
                self._n_behind[_before(entry)] -= 1
                self._release(_before(entry), free)

    def _release(self, place: Place, free: list[tuple[float, str, str, ColdEntry]]) -> None:
        if self._n_behind[place]:
            return
        for entry in self._ending_at.get(place, ()):
            if self._may_go(entry):
                item = (self._worth(entry), entry.namespace, entry.state.key, entry)
                heapq.heappush(free, item)

    def _worth(self, entry: ColdEntry) -> float:
        is_cut_off = entry.state.start > 0 and _before(entry) not in self._lines
        is_useless = is_cut_off or entry.namespace in self._orphaned
        return -math.inf if is_useless else worth(entry.state, self._now)


def _before(entry: ColdEntry) -> Place:
    return entry.namespace, entry.state.parent
