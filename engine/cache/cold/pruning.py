"""Which states leave a full disk first."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator

from engine.cache.cold.entry import ColdEntry
from engine.cache.cold.folder import ColdFolder
from engine.cache.worth import worth

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
        """Give each state that may go, with its worth."""
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


def prune(
    folder: ColdFolder,
    nbytes: int,
    *,
    now: float,
    below: float = math.inf,
    older_than: float = math.inf,
    spared: str = "",
) -> list[ColdEntry]:
    """Delete states until so many bytes are free, and give those that went.

    Args:
        folder: Where they lie.
        nbytes: Bytes to free.
        now: Seconds since the epoch.
        below: Only states that are worth less go.
        older_than: Only states that were last used before this moment go.
        spared: Key of a namespace that is left alone.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    entries = [entry for entry in folder.all_entries() if entry.namespace != spared]
    orphaned = {each.key for each in folder.namespaces() if each.is_orphaned}

    def may_go(entry: ColdEntry) -> bool:
        return not entry.state.is_pinned and entry.state.used_at < older_than

    gone: list[ColdEntry] = []
    n_freed = 0
    for value, entry in LeavingOrder(entries, may_go=may_go, orphaned=orphaned, now=now):
        if n_freed >= nbytes or value >= below:
            break
        folder.delete(entry.namespace, entry.state.key)
        gone.append(entry)
        n_freed += entry.file_bytes
    for namespace in {entry.namespace for entry in gone}:
        folder.forget_empty(namespace)
    return gone
