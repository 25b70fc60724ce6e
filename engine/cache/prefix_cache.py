"""Saved states in RAM and on disk, found by the longest prefix that a prompt shares with them.

After SGLang's RadixAttention (Zheng et al. 2024, arXiv 2312.07104), but with segments that are
never split: a prompt that diverges within a segment restores it whole and crops.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import psutil

from engine.background import PAUSES_S, ThreadFault, start_thread
from engine.cache.eviction import eviction_order
from engine.cache.index import Match, SegmentIndex
from engine.cache.namespace import Namespace
from engine.cache.report import CacheEntry, CacheReport, CacheSettings, CacheStats, TierUse
from engine.cache.segments import (
    TOKEN_BYTES,
    CachedSegment,
    Payload,
    Segment,
    new_segment,
    pack,
    unpack,
)
from engine.cache.store import SegmentStore
from engine.errors import CacheBudgetError, CacheStoreError, StateError
from engine.memory.units import MIB

CHECK_S = 2.0
"""Interval of the background checks of memory, budgets and uses."""
RETRY_S = 60.0
"""Pause in writing after the disk refused an operation."""
PENDING_BYTES = 256 * MIB
"""Bytes of unwritten states that may exceed the RAM budget."""
MAX_ENTRIES = 200
"""Most recently used entries per report, which is piped several times a second."""


class PrefixCache:
    """Segments in RAM and on disk; each is written to disk in the background.

    A state is only returned for exactly the tokens it was put with. All methods may be called
    from any thread; none holds the lock while it reads or writes a state.

    Commands on a key raise `StateError` if no segment has it, and `CacheStoreError` if the disk
    refuses them.

    Args:
        namespace: Of the states; see `namespace_of`.
        can_slice: `Backend.can_slice`; otherwise every segment begins at 0.
        store: The segments on disk; None disables the cold tier.
        settings: Budgets and thresholds.
        now: Seconds since the epoch.
        monotonic: Monotonic seconds.
        available: Returns the available bytes of RAM.
        in_background: If False, no thread is started and the caller calls `work`.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        can_slice: bool,
        store: SegmentStore | None,
        settings: CacheSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        available: Callable[[], int] = lambda: psutil.virtual_memory().available,
        in_background: bool = True,
    ) -> None:
        self._namespace, self.can_slice, self._settings = namespace, can_slice, settings
        self._store = store if settings.cold_bytes > 0 else None
        self._now, self._monotonic, self._available = now, monotonic, available
        self._lock = threading.RLock()
        """Guards index, counts and the sets of keys."""
        self._index = SegmentIndex(can_slice=can_slice)
        self.stats = CacheStats(now)
        self._ram_limit = settings.warm_bytes
        self._used: set[str] = set()
        """Keys of segments whose use is not saved yet."""
        self._garbage: set[str] = set()
        """Keys of files to be deleted."""
        self._to_prefetch: Sequence[int] = ()
        self._paused_until, self._is_in_trouble = -math.inf, False
        self._check_at = monotonic()
        self._reported: tuple[object, ...] = ()
        self._awake, self._stopping = threading.Event(), threading.Event()
        self._load_index()
        self._thread = None
        if in_background:
            self._thread = start_thread(
                self._run,
                name="kvchat cache",
                on_fault=self._report_fault,
                pauses_s=PAUSES_S,
                stopping=self._stopping,
            )

    def match(self, tokens: Sequence[int], *, owner: str = "", max_end: float = math.inf) -> Match:
        """Find the longest prefix that can be restored, and lock it until it is released.

        Args:
            tokens: The prompt.
            owner: Added to the owners of the segments wholly within the prefix.
            max_end: Tokens that fit in a sequence; a longer segment is not restored.
        """
        sequence = pack(tokens)
        with self._lock:
            match = Match(sequence, *self._index.longest(sequence, max_end), self._unlock)
            for entry in match.entries:
                entry.n_locks += 1
                is_whole = entry.segment.end <= match.n_tokens
                self._touch(entry, owner if is_whole else "")
                if entry.payload is None:
                    match.n_cold += min(entry.segment.end, match.n_tokens) - entry.segment.start
            return match

    def read(self, match: Match) -> list[Payload]:
        """The states of a match in order; those from disk are also put in RAM.

        Updates the match to the states returned: fewer than before if a file was damaged or gone.
        The states must not be modified.
        """
        states: list[Payload] = []
        n_cold = 0
        for entry in list(match.entries):
            is_cold = entry.payload is None
            try:
                states.append(self._read(entry))
            except (StateError, CacheStoreError) as error:
                match.shorten(len(states))
                if not states and isinstance(error, StateError):
                    other = self.match(unpack(match.sequence))  # the longest prefix that is left
                    match.entries, match.n_tokens = other.entries, other.n_tokens
                    return self.read(match)
                break
            if is_cold:
                n_cold += min(entry.segment.end, match.n_tokens) - entry.segment.start
            with self._lock:
                entry.change(n_uses=entry.segment.n_uses + 1)
        match.n_cold = n_cold
        self._awake.set()
        return states

    def refuse(self, match: Match, reason: str) -> None:
        """Drop the last segment of a match because the backend could not load it."""
        with self._lock:
            self.stats.count(n_refused=1)
            self.stats.note(reason, is_problem=True)
            self._remove(match.entries[-1])
        self._awake.set()

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

        Args:
            tokens: The whole sequence, committed tokens only.
            start: Index of the state's first token: 0, or `Match.n_whole` of a locked match.
            state: Result of `Sequence.save(start)`; not copied.
            recompute_s: Measured time of computing `tokens[start:]`.
            owner: The conversation of the tokens; empty for none.

        Raises:
            StateError: no cached segment ends at `start`.
        """
        self._check_memory()
        sequence = pack(tokens)
        with self._lock:
            parent = self._index.ending_at(sequence, start)
            segment = new_segment(
                self._namespace.key,
                sequence[start * TOKEN_BYTES :],
                parent=None if parent is None else parent.segment,
                nbytes=memoryview(state).nbytes,
                recompute_s=recompute_s,
            )
            if segment.key in self._index.entries:
                return False
            entry = CachedSegment(segment)
            self._garbage.discard(segment.key)
            self._index.add(entry)
            self._index.add_payload(entry, state)
            self._touch(entry, owner)
            for older in self._index.older_states(segment):
                self._remove(older)
            entry.n_locks = 1  # the newest segment is evicted last
            self._shrink()
            self._unlock([entry])
            is_cached = self._is_cached(entry)
        self._awake.set()
        return is_cached

    def prefetch(self, tokens: Sequence[int]) -> None:
        """Load the cached prefix of `tokens` from disk into RAM, in the background.

        Replaces a request that waits, whose chat is no longer on screen.
        """
        self._to_prefetch = tokens
        self._awake.set()

    def keys_on(self, tokens: Sequence[int]) -> list[str]:
        """Keys of the segments wholly within `tokens`, parents first."""
        with self._lock:
            shared = self._index.shared(pack(tokens))
            return [each.segment.key for each, end in shared if end == each.segment.end]

    def pin(self, key: str) -> None:
        """Protect a segment and those before it from eviction.

        Raises:
            CacheBudgetError: the pinned segments would exceed the budget.
        """
        with self._lock:
            entry = self._entry(key)
            self._check_pins(entry)
            for each in self._index.chain(entry):
                each.should_write = True
        self._set_pin(entry, is_pinned=True)

    def unpin(self, key: str) -> None:
        """Allow a segment to be evicted again."""
        self._set_pin(self._entry(key), is_pinned=False)

    def drop(self, key: str) -> None:
        """Drop a segment, pinned or not, and those that continue it."""
        with self._lock:
            self._remove(self._entry(key))
        self._delete_garbage(is_urgent=True)

    def verify(self, key: str) -> None:
        """Read a segment from disk and check its digest; one only in RAM is intact.

        Raises:
            StateError: its file is damaged and was deleted.
        """
        entry = self._entry(key)
        if entry.is_on_disk and self._store is not None:
            self._read_file(entry, self._store)

    def forget(self, owner: str) -> None:
        """Drop the segments, pinned or not, that no other owner's prompts used."""
        with self._lock:
            entries = sorted(self._index.entries.values(), key=lambda each: -each.segment.end)
            for entry in entries:
                owners = entry.segment.owners
                if owners == {owner} and not self._index.has_children(entry):
                    self._remove(entry)
                elif owner in owners:
                    entry.change(owners=owners - {owner})
                    self._used.add(entry.segment.key)
        self._delete_garbage(is_urgent=True)

    def clear(self) -> None:
        """Drop every segment of this namespace, pinned ones and other processes' included."""
        with self._lock:
            self._index = SegmentIndex(can_slice=self.can_slice)
        if self._store is not None:
            segments = self._store.segments(self._namespace.key, has_tokens=False)
            with self._lock:
                self._garbage.update(each.key for each in segments)
        self._delete_garbage(is_urgent=True)

    def has_news(self) -> bool:
        """Whether the tiers changed since the last call; cheap."""
        index, was = self._index, self._reported
        self._reported = index.ram_bytes, len(index.entries), self.stats.counts, self.stats.n_notes
        return was != self._reported

    def report(self) -> CacheReport:
        """Use of the tiers, their entries, counts, and the log messages since the last report."""
        with self._lock:
            entries = list(self._index.entries.values())
            warm = [each.segment for each in entries if each.payload is not None]
            cold = [each.segment for each in entries if each.is_on_disk]
            return CacheReport(
                tiers=(
                    TierUse.of("warm", warm, self._settings.warm_bytes),
                    TierUse.of("cold", cold, self._settings.cold_bytes),
                ),
                counts=self.stats.counts,
                entries=tuple(map(CacheEntry.of, entries[: -MAX_ENTRIES - 1 : -1])),
                notes=self.stats.take_notes(),
            )

    def work(self) -> float:
        """Do one step of background work; return the seconds until the next."""
        if self._monotonic() >= self._check_at:
            self._check_at = self._monotonic() + CHECK_S
            self._check_memory()
            self._on_disk(lambda store: self._free_space(store, 0))
            self._save_uses()
        if self._to_prefetch:
            tokens, self._to_prefetch = self._to_prefetch, ()
            self._prefetch(tokens)
            return 0.0
        if self._write_one():
            return 0.0
        self._delete_garbage()
        return max(self._check_at - self._monotonic(), 0.0)

    def close(self, timeout_s: float) -> None:
        """Stop the thread and write the unwritten segments, for at most `timeout_s`."""
        until = self._monotonic() + timeout_s
        self._stopping.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return
        self._paused_until = -math.inf
        while self._monotonic() < until and self._write_one():
            pass
        self._delete_garbage()
        self._save_uses()

    # Reading

    def _read(self, entry: CachedSegment) -> Payload:
        """The state of a segment; one from disk is put in RAM."""
        payload = entry.payload
        if payload is not None:
            return payload
        if self._store is None:
            raise StateError(f"the saved state {entry.segment.key} was deleted")
        try:
            payload = self._read_file(entry, self._store)
        except CacheStoreError as error:
            self.stats.note(str(error), is_problem=True)
            raise
        with self._lock:
            if entry.payload is None and self._is_cached(entry) and self._settings.warm_bytes:
                self._index.add_payload(entry, payload)
                self.stats.count(n_promotions=1)
                self._shrink()
        return payload

    def _read_file(self, entry: CachedSegment, store: SegmentStore) -> bytes:
        try:
            return store.read(entry.segment)
        except StateError as error:
            with self._lock:
                self.stats.count(n_refused=1)
                self.stats.note(str(error), is_problem=True)
                self._lose_file(entry)
            raise

    def _prefetch(self, tokens: Sequence[int]) -> None:
        """Read the segments of a sequence from its start while they fit in RAM."""
        free = max(self._available() - self._settings.reserve_bytes, 0)
        n_free_bytes = min(self._settings.warm_bytes, free)
        with self.match(tokens) as match:
            for entry in match.entries:
                n_free_bytes -= entry.segment.nbytes
                if n_free_bytes < 0:
                    return
                if entry.payload is None:
                    with contextlib.suppress(StateError, CacheStoreError):
                        self._read(entry)
                        self.stats.count(n_prefetches=1)

    # Index; the lock is held, except by `_load_index` and `_unlock`

    def _load_index(self) -> None:
        """Add the segments on disk; an unreadable store is logged."""
        if self._store is None:
            return
        try:
            self._garbage = self._index.load(self._store.segments(self._namespace.key))
            self._store.add_namespace(self._namespace)
        except CacheStoreError as error:
            self.stats.note(str(error), is_problem=True)
        for note in self._store.take_notes():
            self.stats.note(note, is_problem=True)
        if self._garbage:
            self.stats.note(
                f"{len(self._garbage)} saved states were deleted from disk because the earlier "
                "states that they continue are missing."
            )

    def _entry(self, key: str) -> CachedSegment:
        entry = self._index.entries.get(key)
        if entry is None:
            raise StateError(
                f"No state of the loaded model has the key {key}: it may have been evicted."
            )
        return entry

    def _is_cached(self, entry: CachedSegment) -> bool:
        return self._index.entries.get(entry.segment.key) is entry

    def _touch(self, entry: CachedSegment, owner: str) -> None:
        owners = entry.segment.owners | {owner} if owner else entry.segment.owners
        self._index.touch(entry, used_at=self._now(), owners=owners)
        self._used.add(entry.segment.key)

    def _unlock(self, entries: Iterable[CachedSegment]) -> None:
        with self._lock:
            for entry in entries:
                entry.n_locks -= 1
            self._shrink()

    def _remove(self, entry: CachedSegment) -> int:
        """Remove a segment and its descendants from every tier; return how many."""
        if not self._is_cached(entry):
            return 0
        removed = self._index.remove(entry)
        self._garbage.update(each.segment.key for each in removed if each.is_on_disk)
        return len(removed)

    def _lose_file(self, entry: CachedSegment) -> int:
        """Record that a file is gone; return how many segments are lost with it."""
        entry.is_on_disk = False
        return self._remove(entry) if entry.payload is None else 0

    # RAM

    def _check_memory(self) -> None:
        """Set the RAM limit by the available memory, and shrink to it."""
        missing = self._settings.reserve_bytes - self._available()
        with self._lock:
            was_short = self._ram_limit < self._settings.warm_bytes
            self._ram_limit = self._settings.warm_bytes
            if missing > 0:
                self._ram_limit = min(self._ram_limit, max(self._index.ram_bytes - missing, 0))
                if not was_short and self._index.ram_bytes > self._ram_limit:
                    self.stats.note(
                        f"RAM is running low: {missing / MIB:,.0f} MiB of saved states are evicted."
                    )
            self._shrink()

    def _shrink(self) -> None:
        """Evict copies until RAM is within its limit; the lock is held.

        Up to `PENDING_BYTES` of unwritten segments may exceed the limit.
        """
        index = self._index
        if index.ram_bytes <= self._ram_limit:
            return
        waiting = (each for each in index.entries.values() if each.is_waiting)
        n_waiting_bytes = sum(each.segment.nbytes for each in waiting)
        pending = PENDING_BYTES if self._can_write() else 0
        can_wait = n_waiting_bytes <= pending

        def may_go(segment: Segment) -> bool:
            entry = index.entries[segment.key]
            is_last_copy = not entry.is_on_disk
            is_needed = segment.is_pinned or (can_wait and entry.is_waiting)
            return not (entry.n_locks or (is_last_copy and is_needed))

        order = eviction_order(
            [each.segment for each in index.entries.values() if each.payload is not None],
            may_go=may_go,
            now=self._now(),
        )
        for segment in order:
            if index.ram_bytes <= self._ram_limit + min(n_waiting_bytes, pending):
                return
            entry = index.entries[segment.key]
            if entry.is_on_disk:
                index.drop_payload(entry)
                self.stats.count(n_demotions=1)
            else:
                self.stats.count(n_evictions=self._remove(entry))

    # Disk

    def _can_write(self) -> bool:
        return self._store is not None and self._monotonic() >= self._paused_until

    def _on_disk(self, action: Callable[[SegmentStore], object]) -> bool:
        """Run an action on the store unless writing is paused; pause it after an error."""
        if self._store is None or not self._can_write():
            return False
        try:
            action(self._store)
        except CacheStoreError as error:
            self._paused_until = self._monotonic() + RETRY_S
            self._complain(f"{error} States are saved in RAM only.")
            return False
        return True

    def _complain(self, text: str) -> None:
        """Log a problem with the disk; of consecutive ones only the first."""
        if not self._is_in_trouble:
            self.stats.note(text, is_problem=True)
        self._is_in_trouble = True

    def _write_one(self) -> bool:
        """Write the next segment; return whether there was one."""
        with self._lock:
            entry = self._index.next_to_write() if self._can_write() else None
            if entry is None:
                return False
            entry.n_locks += 1
            segment, payload = entry.segment, entry.payload
        try:
            assert payload is not None
            self._on_disk(lambda store: self._write(store, entry, segment, payload))
        finally:
            self._unlock([entry])
        return True

    def _write(
        self, store: SegmentStore, entry: CachedSegment, segment: Segment, payload: Payload
    ) -> None:
        if not self._free_space(store, segment.nbytes):
            entry.should_write = False
            self._complain(
                f"A state of {segment.nbytes:,} bytes does not fit on disk: the budget is "
                f"{self._settings.cold_bytes:,} bytes, and the other states are pinned or in use."
            )
            return
        store.write(self._namespace, segment, payload)
        with self._lock:
            entry.is_on_disk = True
            if not self._is_cached(entry):
                self._garbage.add(segment.key)
            self.stats.count(n_written_bytes=segment.nbytes)
            if self._is_in_trouble:
                self.stats.note("States are saved on disk again.")
            self._is_in_trouble = False
            is_pinned = entry.segment.is_pinned
        if is_pinned != segment.is_pinned:
            store.pin(segment.key, is_pinned=is_pinned)

    def _free_space(self, store: SegmentStore, nbytes: int) -> bool:
        """Delete the segments of lowest worth of all namespaces; return whether `nbytes` fit."""
        if nbytes > self._settings.cold_bytes:
            return False
        excess = store.nbytes + nbytes - self._settings.cold_bytes
        if excess <= 0:
            return True
        self._save_uses()
        with self._lock:
            in_use = self._index.keys_in_use()
        gone = store.prune(excess, now=self._now(), in_use=in_use)
        with self._lock:
            for segment in gone:
                entry = self._index.entries.get(segment.key)
                if entry is not None:
                    entry.should_write = False
                    self.stats.count(n_evictions=self._lose_file(entry))
        return sum(segment.nbytes for segment in gone) >= excess

    def _save_uses(self) -> None:
        """Save when, how often and by which owners segments were used."""
        if not self._can_write():
            return
        with self._lock:
            used, self._used = self._used, set()
            found = (self._index.entries.get(key) for key in used)
            segments = [each.segment for each in found if each is not None and each.is_on_disk]
        self._on_disk(lambda store: store.save_uses(segments))

    def _delete_garbage(self, *, is_urgent: bool = False) -> None:
        """Delete the files that no segment uses; after an error they are tried again later."""
        if is_urgent:
            self._paused_until = -math.inf  # a full disk refuses writes, not deletions
        with self._lock:
            keys = set(self._garbage)
        if keys and self._on_disk(lambda store: store.delete(keys)):
            with self._lock:
                self._garbage -= keys

    # Pins and the background thread

    def _check_pins(self, entry: CachedSegment) -> None:
        """Raise CacheBudgetError if the pinned segments and those before them exceed the budget."""
        nbytes = self._index.pinned_bytes(entry)
        settings = self._settings
        budget = settings.warm_bytes if self._store is None else settings.cold_bytes
        if nbytes > budget:
            raise CacheBudgetError(
                f"Pinned states would take {nbytes:,} bytes, more than the cache budget of "
                f"{budget:,}: unpin another state, or raise the budget."
            )

    def _set_pin(self, entry: CachedSegment, *, is_pinned: bool) -> None:
        if self._store is not None and entry.is_on_disk:
            self._store.pin(entry.segment.key, is_pinned=is_pinned)
        with self._lock:
            entry.change(is_pinned=is_pinned)
        self._awake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._awake.clear()
            self._awake.wait(self.work())

    def _report_fault(self, fault: ThreadFault) -> None:
        self.stats.note(f"An error occurred in the cache: {fault}.", is_problem=True)
