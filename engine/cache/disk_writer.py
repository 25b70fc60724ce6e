"""Moves kept states to disk and off it, beside everything else."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from engine.cache.books import Books, part_of
from engine.cache.catalog import KeptNode, Payload, value
from engine.cache.eviction import worth
from engine.cache.radix import StoredState
from engine.errors import CacheStoreError, StateError


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
        """What is there of this namespace, in any order.

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
        """The payload of a state.

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

        Those of the lowest `engine.cache.eviction.worth` at `now` go first, and only those whose
        worth is less than `below`; nothing that is pinned, and the end of a line before its start.

        Raises:
            CacheStoreError: the folder cannot be written.
        """
        ...


RETRY_S = 60.0
"""Time for which nothing is written once the disk refused something."""


class Disk:
    """The cold tier's side of the cache.

    Takes the cache's lock to read and change the catalog, and holds it during no transfer.
    """

    def __init__(
        self,
        cold: ColdTier,
        books: Books,
        monotonic: Callable[[], float],
    ) -> None:
        self._cold = cold
        self._catalog, self._ledger, self._lock = books.catalog, books.ledger, books.lock
        self._settings, self._split_state = books.settings, books.split_state
        self._now = books.now
        self._monotonic = monotonic
        self._off_until = -math.inf
        self._is_in_trouble = False
        self._is_crowded = False
        """Whether the last state had no room; only the first of a row is reported."""

    def write_one(self) -> bool:
        """Write the state that is due, and give whether there was one."""
        with self._lock:
            node = self._next() if self.can_write() else None
            if node is None:
                return False
            state, payload, file = self._catalog.stored(node), *_places(node)
            self._catalog.tree.lock(node)
        try:
            self._write(node, state, payload, file)
        except CacheStoreError as error:
            self._pause_after(error)
        finally:
            with self._lock:
                self._catalog.tree.unlock(node)
        return True

    def read(self, file: StoredState, start: int, end: int) -> Payload:
        """The part of a file that holds tokens `start` to `end` of its line.

        Raises:
            StateError: the file was damaged or is gone; what needed it was dropped.
            CacheStoreError: it cannot be read now.
        """
        try:
            payload = self._cold.read(file)
            return part_of(payload, (file.start, file.end), (start, end), self._split_state)
        except StateError as error:
            self._lose(file, str(error))
            raise

    def trim(self) -> None:
        """Delete states of least worth while the folder is beyond its budget."""
        try:
            self._make_room(0)
        except CacheStoreError as error:
            self._pause_after(error)

    def clear_spare(self) -> None:
        """Delete the files that no state needs; those that resist are tried again later."""
        with self._lock:
            keys = list(self._catalog.spare) if self.can_write() else []
        for key in keys:
            try:
                self._cold.delete(key)
            except CacheStoreError as error:
                self._pause_after(error)
                return
            with self._lock:
                self._catalog.spare.pop(key, None)

    def save_uses(self) -> None:
        """Write down which states were used, when and by whom."""
        with self._lock:
            if not self.can_write():
                return
            nodes, self._catalog.used = self._catalog.used, {}
            kept = [replace(value(node)) for node in nodes if value(node).is_exact]
        try:
            for each in kept:
                self._cold.note_use(each.key, each.used_at, each.n_uses, each.owners)
        except CacheStoreError as error:
            self._pause_after(error)

    def pin(self, key: str, *, is_pinned: bool) -> None:
        """Write down whether a state is pinned.

        Raises:
            CacheStoreError: it could not be written down.
        """
        self._cold.pin(key, is_pinned=is_pinned)

    def spare_all(self) -> None:
        """Mark every file of the namespace as spare, those of other processes too.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        keys = [state.key for state in self._cold.states()]
        with self._lock:
            self._catalog.spare.update(dict.fromkeys(keys))

    def retry(self) -> None:
        """Let the next write try again at once."""
        self._off_until = -math.inf

    def can_write(self) -> bool:
        """Whether the disk is expected to take something now."""
        return self._settings.cold_bytes > 0 and self._monotonic() >= self._off_until

    def _pause_after(self, error: CacheStoreError) -> None:
        """Write nothing for a while; only the first of a row of refusals is reported."""
        with self._lock:
            self._off_until = self._monotonic() + RETRY_S
            if not self._is_in_trouble:
                self._ledger.note(f"{error} Saving goes on in main memory.", is_problem=True)
            self._is_in_trouble = True

    def _next(self) -> KeptNode | None:
        """The newest node that waits, or the topmost that has to be written before it."""
        unwritten = self._catalog.unwritten
        while unwritten:
            node = chosen = next(reversed(unwritten))
            while not self._catalog.has_exact_parent(chosen):
                assert chosen.parent is not None
                chosen = chosen.parent
            if chosen in unwritten:
                return chosen
            value(node).wants_disk = False
            del unwritten[node]
        return None

    def _write(
        self, node: KeptNode, state: StoredState, payload: Payload | None, file: StoredState | None
    ) -> None:
        if payload is None:
            assert file is not None
            try:
                payload = self.read(file, state.start, state.end)
            except StateError:
                return
        state = replace(state, nbytes=memoryview(payload).nbytes)
        if not self._make_room(state.nbytes):
            self._refuse(
                node,
                f"A state of {state.nbytes:,} bytes has no room on disk: the budget is "
                f"{self._settings.cold_bytes:,} bytes, and what is there is pinned or in use.",
            )
            return
        try:
            self._cold.write(state, payload)
        except StateError as error:
            self._refuse(node, str(error))
            return
        with self._lock:
            self._catalog.written(node, state)
            self._ledger.count(n_written_bytes=state.nbytes)
            kept = node.value
            is_same = kept is not None and kept.key == state.key
            is_pinned = kept.is_pinned if kept is not None and is_same else state.is_pinned
            if self._is_in_trouble:
                self._ledger.note("The disk takes states again.")
            self._is_in_trouble = self._is_crowded = False
        if is_pinned != state.is_pinned:
            self._cold.pin(state.key, is_pinned=is_pinned)

    def _refuse(self, node: KeptNode, reason: str) -> None:
        with self._lock:
            if not self._is_crowded:
                self._ledger.note(reason, is_problem=True)
            self._is_crowded = True
            if node.value is not None:
                node.value.wants_disk = False
                self._catalog.unwritten.pop(node, None)

    def _make_room(self, nbytes: int) -> bool:
        over = self._cold.nbytes + nbytes - self._settings.cold_bytes
        if nbytes > self._settings.cold_bytes:
            return False
        while over > 0:
            now = self._now()
            with self._lock:
                victim = self._weakest(now)
                below = math.inf if victim is None else worth(value(victim), now)
            over -= self._cold.prune_elsewhere(over, below=below, now=now)
            if over > 0:
                if victim is None:
                    return False
                over -= self._give_up(victim)
        return True

    def _weakest(self, now: float) -> KeptNode | None:
        """The state that leaves first: idle ones before others, then by worth."""

        def rank(node: KeptNode) -> tuple[bool, float]:
            return not self._catalog.is_idle(node), worth(value(node), now)

        leaves = (node for node in self._catalog.recent if self._can_leave(node))
        return min(leaves, key=rank, default=None)

    def _can_leave(self, node: KeptNode) -> bool:
        """Whether a file may go: nothing below it needs it, in use or to be usable again."""
        kept = value(node)
        if node.n_locks or kept.is_pinned or not kept.is_exact:
            return False
        if not self._catalog.can_slice or not node.children:
            return True
        is_needed = any(value(child).file is not None for child in node.children.values())
        return kept.payload is not None and not is_needed

    def _give_up(self, node: KeptNode) -> int:
        with self._lock:
            if node.value is None or not self._can_leave(node):
                return 0
            kept = node.value
            key, nbytes = kept.key, kept.nbytes
            if kept.payload is None:
                self._ledger.count(n_evictions=len(self._catalog.remove(node)))
            else:
                kept.wants_disk = False
                self._catalog.set_file(node, None)
        self._cold.delete(key)
        with self._lock:
            self._catalog.spare.pop(key, None)
        return nbytes

    def _lose(self, file: StoredState, reason: str) -> None:
        """Drop what only a file held that turned out to be none."""
        with self._lock:
            self._ledger.count(n_refused=1)
            self._ledger.note(reason, is_problem=True)
            for node in list(self._catalog.nodes()):
                kept = node.value
                if kept is None or kept.file is None or kept.file.key != file.key:
                    continue
                if kept.payload is None:
                    self._catalog.remove(node)
                else:
                    self._catalog.set_file(node, None)


def _places(node: KeptNode) -> tuple[Payload | None, StoredState | None]:
    return value(node).payload, value(node).file
