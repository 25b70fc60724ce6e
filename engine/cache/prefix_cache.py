"""States that were computed, found again by the longest start that a line shares with them.

After SGLang's RadixAttention (Zheng et al. 2024, arXiv 2312.07104), for states of llama.cpp in main
memory and on disk.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from engine.cache.books import Books, Split, part_of
from engine.cache.catalog import Catalog, Kept, KeptNode, Payload, adopt, value
from engine.cache.disk_writer import ColdTier, Disk
from engine.cache.radix import TOKEN_BYTES, StoredState, pack
from engine.cache.report import CacheSettings, Ledger
from engine.cache.upkeep import Upkeep
from engine.errors import CacheStoreError, StateError

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

        A folder that cannot be read is named in the log; the cache goes on without it.

        Args:
            namespace: key of everything that changes a state's numbers.
            can_slice: `Backend.can_slice`.
            split_state: `Backend.split_state`; called from several threads.
            cold: the store on disk, None without one.
            settings: budgets and thresholds.
            now: seconds since the epoch.
            monotonic: seconds that never step back.
            available: bytes of main memory that are available.
            in_background: False starts no thread; `upkeep.work` is then the caller's to call.
        """
        self._books = books = Books(
            Catalog(namespace, can_slice=can_slice),
            Ledger(now),
            settings,
            split_state=split_state,
            now=now,
            available=available,
        )
        self._disk = None
        if cold is not None and settings.cold_bytes > 0:
            self._disk = Disk(cold, books, monotonic)
            books.can_write = self._disk.can_write
            _take_up(cold, books.catalog, books.ledger)
        self._wishes: deque[bytes] = deque(maxlen=MAX_PREFETCHES)
        self.upkeep = Upkeep(
            books,
            self._disk,
            prefetch_one=self._prefetch_one,
            monotonic=monotonic,
            in_background=in_background,
        )
        """What a user does by hand, and the work in the background."""

    def match(self, tokens: Sequence[int], *, owner: str = "") -> Match:
        """Find the longest start of a line that can be restored, and protect it until released.

        Stretches that lie wholly within it are noted to be the owner's too.
        """
        catalog, line = self._books.catalog, pack(tokens)
        with self._books.lock:
            nodes, n_tokens = catalog.usable(line)
            if nodes:
                catalog.tree.lock(nodes[-1])
                self._books.mark((node for node in nodes if node.end <= n_tokens), owner)
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
                self._books.note(str(error), is_problem=True)
                break
            end = min(piece.end, piece.n_known)
            # It begins earlier where another thread dropped what was read before, and put it anew.
            held = piece.start, piece.end
            states.append(part_of(state, held, (n_done, end), self._books.split_state))
            n_cold += end - n_done if piece.payload is None else 0
            n_done = end
            if not self._books.catalog.can_slice:
                break
        if match.recompute_s is not None and match.n_tokens:
            match.recompute_s *= n_done / match.n_tokens
        match.n_tokens, match.n_warm, match.n_cold = n_done, n_done - n_cold, n_cold
        self._books.wake()
        return states

    def refuse(self, match: Match, reason: str) -> None:
        """Drop the last state of a match, since the backend did not take what was read."""
        catalog, ledger = self._books.catalog, self._books.ledger
        with self._books.lock:
            nodes, _ = catalog.usable(match.line[: match.n_tokens * TOKEN_BYTES])
            if nodes:
                ledger.count(n_refused=1)
                ledger.note(reason, is_problem=True)
                catalog.remove(nodes[-1])
        self._books.wake()

    def prefetch(self, tokens: Sequence[int]) -> None:
        """Bring what is kept of a line's start from disk into main memory, in the background."""
        with self._books.lock:
            self._wishes.append(pack(tokens))
        self._books.wake()

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many leading tokens some line had before, whether a state is left or not."""
        with self._books.lock:
            return self._books.catalog.tree.match(pack(tokens)).n_tokens

    def keys_on(self, tokens: Sequence[int]) -> list[str]:
        """The keys of the states that lie wholly on a line."""
        with self._books.lock:
            found = self._books.catalog.tree.match(pack(tokens))
            ends_within = (node for node in found.nodes if node.end <= found.n_tokens)
            return [node.value.key for node in ends_within if node.value is not None]

    def put(
        self,
        tokens: Sequence[int],
        start: int,
        state: Payload,
        *,
        recompute_s: float,
        owner: str = "",
        origin: str = "",
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
            origin: as `StoredState.origin`.

        Raises:
            StateError: the tokens before `start` are not kept, or the state cannot be cut.
        """
        line, catalog = pack(tokens), self._books.catalog
        self._books.look_at_memory()
        while True:
            with self._books.lock:
                nodes, n_kept = catalog.usable(line)
                _check_start(start, n_kept, can_slice=catalog.can_slice)
                if not self._wants(len(tokens) - n_kept):
                    self._books.mark((node for node in nodes if node.end <= n_kept), owner)
                    return False
                cut = self._uncut(nodes, n_kept)
                whole = None if cut is None else value(cut).payload
                n_upper = 0 if cut is None else n_kept - cut.start
            halves = None if whole is None else self._books.split_state(whole, n_upper)
            tail, share = self._tail(state, n_kept - start, len(tokens) - start)
            with self._books.lock:
                if self._has_changed(line, nodes, n_kept, cut, whole):
                    continue
                if cut is not None:
                    catalog.split(cut, n_kept, halves)
                is_kept = self._place(line, tail, recompute_s * share, owner, origin)
            self._books.wake()
            return is_kept

    def note_hit(
        self, *, n_hot: int, n_warm: int, n_cold: int, n_computed: int, saved_s: float | None
    ) -> None:
        """Count a prompt by where its tokens came from, and what restoring saved, if that is known.

        A hit took something from a tier. A miss took nothing, and computed more than the context
        held by itself. The rest is neither.
        """
        is_hit = n_warm + n_cold > 0
        with self._books.lock:
            self._books.ledger.count(
                n_hits=int(is_hit),
                n_misses=int(not is_hit and n_computed > n_hot),
                n_hot_tokens=n_hot,
                n_warm_tokens=n_warm,
                n_cold_tokens=n_cold,
                n_computed_tokens=n_computed,
            )
            if saved_s is not None:
                self._books.ledger.save(saved_s)

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a line to the log."""
        with self._books.lock:
            self._books.ledger.note(text, is_problem=is_problem)

    def _piece(self, line: bytes, n_done: int) -> _Piece | None:
        """The state that goes on behind the first `n_done` tokens of a line."""
        catalog = self._books.catalog
        with self._books.lock:
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
        catalog, ledger, node = self._books.catalog, self._books.ledger, piece.node
        with self._books.lock:
            if node.value is None or (catalog.start(node), node.end) != (piece.start, piece.end):
                return
            kept = node.value
            if kept.payload is None and self._books.settings.warm_bytes > 0:
                catalog.keep(node, payload, self._books.now())
                kept.is_prefetched = is_guess
                ledger.count(n_promotions=1, n_prefetches=int(is_guess))
            elif not is_guess and kept.is_prefetched:
                kept.is_prefetched = False
                ledger.count(n_prefetches_used=1)
            if not is_guess:
                kept.n_uses += 1
                self._books.mark([node], "")
            self._books.shrink()

    def _recompute_s(self, nodes: Sequence[KeptNode], n_tokens: int) -> float | None:
        total_s = 0.0
        for node in nodes:
            start, kept = self._books.catalog.start(node), value(node)
            if kept.recompute_s <= 0.0:
                return None
            total_s += kept.recompute_s * (min(node.end, n_tokens) - start) / (node.end - start)
        return total_s if nodes else None

    def _prefetch_one(self) -> bool:
        """Prefetch one line, and give whether there was a wish for it."""
        catalog = self._books.catalog
        with self._books.lock:
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
        n_done, room = 0, self._books.room()
        while n_done * TOKEN_BYTES < len(line) and (piece := self._piece(line, n_done)):
            if piece.payload is None:
                room -= value(piece.node).nbytes
                if room < 0:
                    return
                try:
                    self._load(piece, is_guess=True)
                except StateError:
                    return
                except CacheStoreError as error:
                    self._books.note(str(error), is_problem=True)
                    return
            n_done = piece.end

    def _unlock(self, node: KeptNode) -> None:
        with self._books.lock:
            self._books.catalog.tree.unlock(node)
            self._books.shrink()

    def _wants(self, n_new: int) -> bool:
        """Whether any tier takes states at all, and one of so many new tokens is worth it."""
        takes_any = self._books.settings.warm_bytes > 0 or self._disk is not None
        return takes_any and n_new >= max(self._books.settings.min_tokens, 1)

    def _uncut(self, nodes: Sequence[KeptNode], n_kept: int) -> KeptNode | None:
        """The node within whose stretch a line leaves the tree."""
        is_inside = self._books.catalog.can_slice and nodes and nodes[-1].end > n_kept
        return nodes[-1] if is_inside else None

    def _tail(self, state: Payload, n_known: int, n_tokens: int) -> tuple[Payload, float]:
        """The part of a state that is new, and its share of the tokens."""
        if not self._books.catalog.can_slice or n_known == 0:
            return state, 1.0
        return self._books.split_state(state, n_known)[1], 1 - n_known / n_tokens

    def _has_changed(
        self,
        line: bytes,
        nodes: Sequence[KeptNode],
        n_kept: int,
        cut: KeptNode | None,
        whole: Payload | None,
    ) -> bool:
        """Whether another thread changed what was cut or measured without the lock."""
        if self._books.catalog.usable(line) != (list(nodes), n_kept):
            return True
        return cut is not None and value(cut).payload is not whole

    def _place(
        self, line: bytes, state: Payload, recompute_s: float, owner: str, origin: str
    ) -> bool:
        catalog, now = self._books.catalog, self._books.now()
        nbytes = memoryview(state).nbytes
        kept = Kept("", nbytes, recompute_s, now, payload=state, came_at=now, origin=origin)
        node = catalog.place(line, kept)
        self._books.mark((each for each in catalog.tree.way(node) if each.value is not None), owner)
        if not catalog.can_slice:
            self._thin_out(node)
        self._books.shrink(spare=node)
        return node.value is not None

    def _thin_out(self, newest: KeptNode) -> None:
        """Drop older states of a line that no other line needs, since newer ones do more."""
        catalog, n_seen = self._books.catalog, 0
        for node in list(catalog.tree.way(newest)):
            if node.value is None:
                continue
            n_seen += 1
            if n_seen <= N_NEWEST or node.n_locks or node.value.is_pinned:
                continue
            if not catalog.is_branch(node):
                catalog.remove(node)


def _take_up(cold: ColdTier, catalog: Catalog, ledger: Ledger) -> None:
    try:
        n_unusable = adopt(catalog, cold.states())
    except CacheStoreError as error:
        ledger.note(str(error), is_problem=True)
        return
    if n_unusable:
        ledger.note(f"{n_unusable} states on disk lack the start of their line and are deleted.")


def _check_start(start: int, n_kept: int, *, can_slice: bool) -> None:
    if start > n_kept:
        raise StateError(
            f"The state begins at token {start} but only the {n_kept} tokens before it are kept: "
            f"save from token {n_kept} on."
        )
    if start and not can_slice:
        raise StateError(
            f"The state begins at token {start} but this model's states cannot be cut: save from "
            "token 0 on."
        )
