"""A store in memory instead of on disk, and states made of their own tokens."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.cache.segments import Payload, Segment, pack
from engine.cache.store import SegmentStore
from engine.errors import CacheStoreError, StateError
from tests.support.clock import Clock

NAMESPACE = Namespace("0123456789abcdef", "/dev/null", ())
TOKEN = 4
"""Bytes of a token in a made-up state."""


def state_of(tokens: Sequence[int], start: int = 0) -> bytes:
    """The state of a sequence from `start` on: the tokens themselves."""
    return pack(tokens[start:])


class MemoryDisk(SegmentStore):
    """The states of one namespace in memory, with faults to be switched on."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[Segment, bytes]] = {}
        self.damaged: set[str] = set()
        self.is_full = False
        self.is_unreadable = False
        self.n_reads = 0
        self.log: list[str] = []

    @property
    def nbytes(self) -> int:
        return sum(len(payload) for _, payload in list(self.files.values()))

    def take_notes(self) -> tuple[str, ...]:
        return ()

    def add_namespace(self, namespace: Namespace) -> None:
        assert namespace == NAMESPACE
        if self.is_full:
            raise CacheStoreError("The disk is full.")

    def namespaces(self) -> list[Namespace]:
        return [NAMESPACE]

    def segments(self, namespace: str | None = None, *, has_tokens: bool = True) -> list[Segment]:
        if self.is_unreadable:
            raise CacheStoreError("The folder cannot be read.")
        return [state for state, _ in list(self.files.values())]

    def write(self, namespace: Namespace, state: Segment, payload: Payload) -> None:
        if self.is_full:
            raise CacheStoreError("The disk is full.")
        assert len(payload) == state.nbytes == (state.end - state.start) * TOKEN
        self.log.append(f"write {state.start}-{state.end}")
        self.files[state.key] = (state, bytes(payload))

    def read(self, state: Segment) -> bytes:
        self.n_reads += 1
        if self.is_unreadable:
            raise CacheStoreError("The file cannot be read.")
        if state.key in self.damaged:
            self.files.pop(state.key, None)
        found = self.files.get(state.key)
        if found is None:
            raise StateError(f"State {state.key} is damaged or gone.")
        return found[1]

    def delete(self, keys: Collection[str]) -> None:
        if self.is_full and keys:
            raise CacheStoreError("The folder is read-only.")
        for key in keys:
            found = self.files.pop(key, None)
            if found is not None:
                self.log.append(f"delete {found[0].start}-{found[0].end}")

    def save_uses(self, states: Iterable[Segment]) -> None:
        for each in states:
            self._change_state(
                each.key, used_at=each.used_at, n_uses=each.n_uses, owners=each.owners
            )

    def pin(self, key: str, *, is_pinned: bool) -> None:
        if self.is_full:
            raise CacheStoreError("The folder is read-only.")
        self._change_state(key, is_pinned=is_pinned)

    def _change_state(self, key: str, **about: object) -> None:
        found = self.files.get(key)
        if found is not None:
            self.files[key] = (replace(found[0], **about), found[1])  # type: ignore[arg-type]


def make_cache(
    disk: MemoryDisk | None = None,
    *,
    can_slice: bool = True,
    warm_bytes: int = 10**6,
    cold_bytes: int = 10**6,
    reserve_bytes: int = 0,
    available: Callable[[], int] = lambda: 10**9,
    clock: Clock | None = None,
    in_background: bool = False,
) -> PrefixCache:
    """A cache that does its background work when `work` is called."""
    clock = clock or Clock()
    return PrefixCache(
        NAMESPACE,
        can_slice=can_slice,
        store=disk,
        settings=CacheSettings(
            folder=Path("unused"),
            warm_bytes=warm_bytes,
            cold_bytes=cold_bytes,
            reserve_bytes=reserve_bytes,
        ),
        now=clock,
        monotonic=clock,
        available=available,
        in_background=in_background,
    )


def n_cached(cache: PrefixCache, tokens: Sequence[int]) -> int:
    """Length of the longest prefix that can be restored."""
    with cache.match(tokens) as match:
        return match.n_tokens


def put(
    cache: PrefixCache, tokens: Sequence[int], *, owner: str = "", seconds: float = 1.0
) -> bool:
    """Save a sequence as a session does: from the end of the last segment that it passed."""
    with cache.match(tokens, owner=owner) as match:
        start = match.n_whole if match.n_whole < len(tokens) and cache.can_slice else 0
        state = state_of(tokens, start)
        return cache.put(tokens, start, state, recompute_s=seconds, owner=owner)


def work(cache: PrefixCache) -> None:
    """Do what waits in the background."""
    while cache.work() == 0.0:
        pass


def restored(cache: PrefixCache, tokens: Sequence[int]) -> int:
    """Restore a prefix, compare every byte with its tokens, and return the prefix's length."""
    with cache.match(tokens) as match:
        states = cache.read(match)
        held = [*tokens[: match.n_tokens], *match.tail]
        assert b"".join(bytes(state) for state in states) == state_of(held)
        assert match.n_warm + match.n_cold == match.n_tokens
        return match.n_tokens
