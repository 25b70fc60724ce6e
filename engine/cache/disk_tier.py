"""Writes cached states to disk in the background, and reads and deletes them."""

import math
from dataclasses import replace

from engine.cache.catalog import CacheState, Payload, StateNode, adopt, slice_state, value
from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState
from engine.cache.snapshot_store import SnapshotStore
from engine.errors import CacheStoreError, StateError

RETRY_S = 60.0
"""Pause in writing after the disk refused an operation."""


class DiskTier:
    """Cold tier; adds the store's states of the namespace to the catalog.

    Holds the cache's lock to read and change the catalog, but not during transfers. If the store
    cannot be read, the error is logged and the cache works without its states.
    """

    def __init__(self, cache: CacheState, store: SnapshotStore, namespace: Namespace) -> None:
        self._cache = cache
        self._catalog, self._ledger, self._lock = cache.catalog, cache.ledger, cache.lock
        self._store = store
        self._namespace = namespace
        self._off_until = -math.inf
        self._is_in_trouble = False
        self._is_crowded = False
        """Whether the last state did not fit; of consecutive failures only the first is logged."""
        self._load_index()

    def write_one(self) -> bool:
        """Write the next queued state; return whether there was one."""
        with self._lock:
            node = self._next() if self.can_write() else None
            if node is None:
                return False
            cached = value(node)
            state, payload, file = cached.state, cached.payload, cached.file
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
        """The state of tokens `start` to `end`, from a file that includes them.

        Raises:
            StateError: the file is damaged or gone; the states that need it were dropped.
            CacheStoreError: it cannot be read now.
        """
        try:
            payload = self._store.read(file)
            return slice_state(
                payload, (file.start, file.end), (start, end), self._cache.split_state
            )
        except StateError as error:
            with self._lock:
                self._ledger.count(n_refused=1)
                self._ledger.note(str(error), is_problem=True)
                self._catalog.lose_file(file.key, is_wanted=True)
            raise

    def trim(self) -> None:
        """Delete the states of lowest worth until the folder is within its budget."""
        try:
            self._free_space(0)
        except CacheStoreError as error:
            self._pause_after(error)

    def delete_unreferenced(self) -> None:
        """Delete the files that no state uses; after an error they are tried again later."""
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
        """Save when, how often and by which owners states were used."""
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
        """Save whether a state is pinned.

        Raises:
            CacheStoreError: it could not be saved.
        """
        self._store.pin(state.key, is_pinned=state.is_pinned)

    def release_all(self) -> None:
        """Mark every file of the namespace for deletion, including other processes' files.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        keys = [state.key for state in self._store.states(self._namespace.key)]
        with self._lock:
            self._catalog.unreferenced.update(dict.fromkeys(keys))

    def retry(self) -> None:
        """End the pause in writing."""
        self._off_until = -math.inf

    def can_write(self) -> bool:
        """Whether writing is not paused."""
        return self._cache.monotonic() >= self._off_until

    def _load_index(self) -> None:
        try:
            self._store.know(self._namespace)
        except CacheStoreError as error:
            self._ledger.note(str(error), is_problem=True)  # states are read nevertheless
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
        """Pause writing; of consecutive errors only the first is logged."""
        with self._lock:
            self._off_until = self._cache.monotonic() + RETRY_S
            if not self._is_in_trouble:
                self._ledger.note(f"{error} States are saved in RAM only.", is_problem=True)
            self._is_in_trouble = True

    def _next(self) -> StateNode | None:
        """The newest unwritten node, or its topmost ancestor that must be written first."""
        unwritten = self._catalog.unwritten
        while unwritten:
            node = chosen = next(reversed(unwritten))
            while not self._catalog.has_exact_parent(chosen):
                assert chosen.parent is not None
                chosen = chosen.parent
            if chosen in unwritten:
                return chosen
            value(node).should_write = False
            del unwritten[node]
        return None

    def _write(
        self, node: StateNode, state: StoredState, payload: Payload | None, file: StoredState | None
    ) -> None:
        if payload is None:
            assert file is not None
            try:
                payload = self.read(file, state.start, state.end)
            except StateError:
                return
        state = replace(state, nbytes=memoryview(payload).nbytes)
        if not self._free_space(state.nbytes):
            self._refuse(node, state.nbytes)
            return
        self._store.write(self._namespace, state, payload)
        with self._lock:
            self._catalog.written(node, state)
            self._ledger.count(n_written_bytes=state.nbytes)
            cached = node.value
            is_same = cached is not None and cached.state.key == state.key
            now = cached.state if cached is not None and is_same else state
            if self._is_in_trouble:
                self._ledger.note("States are saved on disk again.")
            self._is_in_trouble = self._is_crowded = False
        if now.is_pinned != state.is_pinned:
            self.save_pin(now)

    def _refuse(self, node: StateNode, nbytes: int) -> None:
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
                node.value.should_write = False
                self._catalog.unwritten.pop(node, None)

    def _free_space(self, nbytes: int) -> bool:
        """Delete the states of lowest worth of all namespaces; return whether `nbytes` fit now."""
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
