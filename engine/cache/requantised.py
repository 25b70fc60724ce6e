"""What is kept of a chat in other cache types, requantised where its own types have less.

A chat whose cache type was changed finds its tokens here: the states of the same model, build and
settings that differ in the types of keys and values only. They are converted when a reply needs
them, not before, and kept from then on as states of the new types that name their origin. Only
states of the chat itself are taken: what a coarse type lost reaches no other chat this way.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends.base import Backend
from engine.cache.catalog import Payload, part_of
from engine.cache.namespace import (
    Namespace,
    bits_of,
    coarsest,
    differ_in_types_only,
    kv_types,
    parse_kv_types,
)
from engine.cache.prefix_cache import PrefixCache
from engine.cache.radix import TOKEN_BYTES, StoredState, n_tokens_shared, pack
from engine.cache.snapshot_store import SnapshotStore
from engine.clock import Stopwatch
from engine.configuration import KVTypes
from engine.errors import CacheStoreError, StateError


@dataclass(frozen=True, slots=True)
class Requantised:
    """What was converted of one line."""

    origin: KVTypes
    """The coarsest types that it went through."""
    into: KVTypes
    n_tokens: int
    elapsed_s: float

    @property
    def sentence(self) -> str:
        """What was done and what it costs, for the user."""
        said = (
            f"{self.n_tokens:,} tokens were requantised from {self.origin} to "
            f"{self.into} in {1000 * self.elapsed_s:.0f} ms instead of being read again"
        )
        if coarsest(self.origin, self.into) != self.into:
            return f"{said}. What {self.origin} lost of them stays lost."
        return f"{said}. They are as precise as {self.into} is."


@dataclass(frozen=True, slots=True)
class _Found:
    """The states of one other type that make up the start of a line."""

    types: KVTypes
    states: Sequence[StoredState]
    n_tokens: int


class OtherTypes:
    """The states of other cache types in a folder, as they were when they were first looked for.

    Safe for several threads: one line is converted at a time.
    """

    def __init__(self, store: SnapshotStore, namespace: Namespace, backend: Backend) -> None:
        self._store = store
        self._namespace = namespace
        self._backend = backend
        self._into = kv_types(namespace)
        self._known: list[tuple[KVTypes, list[StoredState]]] | None = None
        self._lock = threading.Lock()
        self._has_complained = False

    def bring(
        self, tiers: PrefixCache, tokens: Sequence[int], owner: str, *, beyond: int
    ) -> Requantised | None:
        """Put what other types hold of a chat's line into its own tiers.

        What came of it, and why nothing did where a layout forbids it, is a line of their log.

        Args:
            tiers: Of the types that the context has now.
            tokens: The line.
            owner: The chat.
            beyond: Tokens that are there already; fewer are not looked for.
        """
        if not owner or self._into is None:
            return None
        with self._lock:
            try:
                found = self._longest(pack(tokens), owner)
                if found is None or found.n_tokens <= beyond:
                    return None
                done = self._put(tiers, tokens, owner, found)
            except (StateError, CacheStoreError) as error:
                self._complain(tiers, str(error))
                return None
        if done is not None:
            tiers.note(done.sentence)
        return done

    def _longest(self, line: bytes, owner: str) -> _Found | None:
        """The types that hold most of a line; of several with as much, the most precise."""
        if self._known is None:
            self._known = self._listed()
        found = [
            _Found(types, *self._held([each for each in states if owner in each.owners], line))
            for types, states in self._known
        ]
        return max(found, key=lambda each: (each.n_tokens, bits_of(each.types)), default=None)

    def _listed(self) -> list[tuple[KVTypes, list[StoredState]]]:
        """The states of each other type, the start of a line before its end."""
        return [
            (types, sorted(self._store.states(each.key), key=lambda state: state.end))
            for each in self._store.namespaces()
            if (types := kv_types(each)) and differ_in_types_only(each, self._namespace)
        ]

    def _held(self, states: Sequence[StoredState], line: bytes) -> tuple[list[StoredState], int]:
        """The states that make up the longest start of a line, and its length."""
        held: list[StoredState] = []
        rest: tuple[int, StoredState] | None = None
        for state in states:
            before = (held[-1].end, held[-1].line) if held and state.start else (0, "")
            n_shared = n_tokens_shared(state.packed, line, state.start * TOKEN_BYTES)
            if (state.start, state.parent) != before or not n_shared:
                continue
            if state.start + n_shared == state.end:
                held = [*held, state] if state.start else [state]
            elif rest is None or rest[0] < state.start + n_shared:
                rest = state.start + n_shared, state
        n_tokens = held[-1].end if held else 0
        if rest is not None and self._backend.can_slice and rest[1].start == n_tokens:
            return [*held, rest[1]], rest[0]
        return held, n_tokens

    def _put(
        self, tiers: PrefixCache, tokens: Sequence[int], owner: str, found: _Found
    ) -> Requantised | None:
        assert self._into is not None
        watch, n_done, worst = Stopwatch(), 0, found.types
        with tiers.match(tokens) as match:
            n_own = match.n_tokens if self._backend.can_slice else 0
            for state in found.states:
                end = min(state.end, found.n_tokens)
                if end <= n_own:
                    continue
                before = parse_kv_types(state.origin)
                origin = found.types if before is None else coarsest(found.types, before)
                if not tiers.put(
                    tokens[:end],
                    state.start,
                    self._converted(found.types, state, end),
                    recompute_s=state.recompute_s * (end - state.start) / (state.end - state.start),
                    owner=owner,
                    origin=str(origin),
                ):
                    break
                worst = coarsest(worst, origin)
                n_done += end - max(state.start, n_own)
        if not n_done:
            return None
        return Requantised(worst, self._into, n_done, watch.total())

    def _converted(self, types: KVTypes, state: StoredState, end: int) -> Payload:
        """A state up to a token of its line, in the types of the context."""
        payload = self._backend.requantise(self._store.read(state), types)
        span = (state.start, state.end)
        return part_of(payload, span, (state.start, end), self._backend.split_state)

    def _complain(self, tiers: PrefixCache, reason: str) -> None:
        """Say once why a chat is read again."""
        if not self._has_complained:
            self._has_complained = True
            tiers.note(
                f"The chat is read again, for what is kept of it in another cache type cannot be "
                f"requantised: {reason}",
                is_problem=True,
            )
