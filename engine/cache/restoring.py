"""Finding what is kept of a line, and reading it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cache.catalog import KeptNode, Payload, value
from engine.cache.core import Core
from engine.cache.radix import TOKEN_BYTES, StoredState, pack
from engine.errors import CacheStoreError, StateError

MAX_PREFETCHES = 4
"""Lines that wait to be prefetched; older wishes give way."""


@dataclass(slots=True, eq=False)
class Match:
    """The longest start of a line that can be restored; nothing of it is evicted until released."""

    n_tokens: int
    """Leading tokens; after `TieredCache.read`, those that it gave."""
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


class Restoring:
    """Reads states from where they lie; what comes from disk is in main memory afterwards."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._wishes: deque[bytes] = deque(maxlen=MAX_PREFETCHES)

    def match(self, tokens: Sequence[int], owner: str) -> Match:
        """Do `TieredCache.match`."""
        catalog, line = self._core.catalog, pack(tokens)
        with self._core.lock:
            nodes, n_tokens = catalog.usable(line)
            if nodes:
                catalog.tree.lock(nodes[-1])
                self._core.mark((node for node in nodes if node.end <= n_tokens), owner)
            n_warm = sum(
                min(node.end, n_tokens) - catalog.start(node)
                for node in nodes
                if value(node).payload is not None
            )
            recompute_s = self._recompute_s(nodes, n_tokens)
        last = nodes[-1] if nodes else None
        return Match(n_tokens, n_warm, n_tokens - n_warm, line, last, self._unlock, recompute_s)

    def read(self, match: Match) -> list[Payload]:
        """Do `TieredCache.read`."""
        line = match.line[: match.n_tokens * TOKEN_BYTES]
        states: list[Payload] = []
        n_done = n_cold = 0
        while n_done < match.n_tokens and (piece := self._piece(line, n_done)):
            try:
                state = self._load(piece, is_guess=False)
            except StateError:
                continue
            except CacheStoreError as error:
                self._core.note(str(error), is_problem=True)
                break
            end = min(piece.end, piece.n_known)
            states.append(self._cut(state, piece, n_done, end))
            n_cold += end - n_done if piece.payload is None else 0
            n_done = end
            if not self._core.catalog.can_slice:
                break
        if match.recompute_s is not None and match.n_tokens:
            match.recompute_s *= n_done / match.n_tokens
        match.n_tokens, match.n_warm, match.n_cold = n_done, n_done - n_cold, n_cold
        self._core.wake()
        return states

    def _recompute_s(self, nodes: Sequence[KeptNode], n_tokens: int) -> float | None:
        total_s = 0.0
        for node in nodes:
            start, kept = self._core.catalog.start(node), value(node)
            if kept.recompute_s <= 0.0:
                return None
            total_s += kept.recompute_s * (min(node.end, n_tokens) - start) / (node.end - start)
        return total_s if nodes else None

    def refuse(self, match: Match, reason: str) -> None:
        """Do `TieredCache.refuse`."""
        catalog, ledger = self._core.catalog, self._core.ledger
        with self._core.lock:
            nodes, _ = catalog.usable(match.line[: match.n_tokens * TOKEN_BYTES])
            if nodes:
                ledger.count(n_refused=1)
                ledger.note(reason, is_problem=True)
                catalog.remove(nodes[-1])
        self._core.wake()

    def wish(self, tokens: Sequence[int]) -> None:
        """Remember a line to prefetch."""
        with self._core.lock:
            self._wishes.append(pack(tokens))
        self._core.wake()

    def fulfil(self) -> bool:
        """Prefetch one line, and give whether there was a wish for it."""
        catalog = self._core.catalog
        with self._core.lock:
            if not self._wishes:
                return False
            line = self._wishes.popleft()
            nodes, n_tokens = catalog.usable(line)
            if not nodes:
                return True
            catalog.tree.lock(nodes[-1])
        try:
            self._prefetch(line[: n_tokens * TOKEN_BYTES])
        finally:
            self._unlock(nodes[-1])
        return True

    def _prefetch(self, line: bytes) -> None:
        """Read the states of a line, from its start, as far as they fit in main memory."""
        n_done, room = 0, self._core.room()
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
                    self._core.note(str(error), is_problem=True)
                    return
            n_done = piece.end

    def _cut(self, state: Payload, piece: _Piece, start: int, end: int) -> Payload:
        """Give the part of a state that holds tokens `start` to `end` of its line.

        It begins before `start` where another thread dropped what was read before, and put it anew.
        """
        if end < piece.end:
            state = self._core.split_state(state, end - piece.start)[0]
        if start > piece.start:
            state = self._core.split_state(state, start - piece.start)[1]
        return state

    def _piece(self, line: bytes, n_done: int) -> _Piece | None:
        """Give the state that goes on behind the first `n_done` tokens of a line."""
        catalog = self._core.catalog
        with self._core.lock:
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
        assert self._core.disk is not None
        payload = self._core.disk.read(piece.file, piece.start, piece.end)
        self._use(piece, payload, is_guess=is_guess)
        return payload

    def _use(self, piece: _Piece, payload: Payload, *, is_guess: bool) -> None:
        """Note that a state was read, and keep it in main memory."""
        catalog, ledger, node = self._core.catalog, self._core.ledger, piece.node
        with self._core.lock:
            if node.value is None or (catalog.start(node), node.end) != (piece.start, piece.end):
                return
            kept = node.value
            if kept.payload is None and self._core.settings.warm_bytes > 0:
                catalog.keep(node, payload, self._core.now())
                kept.is_prefetched = is_guess
                ledger.count(n_promotions=1, n_prefetches=int(is_guess))
            elif not is_guess and kept.is_prefetched:
                kept.is_prefetched = False
                ledger.count(n_prefetches_used=1)
            if not is_guess:
                kept.n_uses += 1
                self._core.mark([node], "")
            self._core.shrink()

    def _unlock(self, node: KeptNode) -> None:
        with self._core.lock:
            self._core.catalog.tree.unlock(node)
            self._core.shrink()
