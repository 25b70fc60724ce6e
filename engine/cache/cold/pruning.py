"""Which states leave a full disk first."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator

from engine.cache.cold.entry import ColdEntry
from engine.cache.cold.folder import ColdFolder
from engine.cache.worth import HALF_LIFE_S, worth

LISTED_S = 30.0
"""How long a list of others' states is used; what they write meanwhile is worth most anyway."""

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


class Elsewhere:
    """The states of all namespaces but one, to make room for that one.

    They are listed and put in order once for many calls: age lowers the worth of all alike, so
    the order holds.
    """

    def __init__(self, folder: ColdFolder, own: str) -> None:
        self._folder = folder
        self._own = own
        self._listed_at = -math.inf
        self._leaving: Iterator[tuple[float, ColdEntry]] = iter(())
        self._next: tuple[float, ColdEntry] | None = None

    def prune(self, nbytes: int, *, below: float, now: float) -> int:
        """Delete states that are worth less than `below` until so many bytes are free.

        Returns:
            The bytes that became free.

        Raises:
            CacheStoreError: the folder cannot be read or written.
        """
        if not 0 <= now - self._listed_at < LISTED_S:
            self._list(now)
        aged = (now - self._listed_at) / HALF_LIFE_S
        n_freed = 0
        while n_freed < nbytes and self._next is not None and self._next[0] - aged < below:
            entry = self._next[1]
            self._folder.delete(entry.namespace, entry.state.key)
            n_freed += entry.file_bytes
            self._next = next(self._leaving, None)
        return n_freed

    def _list(self, now: float) -> None:
        entries = self._folder.all_entries(but=self._own)
        self._leaving = iter(
            LeavingOrder(
                entries,
                may_go=lambda entry: not entry.state.is_pinned,
                orphaned=orphaned(self._folder),
                now=now,
            )
        )
        self._next = next(self._leaving, None)
        self._listed_at = now


def orphaned(folder: ColdFolder) -> frozenset[str]:
    """Give the namespaces whose model is no longer where it was.

    Raises:
        CacheStoreError: the index is busy.
    """
    return frozenset(each.key for each in folder.namespaces() if each.is_orphaned)


def prune(
    folder: ColdFolder, nbytes: int, *, now: float, older_than: float = math.inf
) -> list[ColdEntry]:
    """Delete states of any namespace until so many bytes are free, and give those that went.

    Args:
        folder: Where they lie.
        nbytes: Bytes to free.
        now: Seconds since the epoch.
        older_than: Only states that were last used before this moment go.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    entries = folder.all_entries()

    def may_go(entry: ColdEntry) -> bool:
        return not entry.state.is_pinned and entry.state.used_at < older_than

    gone: list[ColdEntry] = []
    n_freed = 0
    order = LeavingOrder(entries, may_go=may_go, orphaned=orphaned(folder), now=now)
    for _, entry in order:
        if n_freed >= nbytes:
            break
        folder.delete(entry.namespace, entry.state.key)
        gone.append(entry)
        n_freed += entry.file_bytes
    for namespace in {entry.namespace for entry in gone}:
        folder.forget_empty(namespace)
    return gone
