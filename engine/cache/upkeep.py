"""What keeps the cache in order: what a user does by hand, and work in the background."""

import threading
from collections.abc import Callable

from engine.background import PAUSES_S, FaultHandler, ThreadFault, start_thread
from engine.cache.books import Books
from engine.cache.catalog import Kept, KeptNode, report, value
from engine.cache.disk_writer import Disk
from engine.cache.report import CacheReport
from engine.errors import CacheBudgetError, CacheStoreError, StateError

LOOK_S = 2.0
"""Time between two looks at memory, budgets and uses in the background."""


class Background:
    """Calls `step` again and again; it returns the seconds until the next call is due."""

    def __init__(self, step: Callable[[], float], on_fault: FaultHandler) -> None:
        self._step = step
        self._event = threading.Event()
        self._stopping = threading.Event()
        self._thread = start_thread(
            self._run,
            name="kvchat cache",
            on_fault=on_fault,
            pauses_s=PAUSES_S,
            stopping=self._stopping,
        )

    def wake(self) -> None:
        """Let the next step begin at once."""
        self._event.set()

    def stop(self, timeout_s: float) -> bool:
        """Begin no further step, and give whether the one that ran ended in time."""
        self._stopping.set()
        self._event.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._event.clear()
            wait_s = self._step()
            if wait_s > 0:
                self._event.wait(wait_s)


class Upkeep:
    """Pins, drops and checks states by key, and does the work that nobody waits for."""

    def __init__(
        self,
        books: Books,
        disk: Disk | None,
        *,
        prefetch_one: Callable[[], bool],
        monotonic: Callable[[], float],
        in_background: bool,
    ) -> None:
        """Begin to work in the background, or leave `work` to the caller.

        Args:
            books: what the parts of the cache share.
            disk: the cold tier, if there is one.
            prefetch_one: brings one line from disk; gives whether any was wished for.
            monotonic: seconds that never step back.
            in_background: False starts no thread.
        """
        self._books = books
        self._disk = disk
        self._prefetch_one = prefetch_one
        self._monotonic = monotonic
        self._look_at = monotonic()
        self._told: tuple[object, ...] = ()
        self._background = Background(self.work, self._report_fault) if in_background else None
        if self._background is not None:
            books.wake = self._background.wake

    def pin(self, key: str) -> None:
        """Protect a state, and what it needs, from eviction by budget.

        Raises:
            StateError: no state has this key.
            CacheBudgetError: the pinned states would not fit into the budget.
            CacheStoreError: the pin could not be written down; there is none then.
        """
        with self._books.lock:
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
            self._books.catalog.want_disk(node)
        self._books.wake()
        try:
            self._save_pin(kept)
        except CacheStoreError:
            kept.is_pinned = False
            raise

    def unpin(self, key: str) -> None:
        """Let a state be evicted again.

        Raises:
            StateError: no state has this key.
            CacheStoreError: it could not be written down; the pin is back at the next start.
        """
        with self._books.lock:
            kept = value(self._node(key))
            kept.is_pinned = False
        self._save_pin(kept)

    def drop(self, key: str) -> None:
        """Drop a state from every tier, pinned or not, with the states that need it.

        Raises:
            StateError: no state has this key.
        """
        with self._books.lock:
            self._books.catalog.remove(self._node(key))
        self._clear_spare()

    def verify(self, key: str) -> None:
        """Read a state from disk and check it; one that lies in main memory only is sound.

        Raises:
            StateError: no state has this key, or its file is damaged and was dropped.
            CacheStoreError: the file cannot be read.
        """
        with self._books.lock:
            file = value(self._node(key)).file
        if file is not None and self._disk is not None:
            self._disk.read(file, file.start, file.end)
        self._books.note(f"State {key} is sound.")

    def forget(self, owner: str) -> None:
        """Drop what only this owner's prompts used, pinned or not; what others share stays."""
        catalog = self._books.catalog
        with self._books.lock:
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
        """Drop every state of this namespace, pinned ones too.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        catalog = self._books.catalog
        with self._books.lock:
            for node in reversed(list(catalog.nodes())):
                catalog.remove(node)
        if self._disk is not None:
            self._disk.spare_all()
        self._clear_spare()

    def has_news(self) -> bool:
        """Whether something changed in the tiers since this was asked last; costs little."""
        with self._books.lock:
            catalog, ledger = self._books.catalog, self._books.ledger
            now = (catalog.warm_bytes, len(catalog.unwritten), ledger.counts, ledger.n_notes)
            was, self._told = self._told, now
            return was != now

    def report(self) -> CacheReport:
        """How full the tiers are, what they hold, and what happened since the last report."""
        with self._books.lock:
            return report(self._books.catalog, self._books.ledger, self._books.settings)

    def work(self) -> float:
        """One piece of background work; the seconds until the next is due."""
        if self._monotonic() >= self._look_at:
            self._look()
        disk = self._disk
        if self._prefetch_one():
            return 0.0
        if disk is not None and disk.write_one():
            with self._books.lock:
                self._books.shrink()
            return 0.0
        if disk is not None:
            disk.clear_spare()
        return max(self._look_at - self._monotonic(), 0.0)

    def close(self, timeout_s: float) -> None:
        """Write what is not on disk yet, and work no longer; gives up after `timeout_s`."""
        until = self._monotonic() + timeout_s
        is_stopped = self._background is None or self._background.stop(timeout_s)
        disk = self._disk
        if is_stopped and disk is not None:
            disk.retry()
            while self._monotonic() < until and disk.write_one():
                pass
            disk.clear_spare()
            disk.save_uses()

    def _report_fault(self, fault: ThreadFault) -> None:
        what = (
            "it goes on with the next state"
            if fault.will_restart
            else "nothing more is written to disk until the model is loaded again"
        )
        self._books.note(f"The cache met {fault}; {what}.", is_problem=True)

    def _look(self) -> None:
        """What is due now and then: budgets, the files of others, the times of use."""
        self._look_at = self._monotonic() + LOOK_S
        self._books.look_at_memory()
        if self._disk is not None:
            self._disk.trim()
            self._disk.save_uses()

    def _node(self, key: str) -> KeptNode:
        node = self._books.catalog.find(key)
        if node is None:
            raise StateError(
                f"No state of the loaded model has the key {key}: it may have been evicted since."
            )
        return node

    def _check_pins(self) -> None:
        """Refuse pins that, with the states that they need, leave no room for others."""
        catalog, settings = self._books.catalog, self._books.settings
        held: set[KeptNode] = set()
        for node in catalog.nodes():
            if value(node).is_pinned:
                held.update(catalog.tree.way(node) if catalog.can_slice else [node])
        nbytes = sum(value(node).nbytes for node in held)
        budget = settings.warm_bytes if self._disk is None else settings.cold_bytes
        if nbytes > budget:
            raise CacheBudgetError(
                f"Pinned states would take {nbytes:,} bytes but the cache may have {budget:,}: "
                "unpin another state, or raise the budget."
            )

    def _save_pin(self, kept: Kept) -> None:
        if self._disk is not None and kept.is_exact:
            self._disk.pin(kept.key, is_pinned=kept.is_pinned)

    def _clear_spare(self) -> None:
        if self._disk is not None:
            # A full disk refuses what is written, not what is deleted.
            self._disk.retry()
            self._disk.clear_spare()
