"""Cached sequence states, looked up by the longest prefix of a prompt.

After SGLang's RadixAttention (Zheng et al. 2024, arXiv 2312.07104), for llama.cpp's states in RAM
and on disk.
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
    Payload,
    Split,
    StateNode,
    report,
    slice_state,
    value,
)
from engine.cache.disk_tier import DiskTier
from engine.cache.namespace import Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState, pack
from engine.cache.report import CacheReport, CacheSettings, CacheStats
from engine.cache.snapshot_store import SnapshotStore
from engine.cache.warm_tier import WarmTier
from engine.errors import CacheBudgetError, CacheStoreError, StateError

CHECK_S = 2.0
"""Interval of the background checks of memory, budgets and uses."""
MAX_PREFETCHES = 4
"""Prefetch requests that may wait; a new one replaces the oldest."""
N_NEWEST = 4
"""Newest whole states cached per sequence: the ends of two prompts and two replies, so that the
last two turns can be regenerated."""


def available_bytes() -> int:
    """RAM that programs can allocate without swapping, in bytes, as psutil estimates it."""
    return psutil.virtual_memory().available


@dataclass(slots=True, eq=False)
class Match:
    """The longest prefix that can be restored; its states are not evicted until `release`."""

    n_tokens: int
    """Length of the prefix; after `PrefixCache.read`, the tokens of the states it returned."""
    n_warm: int
    """Of `n_tokens`, those whose state is in RAM."""
    n_cold: int
    """Of `n_tokens`, those whose state is on disk."""
    line: bytes
    """All tokens that were looked up, packed."""
    node: StateNode | None
    """The last node of the match, locked."""
    unlock: Callable[[StateNode], None]
    recompute_s: float | None = None
    """Measured time of computing the `n_tokens`; None if a state has no measurement."""

    def release(self) -> None:
        """Allow eviction of the matched states; a second call does nothing."""
        node, self.node = self.node, None
        if node is not None:
            self.unlock(node)

    def __enter__(self) -> "Match":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class _Segment:
    """A state to read: tokens `start` to `end` of a sequence."""

    node: StateNode
    start: int
    end: int
    n_known: int
    """Leading tokens of the requested sequence that this state and its ancestors cover."""
    payload: Payload | None
    file: StoredState | None


class PrefixCache:
    """Sequence states in RAM and on disk, looked up by their tokens.

    Every state is written to disk in the background, so its copy in RAM can be dropped without
    loss. A state is only returned for exactly the tokens it was put with. All methods may be
    called from any thread; none holds the lock while it reads, writes or splits a state.
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
        """Load the store's index and start the background thread.

        Args:
            namespace: of the states; see `namespace_of`.
            can_slice: `Backend.can_slice`.
            split_state: `Backend.split_state`; called from several threads.
            store: the states on disk; None disables the cold tier.
            settings: budgets and thresholds.
            now: seconds since the epoch.
            monotonic: monotonic seconds.
            available: returns the available bytes of RAM.
            in_background: if False, no thread is started and the caller calls `work`.
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
        self._requests: deque[bytes] = deque(maxlen=MAX_PREFETCHES)
        self._check_at = monotonic()
        self._reported: tuple[object, ...] = ()
        self._awake = threading.Event()
        self._stopping = threading.Event()
        self._thread = self._started() if in_background else None

    def match(self, tokens: Sequence[int], *, owner: str = "") -> Match:
        """Find the longest prefix that can be restored, and lock it until it is released.

        `owner` is added to the owners of the states wholly within it.
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
        """The states of a match in order; those from disk are also put in RAM.

        Updates the match's token counts to the states returned: fewer than before if a file was
        damaged or gone. The states must not be modified.
        """
        line = match.line[: match.n_tokens * TOKEN_BYTES]
        states: list[Payload] = []
        n_done = n_cold = 0
        while n_done < match.n_tokens and (segment := self._next_segment(line, n_done)):
            try:
                state = self._load(segment, is_guess=False)
            except StateError:
                continue
            except CacheStoreError as error:
                self.note(str(error), is_problem=True)
                break
            end = min(segment.end, segment.n_known)
            # The segment starts before n_done if another thread dropped and re-put earlier states.
            held = segment.start, segment.end
            states.append(slice_state(state, held, (n_done, end), self._cache.split_state))
            n_cold += end - n_done if segment.payload is None else 0
            n_done = end
            if not self._catalog.can_slice:
                break
        if match.recompute_s is not None and match.n_tokens:
            match.recompute_s *= n_done / match.n_tokens
        match.n_tokens, match.n_warm, match.n_cold = n_done, n_done - n_cold, n_cold
        self._awake.set()
        return states

    def refuse(self, match: Match, reason: str) -> None:
        """Drop the last state of a match because the backend could not load it."""
        catalog, ledger = self._catalog, self._ledger
        with self._lock:
            nodes, _ = catalog.usable(match.line[: match.n_tokens * TOKEN_BYTES])
            if nodes:
                ledger.count(n_refused=1)
                ledger.note(reason, is_problem=True)
                catalog.remove(nodes[-1])
        self._awake.set()

    def prefetch(self, tokens: Sequence[int]) -> None:
        """Load the cached prefix of `tokens` from disk into RAM, in the background."""
        with self._lock:
            self._requests.append(pack(tokens))
        self._awake.set()

    def n_known(self, tokens: Sequence[int]) -> int:
        """Number of leading tokens that are in the tree, with or without a state."""
        with self._lock:
            return self._catalog.tree.match(pack(tokens)).n_tokens

    def keys_on(self, tokens: Sequence[int]) -> list[str]:
        """Keys of the states of prefixes of `tokens`."""
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
        """Cache the state of `tokens[start:]`; return whether it was cached.

        False if fewer than `CacheSettings.min_tokens` tokens are new, or no tier has space.

        Args:
            tokens: the whole sequence, committed tokens only.
            start: index of the state's first token; 0 if states cannot be sliced. At most the
                length of a match, which must not be released before this call.
            state: result of `Sequence.save(start)`; not copied.
            recompute_s: measured time of computing `tokens[start:]`.
            owner: the conversation of the tokens; empty for none.

        Raises:
            StateError: the tokens before `start` are not cached, or the state cannot be split.
        """
        line, catalog = pack(tokens), self._catalog
        self._warm.check_memory()
        while True:
            with self._lock:
                nodes, n_cached = catalog.usable(line)
                _check_start(start, n_cached, can_slice=catalog.can_slice)
                if not self._wants(len(tokens) - n_cached):
                    self._mark([node for node in nodes if node.end <= n_cached], owner)
                    return False
                cut = self._node_to_split(nodes, n_cached)
                whole = None if cut is None else value(cut).payload
                n_upper = 0 if cut is None else n_cached - cut.start
            halves = None if whole is None else self._cache.split_state(whole, n_upper)
            tail, share = self._tail(state, n_cached - start, len(tokens) - start)
            with self._lock:
                if self._has_changed(line, nodes, n_cached, cut, whole):
                    continue
                if cut is not None:
                    catalog.split(cut, n_cached, halves)
                is_cached = self._place(line, tail, recompute_s * share, owner)
            self._awake.set()
            return is_cached

    def note_hit(
        self, *, n_hot: int, n_warm: int, n_cold: int, n_computed: int, saved_s: float | None
    ) -> None:
        """Count a prompt's tokens by tier, and the time that restoring saved, if known.

        A hit restored tokens from RAM or disk. A miss restored none and computed more tokens than
        the context held. Other prompts are neither.
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
        """Add a log message."""
        self._cache.note(text, is_problem=is_problem)

    def pin(self, key: str) -> None:
        """Protect a state and the states it needs from eviction.

        Raises:
            StateError: no state has this key.
            CacheBudgetError: the pinned states would exceed the budget.
            CacheStoreError: the pin could not be saved; the state is not pinned.
        """
        with self._lock:
            node = self._node(key)
            cached = value(node)
            if cached.state.is_pinned:
                return
            cached.change(is_pinned=True)
            try:
                self._check_pins()
            except CacheBudgetError:
                cached.change(is_pinned=False)
                raise
            self._catalog.queue_write(node)
        self._awake.set()
        try:
            self._save_pin(node)
        except CacheStoreError:
            with self._lock:
                cached.change(is_pinned=False)
            raise

    def unpin(self, key: str) -> None:
        """Allow a state to be evicted again.

        Raises:
            StateError: no state has this key.
            CacheStoreError: it could not be saved; the next start restores the pin.
        """
        with self._lock:
            node = self._node(key)
            value(node).change(is_pinned=False)
        self._save_pin(node)

    def drop(self, key: str) -> None:
        """Drop a state, pinned or not, and the states that need it from every tier.

        Raises:
            StateError: no state has this key.
        """
        with self._lock:
            self._catalog.remove(self._node(key))
        self._delete_unreferenced()

    def verify(self, key: str) -> None:
        """Read a state from disk and check its digest; a state only in RAM is intact.

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
        """Drop the states, pinned or not, that no other owner's prompts used."""
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
        """Drop every state of this namespace, including pinned ones.

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
        """Whether the tiers changed since the last call; cheap."""
        with self._lock:
            catalog, ledger = self._catalog, self._ledger
            now = (catalog.warm_bytes, len(catalog.unwritten), ledger.counts, ledger.n_notes)
            was, self._reported = self._reported, now
            return was != now

    def report(self) -> CacheReport:
        """Use of the tiers, their entries, counts, and the log messages since the last report."""
        with self._lock:
            return report(self._catalog, self._ledger, self._settings)

    def work(self) -> float:
        """Do one step of background work; return the seconds until the next."""
        if self._cache.monotonic() >= self._check_at:
            self._check()
        if self._prefetch_one():
            return 0.0
        if self._disk is not None and self._disk.write_one():
            with self._lock:
                self._warm.shrink()
            return 0.0
        if self._disk is not None:
            self._disk.delete_unreferenced()
        return max(self._check_at - self._cache.monotonic(), 0.0)

    def close(self, timeout_s: float) -> None:
        """Stop the thread and write the unwritten states, for at most `timeout_s`."""
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
            self._run,
            name="kvchat cache",
            on_fault=self._report_fault,
            pauses_s=PAUSES_S,
            stopping=self._stopping,
        )

    def _run(self) -> None:
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

    def _check(self) -> None:
        """Check RAM, trim the disk to its budget and save the uses."""
        self._check_at = self._cache.monotonic() + CHECK_S
        self._warm.check_memory()
        if self._disk is not None:
            self._disk.trim()
            self._disk.save_uses()

    def _can_write(self) -> bool:
        return self._disk is not None and self._disk.can_write()

    def _node(self, key: str) -> StateNode:
        node = self._catalog.find(key)
        if node is None:
            raise StateError(
                f"No state of the loaded model has the key {key}: it may have been evicted."
            )
        return node

    def _check_pins(self) -> None:
        """Raise CacheBudgetError if the pinned states and those they need exceed the budget."""
        catalog, settings = self._catalog, self._settings
        held: set[StateNode] = set()
        for node in catalog.nodes():
            if value(node).state.is_pinned:
                held.update(catalog.tree.path(node) if catalog.can_slice else [node])
        nbytes = sum(value(node).state.nbytes for node in held)
        budget = settings.warm_bytes if self._disk is None else settings.cold_bytes
        if nbytes > budget:
            raise CacheBudgetError(
                f"Pinned states would take {nbytes:,} bytes, more than the cache budget of "
                f"{budget:,}: unpin another state, or raise the budget."
            )

    def _save_pin(self, node: StateNode) -> None:
        cached = node.value
        if self._disk is not None and cached is not None and cached.is_exact:
            self._disk.save_pin(cached.state)

    def _delete_unreferenced(self) -> None:
        if self._disk is not None:
            # A full disk refuses writes, not deletions.
            self._disk.retry()
            self._disk.delete_unreferenced()

    def _mark(self, nodes: Sequence[StateNode], owner: str) -> None:
        """Record a use of the nodes by `owner`; the lock is held."""
        for node in nodes:
            self._catalog.touch(node, self._cache.now(), owner=owner)

    def _next_segment(self, line: bytes, n_done: int) -> _Segment | None:
        """The state that continues the first `n_done` tokens of a sequence."""
        catalog = self._catalog
        with self._lock:
            nodes, n_tokens = catalog.usable(line)
            node = next((node for node in nodes if node.end > n_done), None)
            if node is None or n_tokens <= n_done:
                return None
            cached = value(node)
            start = catalog.start(node)
            return _Segment(node, start, node.end, n_tokens, cached.payload, cached.file)

    def _load(self, segment: _Segment, *, is_guess: bool) -> Payload:
        if segment.payload is not None:
            self._use(segment, segment.payload, is_guess=is_guess)
            return segment.payload
        assert segment.file is not None
        assert self._disk is not None
        payload = self._disk.read(segment.file, segment.start, segment.end)
        self._use(segment, payload, is_guess=is_guess)
        return payload

    def _use(self, segment: _Segment, payload: Payload, *, is_guess: bool) -> None:
        """Record a read of a state and put it in RAM."""
        catalog, ledger, node = self._catalog, self._ledger, segment.node
        with self._lock:
            if node.value is None or (catalog.start(node), node.end) != (
                segment.start,
                segment.end,
            ):
                return
            cached = node.value
            if cached.payload is None and self._settings.warm_bytes > 0:
                catalog.add_copy(node, payload, self._cache.now())
                cached.is_prefetched = is_guess
                ledger.count(n_promotions=1, n_prefetches=int(is_guess))
            elif not is_guess and cached.is_prefetched:
                cached.is_prefetched = False
                ledger.count(n_prefetches_used=1)
            if not is_guess:
                catalog.touch(node, self._cache.now(), n_uses=1)
            self._warm.shrink()

    def _recompute_s(self, nodes: Sequence[StateNode], n_tokens: int) -> float | None:
        total_s = 0.0
        for node in nodes:
            state = value(node).state
            if state.recompute_s <= 0.0:
                return None
            share = (min(state.end, n_tokens) - state.start) / (state.end - state.start)
            total_s += state.recompute_s * share
        return total_s if nodes else None

    def _prefetch_one(self) -> bool:
        """Serve one prefetch request; return whether there was one."""
        catalog = self._catalog
        with self._lock:
            if not self._requests:
                return False
            line = self._requests.popleft()
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
        """Read the states of a sequence from its start while they fit in RAM."""
        n_done, free_bytes = 0, self._warm.free_bytes()
        while n_done * TOKEN_BYTES < len(line) and (segment := self._next_segment(line, n_done)):
            if segment.payload is None:
                free_bytes -= value(segment.node).state.nbytes
                if free_bytes < 0:
                    return
                try:
                    self._load(segment, is_guess=True)
                except StateError:
                    return
                except CacheStoreError as error:
                    self.note(str(error), is_problem=True)
                    return
            n_done = segment.end

    def _unlock(self, node: StateNode) -> None:
        with self._lock:
            self._catalog.tree.unlock(node)
            self._warm.shrink()

    def _wants(self, n_new: int) -> bool:
        """Whether a tier is enabled and `n_new` reaches `min_tokens`."""
        takes_any = self._settings.warm_bytes > 0 or self._disk is not None
        return takes_any and n_new >= max(self._settings.min_tokens, 1)

    def _node_to_split(self, nodes: Sequence[StateNode], n_cached: int) -> StateNode | None:
        """The node within whose edge a sequence diverges from the tree."""
        is_inside = self._catalog.can_slice and nodes and nodes[-1].end > n_cached
        return nodes[-1] if is_inside else None

    def _tail(self, state: Payload, n_known: int, n_tokens: int) -> tuple[Payload, float]:
        """The state of the new tokens, and their share of the tokens."""
        if not self._catalog.can_slice or n_known == 0:
            return state, 1.0
        return self._cache.split_state(state, n_known)[1], 1 - n_known / n_tokens

    def _has_changed(
        self,
        line: bytes,
        nodes: Sequence[StateNode],
        n_cached: int,
        cut: StateNode | None,
        whole: Payload | None,
    ) -> bool:
        """Whether another thread changed the nodes while the lock was released."""
        if self._catalog.usable(line) != (list(nodes), n_cached):
            return True
        return cut is not None and value(cut).payload is not whole

    def _place(self, line: bytes, state: Payload, recompute_s: float, owner: str) -> bool:
        catalog, now = self._catalog, self._cache.now()
        node = catalog.place(line, state, recompute_s=recompute_s, now=now)
        self._mark([each for each in catalog.tree.path(node) if each.value is not None], owner)
        if not catalog.can_slice:
            self._drop_older(node)
        self._warm.shrink(newest=node)
        return node.value is not None

    def _drop_older(self, newest: StateNode) -> None:
        """Drop the older states of a sequence, unless they are branches, locked or pinned."""
        catalog, n_seen = self._catalog, 0
        for node in list(catalog.tree.path(newest)):
            if node.value is None:
                continue
            n_seen += 1
            if n_seen <= N_NEWEST or node.n_locks or node.value.state.is_pinned:
                continue
            if not catalog.is_branch(node):
                catalog.remove(node)


def _check_start(start: int, n_cached: int, *, can_slice: bool) -> None:
    if start > n_cached:
        raise StateError(
            f"The state begins at token {start} but only {n_cached} tokens are cached: "
            f"save from token {n_cached} on."
        )
    if start and not can_slice:
        raise StateError(
            f"The state begins at token {start}, but this model's states cannot be saved in "
            "parts: save from token 0 on."
        )
