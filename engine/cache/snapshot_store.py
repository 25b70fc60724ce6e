"""The states on disk of one model and its settings, and making room among those of all."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.cache.disk_index import ColdEntry
from engine.cache.eviction import HALF_LIFE_S, LeavingOrder
from engine.cache.namespace import Namespace, is_of_other_build
from engine.cache.radix import StoredState
from engine.cache.snapshot_folder import ColdFolder

LISTED_S = 30.0
"""How long a list of others' states is used; what they write meanwhile is worth most anyway."""


class ColdStore:
    """One namespace of a folder, as `PrefixCache` uses it; fulfils `ColdTier`.

    Raises:
        CacheStoreError: the index of the folder is in use by others for seconds.
    """

    def __init__(self, folder: ColdFolder, namespace: Namespace) -> None:
        self.folder = folder
        self._namespace = namespace
        self._others = OtherNamespaces(folder, namespace.key)
        folder.know(namespace)

    def take_notes(self) -> tuple[str, ...]:
        """What the user should know: what was removed because it was damaged, and why."""
        problem = self.folder.index_problem
        return (*self.folder.take_damaged(), *(() if problem is None else (problem,)))

    @property
    def nbytes(self) -> int:
        return self.folder.nbytes

    def states(self) -> Sequence[StoredState]:
        return [entry.state for entry in self.folder.entries(self._namespace.key)]

    def write(self, state: StoredState, payload: bytes | memoryview) -> None:
        self.folder.write(self._namespace, state, payload)

    def read(self, state: StoredState) -> bytes:
        return self.folder.read(self._namespace.key, state)

    def delete(self, key: str) -> None:
        self.folder.delete(self._namespace.key, key)

    def note_use(self, key: str, used_at: float, n_uses: int, owners: frozenset[str]) -> None:
        self.folder.note_use(
            self._namespace.key, key, used_at=used_at, n_uses=n_uses, owners=owners
        )

    def pin(self, key: str, *, is_pinned: bool) -> None:
        self.folder.pin(self._namespace.key, key, is_pinned=is_pinned)

    def prune_elsewhere(self, nbytes: int, *, below: float, now: float) -> int:
        return self._others.prune(nbytes, below=below, now=now)


class OtherNamespaces:
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
    """The namespaces whose model is no longer where it was.

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


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was removed."""

    n_states: int
    file_bytes: int


def drop_other_builds(folder: ColdFolder, state_format: str) -> Forgotten:
    """Remove the states that other builds of a backend's library made, pinned ones too.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    gone: list[ColdEntry] = []
    for namespace in folder.namespaces():
        if is_of_other_build(namespace, state_format):
            for entry in folder.entries(namespace.key):
                folder.delete(namespace.key, entry.state.key)
                gone.append(entry)
            folder.forget_empty(namespace.key)
    return Forgotten(len(gone), sum(entry.file_bytes for entry in gone))


def forget_owner(path: Path, owner: str) -> Forgotten:
    """Remove the states of all namespaces that only this owner used, pinned ones too.

    Of a state that others use as well, the owner's name is taken away.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    n_states, file_bytes = 0, 0
    with ColdFolder(path) as folder:
        entries = [entry for entry in folder.all_entries() if owner in entry.state.owners]
        # A state is removed after those that continue it.
        for entry in sorted(entries, key=lambda entry: entry.state.end, reverse=True):
            state = entry.state
            if state.owners == {owner}:
                folder.delete(entry.namespace, state.key)
                n_states, file_bytes = n_states + 1, file_bytes + entry.file_bytes
            else:
                folder.note_use(
                    entry.namespace,
                    state.key,
                    used_at=state.used_at,
                    n_uses=state.n_uses,
                    owners=state.owners - {owner},
                )
        for namespace in {entry.namespace for entry in entries}:
            folder.forget_empty(namespace)
    return Forgotten(n_states, file_bytes)
