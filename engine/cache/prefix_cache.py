"""States that were computed, found again by the longest start that a line shares with them.

After SGLang's RadixAttention (Zheng et al. 2024, arXiv 2312.07104), for states of llama.cpp in main
memory and on disk.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from engine.background import PAUSES_S, ThreadFault, start_thread
from engine.cache.catalog import (
    CacheState,
    Catalog,
    KeptNode,
    Payload,
    Split,
    part_of,
    report,
    value,
)
from engine.cache.disk_tier import DiskTier
from engine.cache.namespace import Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState, pack
from engine.cache.report import CacheReport, CacheSettings, CacheStats
from engine.cache.snapshot_store import SnapshotStore
from engine.cache.warm_tier import WarmTier
from engine.errors import CacheBudgetError, CacheStoreError, StateError

LOOK_S = 2.0
"""Time between two looks at memory, budgets and uses in the background."""
MAX_PREFETCHES = 4
"""Lines that wait to be prefetched; older wishes give way."""
N_NEWEST = 4
"""Whole states that are kept of one line, the newest: the ends of two prompts and two replies, so
that the last two turns can be made anew."""


def available_bytes() -> int:
    """The bytes that programs can take before the machine swaps, as psutil estimates them."""
    return psutil.virtual_memory().available


@dataclass(slots=True, eq=False)
class Match:
    """The longest start of a line that can be restored; nothing of it is evicted until released."""

    n_tokens: int
    """Leading tokens; after `PrefixCache.read`, those that it gave."""
    n_warm: int
    """Of them, those whose state is in main memory."""
    n_cold: int
    """Those whose state is on disk."""
    line: bytes
    """The line as it was asked for, packed."""
    node: KeptNode | None
    """The node that the match ends with, locked."""
    unlock: Callable[[KeptNode], None]
    recompute_s: float | None = None
    """Measured time of computing those tokens, as their states tell it; None where one does not."""

    def release(self) -> None:
        """Let what was matched be evicted again; a second time does nothing."""
        node, self.node = self.node, None
        if node is not None:
            self.unlock(node)

    def __enter__(self) -> "Match":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class _Piece:
    """A state to be read: tokens `start` to `end` of a line."""

    node: KeptNode
    start: int
    end: int
    n_known: int
    """Leading tokens of the line asked for that are its own, or its parents'."""
    payload: Payload | None
    file: StoredState | None


class PrefixCache:
    """States that were computed, found again by their tokens, in main memory and on disk.

    Every state that is put is written to disk in the background, so that giving up its copy in
    main memory loses nothing. A state is only ever given for the very tokens that it was put for.
    All methods may be called from any thread; none holds the lock while it reads, writes or cuts
    a state.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        can_slice: bool,
        split_state: Split,
        store: SnapshotStore | None,
        settings: CacheSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        available: Callable[[], int] = available_bytes,
        in_background: bool = True,
    ) -> None:
        """Take up what the store lists, and begin to work in the background.

        Args:
            namespace: everything that changes a state's numbers.
            can_slice: `Backend.can_slice`.
            split_state: `Backend.split_state`; called from several threads.
            store: the states on disk, None without a disk.
            settings: budgets and thresholds.
            now: seconds since the epoch.
            monotonic: seconds that never step back.
            available: bytes of main memory that are available.
            in_background: False starts no thread; `work` is then the caller's to call.
        """
        self._catalog = catalog = Catalog(namespace.key, can_slice=can_slice)
        self._ledger = CacheStats(now)
        self._lock = threading.Lock()
        self._settings = settings
        cache = CacheState(catalog, self._ledger, self._lock, settings, split_state, now, monotonic)
        self._cache = cache
        disk = store if settings.cold_bytes > 0 else None
        self._disk = None if disk is None else DiskTier(cache, disk, namespace)
        self._warm = WarmTier(cache, available, self._can_write)
        self._wishes: deque[bytes] = deque(maxlen=MAX_PREFETCHES)
        self._look_at = monotonic()
        self._reported: tuple[object, ...] = ()
        self._awake = threading.Event()
        self._stopping = threading.Event()
        self._thread = self._started() if in_background else None

    def match(self, tokens: Sequence[int], *, owner: str = "") -> Match:
        """Find the longest start of a line that can be restored, and protect it until released.

        Stretches that lie wholly within it are noted to be the owner's too.
        """
        catalog, line = self._catalog, pack(tokens)
        with self._lock:
            nodes, n_tokens = catalog.usable(line)
            if nodes:
                catalog.tree.lock(nodes[-1])
                self._mark([node for node in nodes if node.end <= n_tokens], owner)
            n_warm = sum(
                min(node.end, n_tokens) - catalog.start(node)
                for node in nodes
                if value(node).payload is not None
            )
            recompute_s = self._recompute_s(nodes, n_tokens)
        last = nodes[-1] if nodes else None
        return Match(n_tokens, n_warm, n_tokens - n_warm, line, last, self._unlock, recompute_s)

    def read(self, match: Match) -> list[Payload]:
        """The states of a match in order; those from disk are in main memory then.

        Afterwards the match says how many tokens they are, and from where they came. That is less
        than before where a file was damaged or has gone: the rest has to be computed. None of the
        states may be changed.
        """
        line = match.line[: match.n_tokens * TOKEN_BYTES]
        states: list[Payload] = []
        n_done = n_cold = 0
        while n_done < match.n_tokens and (piece := self._piece(line, n_done)):
            try:
                state = self._load(piece, is_guess=False)
            except StateError:
                continue
            except CacheStoreError as error:
                self.note(str(error), is_problem=True)
                break
            end = min(piece.end, piece.n_known)
            # It begins earlier where another thread dropped what was read before, and put it anew.
            held = piece.start, piece.end
            states.append(part_of(state, held, (n_done, end), self._cache.split_state))
            n_cold += end - n_done if piece.payload is None else 0
            n_done = end
            if not self._catalog.can_slice:
                break
        if match.recompute_s is not None and match.n_tokens:
            match.recompute_s *= n_done / match.n_tokens
        match.n_tokens, match.n_warm, match.n_cold = n_done, n_done - n_cold, n_cold
        self._awake.set()
        return states

    def refuse(self, match: Match, reason: str) -> None:
        """Drop the last state of a match, since the backend did not take what was read."""
        catalog, ledger = self._catalog, self._ledger
        with self._lock:
            nodes, _ = catalog.usable(match.line[: match.n_tokens * TOKEN_BYTES])
            if nodes:
                ledger.count(n_refused=1)
                ledger.note(reason, is_problem=True)
                catalog.remove(nodes[-1])
        self._awake.set()

    def prefetch(self, tokens: Sequence[int]) -> None:
        """Bring what is kept of a line's start from disk into main memory, in the background."""
        with self._lock:
            self._wishes.append(pack(tokens))
        self._awake.set()

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many leading tokens some line had before, whether a state is left or not."""
        with self._lock:
            return self._catalog.tree.match(pack(tokens)).n_tokens

    def keys_on(self, tokens: Sequence[int]) -> list[str]:
        """The keys of the states that lie wholly on a line."""
        with self._lock:
            found = self._catalog.tree.match(pack(tokens))
            ends_within = (node for node in found.nodes if node.end <= found.n_tokens)
            return [node.value.state.key for node in ends_within if node.value is not None]

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
        line, catalog = pack(tokens), self._catalog
        self._warm.look_at_memory()
        while True:
            with self._lock:
                nodes, n_kept = catalog.usable(line)
                _check_start(start, n_kept, can_slice=catalog.can_slice)
                if not self._wants(len(tokens) - n_kept):
                    self._mark([node for node in nodes if node.end <= n_kept], owner)
                    return False
                cut = self._uncut(nodes, n_kept)
                whole = None if cut is None else value(cut).payload
                n_upper = 0 if cut is None else n_kept - cut.start
            halves = None if whole is None else self._cache.split_state(whole, n_upper)
            tail, share = self._tail(state, n_kept - start, len(tokens) - start)
            with self._lock:
                if self._has_changed(line, nodes, n_kept, cut, whole):
                    continue
                if cut is not None:
                    catalog.split(cut, n_kept, halves)
                is_kept = self._place(line, tail, recompute_s * share, owner)
            self._awake.set()
            return is_kept

    def note_hit(
        self, *, n_hot: int, n_warm: int, n_cold: int, n_computed: int, saved_s: float | None
    ) -> None:
        """Count a prompt by where its tokens came from, and what restoring saved, if that is known.

        A hit took something from a tier. A miss took nothing, and computed more than the context
        held by itself. The rest is neither.
        """
        is_hit = n_warm + n_cold > 0
        with self._lock:
            self._ledger.count(
                n_hits=int(is_hit),
                n_misses=int(not is_hit and n_computed > n_hot),
                n_hot_tokens=n_hot,
                n_warm_tokens=n_warm,
                n_cold_tokens=n_cold,
                n_computed_tokens=n_computed,
            )
            if saved_s is not None:
                self._ledger.save(saved_s)

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a line to the log."""
        self._cache.note(text, is_problem=is_problem)

    def pin(self, key: str) -> None:
        """Protect a state, and what it needs, from eviction by budget.

        Raises:
            StateError: no state has this key.
            CacheBudgetError: the pinned states would not fit into the budget.
            CacheStoreError: the pin could not be written down; there is none then.
        """
        with self._lock:
            node = self._node(key)
            kept = value(node)
            if kept.state.is_pinned:
                return
            kept.change(is_pinned=True)
            try:
                self._check_pins()
            except CacheBudgetError:
                kept.change(is_pinned=False)
                raise
            self._catalog.want_disk(node)
        self._awake.set()
        try:
            self._save_pin(node)
        except CacheStoreError:
            with self._lock:
                kept.change(is_pinned=False)
            raise

    def unpin(self, key: str) -> None:
        """Let a state be evicted again.

        Raises:
            StateError: no state has this key.
            CacheStoreError: it could not be written down; the pin is back at the next start.
        """
        with self._lock:
            node = self._node(key)
            value(node).change(is_pinned=False)
        self._save_pin(node)

    def drop(self, key: str) -> None:
        """Drop a state from every tier, pinned or not, with the states that need it.

        Raises:
            StateError: no state has this key.
        """
        with self._lock:
            self._catalog.remove(self._node(key))
        self._delete_unreferenced()

    def verify(self, key: str) -> None:
        """Read a state from disk and check it; one that lies in main memory only is intact.

        Raises:
            StateError: no state has this key, or its file is damaged and was dropped.
            CacheStoreError: the file cannot be read.
        """
        with self._lock:
            file = value(self._node(key)).file
        if file is not None and self._disk is not None:
            self._disk.read(file, file.start, file.end)
        self.note(f"State {key} is intact.")

    def forget(self, owner: str) -> None:
        """Drop what only this owner's prompts used, pinned or not; what others share stays."""
        with self._lock:
            for node in reversed(list(self._catalog.nodes())):
                owners = value(node).state.owners
                if owner not in owners:
                    continue
                if owners != {owner} or (self._catalog.can_slice and node.children):
                    value(node).change(owners=owners - {owner})
                    self._catalog.used[node] = None
                else:
                    self._catalog.remove(node)
        self._delete_unreferenced()

    def clear(self) -> None:
        """Drop every state of this namespace, pinned ones too.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        with self._lock:
            for node in reversed(list(self._catalog.nodes())):
                self._catalog.remove(node)
        if self._disk is not None:
            self._disk.release_all()
        self._delete_unreferenced()

    def has_news(self) -> bool:
        """Whether something changed in the tiers since this was asked last; costs little."""
        with self._lock:
            catalog, ledger = self._catalog, self._ledger
            now = (catalog.warm_bytes, len(catalog.unwritten), ledger.counts, ledger.n_notes)
            was, self._reported = self._reported, now
            return was != now

    def report(self) -> CacheReport:
        """How full the tiers are, what they hold, and what happened since the last report."""
        with self._lock:
            return report(self._catalog, self._ledger, self._settings)

    def work(self) -> float:
        """One piece of background work; the seconds until the next is due."""
        if self._cache.monotonic() >= self._look_at:
            self._look()
        if self._prefetch_one():
            return 0.0
        if self._disk is not None and self._disk.write_one():
            with self._lock:
                self._warm.shrink()
            return 0.0
        if self._disk is not None:
            self._disk.delete_unreferenced()
        return max(self._look_at - self._cache.monotonic(), 0.0)

    def close(self, timeout_s: float) -> None:
        """Write what is not on disk yet, and work no longer; gives up after `timeout_s`."""
        until = self._cache.monotonic() + timeout_s
        self._stopping.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        is_stopped = self._thread is None or not self._thread.is_alive()
        if is_stopped and self._disk is not None:
            self._disk.retry()
            while self._cache.monotonic() < until and self._disk.write_one():
                pass
            self._disk.delete_unreferenced()
            self._disk.save_uses()

    def _started(self) -> threading.Thread:
        return start_thread(
            self._work_on,
            name="kvchat cache",
            on_fault=self._report_fault,
            pauses_s=PAUSES_S,
            stopping=self._stopping,
        )

    def _work_on(self) -> None:
        while not self._stopping.is_set():
            self._awake.clear()
            self._awake.wait(self.work())

    def _report_fault(self, fault: ThreadFault) -> None:
        what = (
            "saving continues with the next state"
            if fault.will_restart
            else "nothing more is written to disk until the model is reloaded"
        )
        self.note(f"An error occurred in the cache: {fault}; {what}.", is_problem=True)

    def _look(self) -> None:
        """What is due now and then: budgets, the files of others, the times of use."""
        self._look_at = self._cache.monotonic() + LOOK_S
        self._warm.look_at_memory()
        if self._disk is not None:
            self._disk.trim()
            self._disk.save_uses()

    def _can_write(self) -> bool:
        return self._disk is not None and self._disk.can_write()

    def _node(self, key: str) -> KeptNode:
        node = self._catalog.find(key)
        if node is None:
            raise StateError(
                f"No state of the loaded model has the key {key}: it may have been evicted."
            )
        return node

    def _check_pins(self) -> None:
        """Refuse pins that, with the states that they need, leave no room for others."""
        catalog, settings = self._catalog, self._settings
        held: set[KeptNode] = set()
        for node in catalog.nodes():
            if value(node).state.is_pinned:
                held.update(catalog.tree.way(node) if catalog.can_slice else [node])
        nbytes = sum(value(node).state.nbytes for node in held)
        budget = settings.warm_bytes if self._disk is None else settings.cold_bytes
        if nbytes > budget:
            raise CacheBudgetError(
                f"Pinned states would take {nbytes:,} bytes, more than the cache budget of "
                f"{budget:,}: unpin another state, or raise the budget."
            )

    def _save_pin(self, node: KeptNode) -> None:
        kept = node.value
        if self._disk is not None and kept is not None and kept.is_exact:
            self._disk.save_pin(kept.state)

    def _delete_unreferenced(self) -> None:
        if self._disk is not None:
            # A full disk refuses what is written, not what is deleted.
            self._disk.retry()
            self._disk.delete_unreferenced()

    def _mark(self, nodes: Sequence[KeptNode], owner: str) -> None:
        """Note that these are used now, and by whom; the lock is held."""
        for node in nodes:
            self._catalog.touch(node, self._cache.now(), owner=owner)

    def _piece(self, line: bytes, n_done: int) -> _Piece | None:
        """The state that goes on behind the first `n_done` tokens of a line."""
        catalog = self._catalog
        with self._lock:
            nodes, n_tokens = catalog.usable(line)
            node = next((node for node in nodes if node.end > n_done), None)
            if node is None or n_tokens <= n_done:
                return None
            kept = value(node)
            start = catalog.start(node)
            return _Piece(node, start, node.end, n_tokens, kept.payload, kept.file)

    def _load(self, piece: _Piece, *, is_guess: bool) -> Payload:
        if piece.payload is not None:
            self._use(piece, piece.payload, is_guess=is_guess)
            return piece.payload
        assert piece.file is not None
        assert self._disk is not None
        payload = self._disk.read(piece.file, piece.start, piece.end)
        self._use(piece, payload, is_guess=is_guess)
        return payload

    def _use(self, piece: _Piece, payload: Payload, *, is_guess: bool) -> None:
        """Note that a state was read, and keep it in main memory."""
        catalog, ledger, node = self._catalog, self._ledger, piece.node
        with self._lock:
            if node.value is None or (catalog.start(node), node.end) != (piece.start, piece.end):
                return
            kept = node.value
            if kept.payload is None and self._settings.warm_bytes > 0:
                catalog.keep(node, payload, self._cache.now())
                kept.is_prefetched = is_guess
                ledger.count(n_promotions=1, n_prefetches=int(is_guess))
            elif not is_guess and kept.is_prefetched:
                kept.is_prefetched = False
                ledger.count(n_prefetches_used=1)
            if not is_guess:
                catalog.touch(node, self._cache.now(), n_uses=1)
            self._warm.shrink()

    def _recompute_s(self, nodes: Sequence[KeptNode], n_tokens: int) -> float | None:
        total_s = 0.0
        for node in nodes:
            state = value(node).state
            if state.recompute_s <= 0.0:
                return None
            share = (min(state.end, n_tokens) - state.start) / (state.end - state.start)
            total_s += state.recompute_s * share
        return total_s if nodes else None

    def _prefetch_one(self) -> bool:
        """Prefetch one line, and give whether there was a wish for it."""
        catalog = self._catalog
        with self._lock:
            if not self._wishes:
                return False
            line = self._wishes.popleft()
            nodes, n_tokens = catalog.usable(line)
            if not nodes:
                return True
            catalog.tree.lock(nodes[-1])
        try:
            self._prefetch_line(line[: n_tokens * TOKEN_BYTES])
        finally:
            self._unlock(nodes[-1])
        return True

    def _prefetch_line(self, line: bytes) -> None:
        """Read the states of a line, from its start, as far as they fit in main memory."""
        n_done, room = 0, self._warm.room()
        while n_done * TOKEN_BYTES < len(line) and (piece := self._piece(line, n_done)):
            if piece.payload is None:
                room -= value(piece.node).state.nbytes
                if room < 0:
                    return
                try:
                    self._load(piece, is_guess=True)
                except StateError:
                    return
                except CacheStoreError as error:
                    self.note(str(error), is_problem=True)
                    return
            n_done = piece.end

    def _unlock(self, node: KeptNode) -> None:
        with self._lock:
            self._catalog.tree.unlock(node)
            self._warm.shrink()

    def _wants(self, n_new: int) -> bool:
        """Whether any tier takes states at all, and one of so many new tokens is worth it."""
        takes_any = self._settings.warm_bytes > 0 or self._disk is not None
        return takes_any and n_new >= max(self._settings.min_tokens, 1)

    def _uncut(self, nodes: Sequence[KeptNode], n_kept: int) -> KeptNode | None:
        """The node within whose stretch a line leaves the tree."""
        is_inside = self._catalog.can_slice and nodes and nodes[-1].end > n_kept
        return nodes[-1] if is_inside else None

    def _tail(self, state: Payload, n_known: int, n_tokens: int) -> tuple[Payload, float]:
        """The part of a state that is new, and its share of the tokens."""
        if not self._catalog.can_slice or n_known == 0:
            return state, 1.0
        return self._cache.split_state(state, n_known)[1], 1 - n_known / n_tokens

    def _has_changed(
        self,
        line: bytes,
        nodes: Sequence[KeptNode],
        n_kept: int,
        cut: KeptNode | None,
        whole: Payload | None,
    ) -> bool:
        """Whether another thread changed what was cut or measured without the lock."""
        if self._catalog.usable(line) != (list(nodes), n_kept):
            return True
        return cut is not None and value(cut).payload is not whole

    def _place(self, line: bytes, state: Payload, recompute_s: float, owner: str) -> bool:
        catalog, now = self._catalog, self._cache.now()
        node = catalog.place(line, state, recompute_s=recompute_s, now=now)
        self._mark([each for each in catalog.tree.way(node) if each.value is not None], owner)
        if not catalog.can_slice:
            self._thin_out(node)
        self._warm.shrink(newest=node)
        return node.value is not None

    def _thin_out(self, newest: KeptNode) -> None:
        """Drop older states of a line that no other line needs, since newer ones do more."""
        catalog, n_seen = self._catalog, 0
        for node in list(catalog.tree.way(newest)):
            if node.value is None:
                continue
            n_seen += 1
            if n_seen <= N_NEWEST or node.n_locks or node.value.state.is_pinned:
                continue
            if not catalog.is_branch(node):
                catalog.remove(node)


def _check_start(start: int, n_kept: int, *, can_slice: bool) -> None:
    if start > n_kept:
        raise StateError(
            f"The state begins at token {start} but only {n_kept} tokens are cached: "
            f"save from token {n_kept} on."
        )
    if start and not can_slice:
        raise StateError(
            f"The state begins at token {start}, but this model's states cannot be saved in "
            "parts: save from token 0 on."
        )
