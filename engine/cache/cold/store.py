"""The cold tier of one model and its settings."""

from collections.abc import Sequence

from engine.cache.cold.folder import ColdFolder
from engine.cache.eviction import Elsewhere
from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState


class ColdStore:
    """One namespace of a folder, as `PrefixCache` uses it; fulfils `ColdTier`.

    Raises:
        CacheStoreError: the index of the folder is in use by others for seconds.
    """

    def __init__(self, folder: ColdFolder, namespace: Namespace) -> None:
        self._folder = folder
        self._namespace = namespace
        self._elsewhere = Elsewhere(folder, namespace.key)
        folder.know(namespace)

    def take_notes(self) -> tuple[str, ...]:
        """Give what the user should know: what was removed because it was damaged, and why."""
        problem = self._folder.index_problem
        return (*self._folder.take_damaged(), *(() if problem is None else (problem,)))

    @property
    def nbytes(self) -> int:
        return self._folder.nbytes

    def states(self) -> Sequence[StoredState]:
        return [entry.state for entry in self._folder.entries(self._namespace.key)]

    def write(self, state: StoredState, payload: bytes | memoryview) -> None:
        self._folder.write(self._namespace, state, payload)

    def read(self, state: StoredState) -> bytes:
        return self._folder.read(self._namespace.key, state)

    def delete(self, key: str) -> None:
        self._folder.delete(self._namespace.key, key)

    def note_use(self, key: str, used_at: float, n_uses: int, owners: frozenset[str]) -> None:
        self._folder.note_use(
            self._namespace.key, key, used_at=used_at, n_uses=n_uses, owners=owners
        )

    def pin(self, key: str, *, is_pinned: bool) -> None:
        self._folder.pin(self._namespace.key, key, is_pinned=is_pinned)

    def prune_elsewhere(self, nbytes: int, *, below: float, now: float) -> int:
        return self._elsewhere.prune(nbytes, below=below, now=now)
