"""Warm and cold: the tiers of kept states of one model and its settings."""

import threading
import time
from collections.abc import Callable, Sequence

from engine.cache.catalog import Catalog, Payload, adopt, report
from engine.cache.core import Core
from engine.cache.disk_writer import Background, ColdTier, Disk, Split
from engine.cache.keeping import Keeping
from engine.cache.managing import Managing
from engine.cache.pressure import available_bytes
from engine.cache.radix import pack
from engine.cache.report import CacheReport, CacheSettings, Ledger
from engine.cache.restoring import Match, Restoring
from engine.errors import CacheStoreError

LOOK_S = 2.0
"""Time between two looks at memory, budgets and uses in the background."""

__all__ = ["ColdTier", "Match", "Payload", "TieredCache"]


class TieredCache:
    """States that were computed, found again by their tokens, in main memory and on disk.

    Every state that is put is written to disk in the background, so that giving up its copy in
    main memory loses nothing. A state is only ever given for the very tokens that it was put for.
    All methods may be called from any thread; none holds the lock while it reads, writes or cuts
    a state.
    """

    def __init__(
        self,
        namespace: str,
        *,
        can_slice: bool,
        split_state: Split,
        cold: ColdTier | None,
        settings: CacheSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        available: Callable[[], int] = available_bytes,
        in_background: bool = True,
    ) -> None:
        """Take up what `cold` lists, and begin to work in the background.

        A folder that cannot be read is told in the log; the cache goes on without it.

        Args:
            namespace: key of everything that changes a state's numbers.
            can_slice: `Backend.can_slice`.
            split_state: `Backend.split_state`; called from several threads.
            cold: the store on disk, None without one.
            settings: budgets and thresholds.
            now: seconds since the epoch.
            monotonic: seconds that never step back.
            available: bytes of main memory that are available.
            in_background: False starts no thread; `work` is then the caller's to call.
        """
        self._monotonic = monotonic
        self._look_at = monotonic()
        self._told: tuple[object, ...] = ()
        catalog, ledger, lock = (
            Catalog(namespace, can_slice=can_slice),
            Ledger(now),
            threading.Lock(),
        )
        disk = None
        if cold is not None and settings.cold_bytes > 0:
            disk = Disk(
                cold,
                catalog,
                ledger,
                lock,
                settings,
                split_state=split_state,
                now=now,
                monotonic=monotonic,
            )
            _take_up(cold, catalog, ledger)
        self._core = Core(
            catalog,
            ledger,
            lock,
            disk,
            settings,
            split_state=split_state,
            now=now,
            available=available,
        )
        self._restoring = Restoring(self._core)
        self._keeping = Keeping(self._core)
        self._managing = Managing(self._core)
        self._background = Background(self.work) if in_background else None
        if self._background is not None:
            self._core.wake = self._background.wake

    def match(self, tokens: Sequence[int], *, owner: str = "") -> Match:
        """Find the longest start of a line that can be restored, and protect it until released.

        Stretches that lie wholly within it are noted to be the owner's too.
        """
        return self._restoring.match(tokens, owner)

    def read(self, match: Match) -> list[Payload]:
        """Give the states of a match in order; those from disk are in main memory then.

        Afterwards the match says how many tokens they are, and from where they came. That is less
        than before where a file was damaged or has gone: the rest has to be computed. None of the
        states may be changed.
        """
        return self._restoring.read(match)

    def refuse(self, match: Match, reason: str) -> None:
        """Drop the last state of a match, since the backend did not take what was read."""
        self._restoring.refuse(match, reason)

    def prefetch(self, tokens: Sequence[int]) -> None:
        """Bring what is kept of a line's start from disk into main memory, in the background."""
        self._restoring.wish(tokens)

    def n_known(self, tokens: Sequence[int]) -> int:
        """Give how many leading tokens some line had before, whether a state is left or not."""
        with self._core.lock:
            return self._core.catalog.tree.match(pack(tokens)).n_tokens

    def keys_on(self, tokens: Sequence[int]) -> list[str]:
        """Give the keys of the states that lie wholly on a line."""
        with self._core.lock:
            found = self._core.catalog.tree.match(pack(tokens))
            ends_within = (node for node in found.nodes if node.end <= found.n_tokens)
            return [node.value.key for node in ends_within if node.value is not None]

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a line to the log."""
        with self._core.lock:
            self._core.ledger.note(text, is_problem=is_problem)

    def put(
        self,
        tokens: Sequence[int],
        start: int,
        state: Payload,
        *,
        recompute_s: float,
        owner: str = "",
    ) -> bool:
        """Keep the state of `tokens` from `start` on, and give whether it is kept.

        All of the tokens are committed ones. The state is taken over, not copied. It is not kept
        where fewer than `CacheSettings.min_tokens` tokens are new, or no tier has room.

        Args:
            tokens: the whole line.
            start: first token that the state holds; 0 where states cannot be sliced. No more than
                a match found; one that is not released yet makes sure that they still are kept.
            state: what `Sequence.save(start)` gave.
            recompute_s: measured time of computing `tokens[start:]`.
            owner: whose tokens they are; empty is nobody's.

        Raises:
            StateError: the tokens before `start` are not kept, or the state cannot be cut.
        """
        return self._keeping.put(tokens, start, state, recompute_s, owner)

    def note_hit(
        self, *, n_hot: int, n_warm: int, n_cold: int, n_computed: int, saved_s: float | None
    ) -> None:
        """Count a prompt by where its tokens came from, and what restoring saved, if that is known.

        A hit took something from a tier. A miss took nothing, and computed more than the context
        held by itself. The rest is neither.
        """
        is_hit = n_warm + n_cold > 0
        with self._core.lock:
            self._core.ledger.count(
                n_hits=int(is_hit),
                n_misses=int(not is_hit and n_computed > n_hot),
                n_hot_tokens=n_hot,
                n_warm_tokens=n_warm,
                n_cold_tokens=n_cold,
                n_computed_tokens=n_computed,
            )
            if saved_s is not None:
                self._core.ledger.save(saved_s)

    def pin(self, key: str) -> None:
        """Protect a state, and what it needs, from eviction by budget.

        Raises:
            StateError: no state has this key.
            CacheBudgetError: the pinned states would not fit into the budget.
            CacheStoreError: the pin could not be written down; there is none then.
        """
        self._managing.pin(key)

    def unpin(self, key: str) -> None:
        """Let a state be evicted again.

        Raises:
            StateError: no state has this key.
            CacheStoreError: it could not be written down; the pin is back at the next start.
        """
        self._managing.unpin(key)

    def drop(self, key: str) -> None:
        """Drop a state from every tier, pinned or not, with the states that need it.

        Raises:
            StateError: no state has this key.
        """
        self._managing.drop(key)

    def verify(self, key: str) -> None:
        """Read a state from disk and check it; one that lies in main memory only is sound.

        Raises:
            StateError: no state has this key, or its file is damaged and was dropped.
            CacheStoreError: the file cannot be read.
        """
        self._managing.verify(key)

    def forget(self, owner: str) -> None:
        """Drop what only this owner's prompts used, pinned or not; what others share stays."""
        self._managing.forget(owner)

    def clear(self) -> None:
        """Drop every state of this namespace, pinned ones too.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        self._managing.clear()

    def has_news(self) -> bool:
        """Tell whether something changed in the tiers since this was asked last; costs little."""
        with self._core.lock:
            catalog, ledger = self._core.catalog, self._core.ledger
            now = (catalog.warm_bytes, len(catalog.unwritten), ledger.counts, ledger.n_notes)
            was, self._told = self._told, now
            return was != now

    def report(self) -> CacheReport:
        """Tell how full the tiers are, what they hold, and what happened since the last report."""
        with self._core.lock:
            return report(self._core.catalog, self._core.ledger, self._core.settings)

    def work(self) -> float:
        """Do one piece of background work, and give the seconds until the next is due."""
        if self._monotonic() >= self._look_at:
            self._look()
        disk = self._core.disk
        if self._restoring.fulfil():
            return 0.0
        if disk is not None and disk.write_one():
            with self._core.lock:
                self._core.shrink()
            return 0.0
        if disk is not None:
            disk.clear_spare()
        return max(self._look_at - self._monotonic(), 0.0)

    def close(self, timeout_s: float) -> None:
        """Write what is not on disk yet, and work no longer; gives up after `timeout_s`."""
        until = self._monotonic() + timeout_s
        is_stopped = self._background is None or self._background.stop(timeout_s)
        disk = self._core.disk
        if is_stopped and disk is not None:
            disk.retry()
            while self._monotonic() < until and disk.write_one():
                pass
            disk.clear_spare()
            disk.save_uses()

    def _look(self) -> None:
        """Do what has to be done now and then."""
        self._look_at = self._monotonic() + LOOK_S
        self._core.look_at_memory()
        if self._core.disk is not None:
            self._core.disk.trim()
            self._core.disk.save_uses()


def _take_up(cold: ColdTier, catalog: Catalog, ledger: Ledger) -> None:
    try:
        n_unusable = adopt(catalog, cold.states())
    except CacheStoreError as error:
        ledger.note(str(error), is_problem=True)
        return
    if n_unusable:
        ledger.note(f"{n_unusable} states on disk lack the start of their line and are deleted.")
