"""What the tiers ask of a store on disk."""

from collections.abc import Sequence
from typing import Protocol

from engine.cache.radix import StoredState


class ColdTier(Protocol):
    """The states of one namespace on disk, in a folder that other namespaces share.

    Called from several threads at once. Another process may write to and delete from the same
    folder at any time: a state that `states` listed may be gone when it is read.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the files of all namespaces, as last known; costs no scan of the folder."""
        ...

    def states(self) -> Sequence[StoredState]:
        """Give what is there of this namespace, in any order.

        Entries may overlap, and their parents may be missing: the caller sorts that out.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        ...

    def write(self, state: StoredState, payload: bytes | memoryview) -> None:
        """Put a state on disk under its key, whole or not at all; an equal key is replaced.

        Raises:
            CacheStoreError: the disk is full or the folder cannot be written; nothing was kept.
            StateError: the state is larger than a file may be.
        """
        ...

    def read(self, state: StoredState) -> bytes:
        """Give the payload of a state.

        Raises:
            StateError: the file is gone, damaged, or stands for other tokens; it was removed.
            CacheStoreError: the file is there and cannot be read.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a state; one that is not there is no error.

        Raises:
            CacheStoreError: the folder cannot be written.
        """
        ...

    def note_use(self, key: str, used_at: float, n_uses: int, owners: frozenset[str]) -> None:
        """Keep when, how often and by whom a state was used, for the next start.

        Raises:
            CacheStoreError: it could not be written down.
        """
        ...

    def pin(self, key: str, *, is_pinned: bool) -> None:
        """Protect a state from being pruned, or no longer.

        Raises:
            CacheStoreError: it could not be written down.
        """
        ...

    def prune_elsewhere(self, nbytes: int, *, below: float, now: float) -> int:
        """Delete states of other namespaces until `nbytes` are free, and give the bytes freed.

        Those of the lowest `engine.cache.worth.worth` at `now` go first, and only those whose
        worth is less than `below`; nothing that is pinned, and the end of a line before its start.

        Raises:
            CacheStoreError: the folder cannot be written.
        """
        ...
