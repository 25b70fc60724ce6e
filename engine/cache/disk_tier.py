"""Moves kept states to disk and off it, beside everything else."""

import math
from dataclasses import replace

from engine.cache.catalog import CacheState, KeptNode, Payload, adopt, part_of, value
from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState
from engine.cache.snapshot_store import SnapshotStore
from engine.errors import CacheStoreError, StateError

RETRY_S = 60.0
"""Time for which nothing is written once the disk refused something."""


class DiskTier:
    """The disk's side of the cache, which takes up what the store has of its namespace.

    Takes the cache's lock to read and change the catalog, and holds it during no transfer. A store
    that cannot be read is named in the log; the cache goes on without what it holds.
    """

    def __init__(self, cache: CacheState, store: SnapshotStore, namespace: Namespace) -> None:
        self._cache = cache
        self._catalog, self._ledger, self._lock = cache.catalog, cache.ledger, cache.lock
        self._store = store
        self._namespace = namespace
        self._off_until = -math.inf
        self._is_in_trouble = False
        self._is_crowded = False
        """Whether the last state had no room; only the first of a row is reported."""
        self._take_up()

    def write_one(self) -> bool:
        """Write the state that is due, and give whether there was one."""
        with self._lock:
            node = self._next() if self.can_write() else None
            if node is None:
                return False
            kept = value(node)
            state, payload, file = kept.state, kept.payload, kept.file
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
            payload = self._store.read(file)
            return part_of(payload, (file.start, file.end), (start, end), self._cache.split_state)
        except StateError as error:
            with self._lock:
                self._ledger.count(n_refused=1)
                self._ledger.note(str(error), is_problem=True)
                self._catalog.lose_file(file.key, is_wanted=True)
            raise

    def trim(self) -> None:
        """Delete states of least worth while the folder is beyond its budget."""
        try:
            self._make_room(0)
        except CacheStoreError as error:
            self._pause_after(error)

    def delete_unreferenced(self) -> None:
        """Delete the files that no state needs; those that resist are tried again later."""
        with self._lock:
            keys = list(self._catalog.unreferenced) if self.can_write() else []
        try:
            self._store.delete(keys)
        except CacheStoreError as error:
            self._pause_after(error)
            return
        with self._lock:
            for key in keys:
                self._catalog.unreferenced.pop(key, None)

    def save_uses(self) -> None:
        """Write down which states were used, when and by whom."""
        with self._lock:
            if not self.can_write():
                return
            nodes, self._catalog.used = self._catalog.used, {}
            states = [value(node).state for node in nodes if value(node).is_exact]
        try:
            self._store.save_uses(states)
        except CacheStoreError as error:
            self._pause_after(error)

    def save_pin(self, state: StoredState) -> None:
        """Write down whether a state is pinned.

        Raises:
            CacheStoreError: it could not be written down.
        """
        self._store.pin(state.key, is_pinned=state.is_pinned)

    def release_all(self) -> None:
        """Let every file of the namespace be deleted, those of other processes too.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        keys = [state.key for state in self._store.states(self._namespace.key)]
        with self._lock:
            self._catalog.unreferenced.update(dict.fromkeys(keys))

    def retry(self) -> None:
        """Let the next write try again at once."""
        self._off_until = -math.inf

    def can_write(self) -> bool:
        """Whether the disk is expected to take something now."""
        return self._cache.monotonic() >= self._off_until

    def _take_up(self) -> None:
        try:
            self._store.know(self._namespace)
        except CacheStoreError as error:
            self._ledger.note(str(error), is_problem=True)  # what is there is read all the same
        try:
            n_unusable = adopt(self._catalog, self._store.states(self._namespace.key))
        except CacheStoreError as error:
            self._ledger.note(str(error), is_problem=True)
            return
        for note in self._store.take_notes():
            self._ledger.note(note, is_problem=True)
        if n_unusable:
            self._ledger.note(
                f"{n_unusable} saved states were deleted from disk because the earlier states "
                "that they continue are missing."
            )

    def _pause_after(self, error: CacheStoreError) -> None:
        """Write nothing for a while; only the first of a row of refusals is reported."""
        with self._lock:
            self._off_until = self._cache.monotonic() + RETRY_S
            if not self._is_in_trouble:
                self._ledger.note(f"{error} States are saved in RAM only.", is_problem=True)
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
            self._refuse(node, state.nbytes)
            return
        self._store.write(self._namespace, state, payload)
        with self._lock:
            self._catalog.written(node, state)
            self._ledger.count(n_written_bytes=state.nbytes)
            kept = node.value
            is_same = kept is not None and kept.state.key == state.key
            now = kept.state if kept is not None and is_same else state
            if self._is_in_trouble:
                self._ledger.note("States are saved on disk again.")
            self._is_in_trouble = self._is_crowded = False
        if now.is_pinned != state.is_pinned:
            self.save_pin(now)

    def _refuse(self, node: KeptNode, nbytes: int) -> None:
        with self._lock:
            if not self._is_crowded:
                self._ledger.note(
                    f"A state of {nbytes:,} bytes does not fit on disk: the budget is "
                    f"{self._cache.settings.cold_bytes:,} bytes, and the other states are "
                    "pinned or in use.",
                    is_problem=True,
                )
            self._is_crowded = True
            if node.value is not None:
                node.value.wants_disk = False
                self._catalog.unwritten.pop(node, None)

    def _make_room(self, nbytes: int) -> bool:
        """Delete what is worth least in the folder, whoever computed it; whether it was enough."""
        budget = self._cache.settings.cold_bytes
        over = self._store.nbytes + nbytes - budget
        if nbytes > budget:
            return False
        if over <= 0:
            return True
        self.save_uses()
        with self._lock:
            in_use, superseded = self._catalog.keys_in_use(), self._catalog.superseded_keys()
        now = self._cache.now()
        gone = self._store.prune(over, now=now, in_use=in_use, superseded=superseded)
        with self._lock:
            for state in gone:
                n_lost = self._catalog.lose_file(state.key, is_wanted=False)
                self._ledger.count(n_evictions=n_lost)
        return sum(state.nbytes for state in gone) >= over
