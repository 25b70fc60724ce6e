"""What a user does to kept states by hand."""

from engine.cache.catalog import Kept, KeptNode, value
from engine.cache.core import Core
from engine.errors import CacheBudgetError, CacheStoreError, StateError


class Managing:
    """Pins, drops and checks states by key; drops those of an owner, or all."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def pin(self, key: str) -> None:
        """Do `TieredCache.pin`."""
        with self._core.lock:
            node = self._node(key)
            kept = value(node)
            if kept.is_pinned:
                return
            kept.is_pinned = True
            try:
                self._check_pins()
            except CacheBudgetError:
                kept.is_pinned = False
                raise
            self._core.catalog.want_disk(node)
        self._core.wake()
        try:
            self._save_pin(kept)
        except CacheStoreError:
            kept.is_pinned = False
            raise

    def unpin(self, key: str) -> None:
        """Do `TieredCache.unpin`."""
        with self._core.lock:
            kept = value(self._node(key))
            kept.is_pinned = False
        self._save_pin(kept)

    def drop(self, key: str) -> None:
        """Do `TieredCache.drop`."""
        with self._core.lock:
            self._core.catalog.remove(self._node(key))
        self._clear_spare()

    def verify(self, key: str) -> None:
        """Do `TieredCache.verify`."""
        with self._core.lock:
            file = value(self._node(key)).file
        if file is not None and self._core.disk is not None:
            self._core.disk.read(file, file.start, file.end)
        self._core.note(f"State {key} is sound.")

    def forget(self, owner: str) -> None:
        """Do `TieredCache.forget`."""
        catalog = self._core.catalog
        with self._core.lock:
            for node in reversed(list(catalog.nodes())):
                kept = value(node)
                if owner not in kept.owners:
                    continue
                kept.owners -= {owner}
                if kept.owners or (catalog.can_slice and node.children):
                    catalog.used[node] = None
                else:
                    catalog.remove(node)
        self._clear_spare()

    def clear(self) -> None:
        """Do `TieredCache.clear`."""
        catalog, disk = self._core.catalog, self._core.disk
        with self._core.lock:
            for node in reversed(list(catalog.nodes())):
                catalog.remove(node)
        if disk is not None:
            disk.spare_all()
        self._clear_spare()

    def _node(self, key: str) -> KeptNode:
        node = self._core.catalog.find(key)
        if node is None:
            raise StateError(
                f"No state of the loaded model has the key {key}: it may have been evicted since."
            )
        return node

    def _check_pins(self) -> None:
        """Refuse pins that, with the states that they need, leave no room for others."""
        catalog, settings = self._core.catalog, self._core.settings
        held: set[KeptNode] = set()
        for node in catalog.nodes():
            if value(node).is_pinned:
                held.update(catalog.tree.way(node) if catalog.can_slice else [node])
        nbytes = sum(value(node).nbytes for node in held)
        budget = settings.warm_bytes if self._core.disk is None else settings.cold_bytes
        if nbytes > budget:
            raise CacheBudgetError(
                f"Pinned states would take {nbytes:,} bytes but the cache may have {budget:,}: "
                "unpin another state, or raise the budget."
            )

    def _save_pin(self, kept: Kept) -> None:
        if self._core.disk is not None and kept.is_exact:
            self._core.disk.pin(kept.key, is_pinned=kept.is_pinned)

    def _clear_spare(self) -> None:
        if self._core.disk is not None:
            # A full disk refuses what is written, not what is deleted.
            self._core.disk.retry()
            self._core.disk.clear_spare()
