"""Saved states by chat, for the screens, and by model on disk, for the commands."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from app.store.chats import ChatStore
from app.store.errors import StoreError
from engine.cache.report import CacheEntry, TierName
from engine.errors import CacheStoreError, EngineError, StateError

if TYPE_CHECKING:  # the chat asks here for owners' names alone
    from engine.cache.namespace import Namespace
    from engine.cache.segments import Segment
    from engine.cache.store import SegmentStore

NOBODY = ""
"""Owner of states whose chats are deleted, or that belong to no chat."""
CHAT = "chat:"
"""Prefix of an owner that is a chat; its number follows."""
ALL = 1_000_000


def owner_of(chat_id: int) -> str:
    """The owner of the states of a chat."""
    return f"{CHAT}{chat_id}"


@dataclass(frozen=True, slots=True)
class CachedChat:
    """The states of one chat, over all of its branches."""

    owner: str
    entries: tuple[CacheEntry, ...]
    n_tokens: int
    """Length of its longest saved sequence."""
    n_by_tier: Mapping[TierName, int]
    """Tokens in each tier; those of several branches count once for each."""
    nbytes: int
    n_shared_bytes: int
    """Bytes of states that other chats use too; part of `nbytes`."""
    n_pinned: int
    n_uses: int
    used_at: float
    """Seconds since the epoch. Both are those of its own states, where it has any: a shared prefix
    is used by every chat."""
    recompute_s: float
    """Measured prefill time that its states save."""

    @property
    def own(self) -> tuple[CacheEntry, ...]:
        """States that no other chat uses, the longest first."""
        return tuple(sorted(_own(self.entries), key=lambda entry: -entry.n_tokens))

    @property
    def is_pinned(self) -> bool:
        """Whether all of its states are pinned."""
        return self.n_pinned == len(self.entries)


def cached_chats(entries: Iterable[CacheEntry]) -> list[CachedChat]:
    """The chats with states, last used first; a shared state is in all of them."""
    by_owner: dict[str, list[CacheEntry]] = defaultdict(list)
    for entry in entries:
        for owner in entry.owners or (NOBODY,):
            by_owner[owner].append(entry)
    chats = [_chat(owner, states) for owner, states in by_owner.items()]
    return sorted(chats, key=lambda chat: -chat.used_at)


def _chat(owner: str, entries: Sequence[CacheEntry]) -> CachedChat:
    own = _own(entries) or entries
    tiers: tuple[TierName, ...] = ("hot", "warm", "cold")
    return CachedChat(
        owner=owner,
        entries=tuple(entries),
        n_tokens=max(entry.n_tokens for entry in entries),
        n_by_tier={tier: _n_covered(e for e in entries if tier in e.tiers) for tier in tiers},
        nbytes=sum(entry.nbytes for entry in entries),
        n_shared_bytes=sum(entry.nbytes for entry in entries if len(entry.owners) > 1),
        n_pinned=sum(entry.is_pinned for entry in entries),
        n_uses=max(entry.n_uses for entry in own),
        used_at=max(entry.used_at for entry in own),
        recompute_s=sum(entry.recompute_s for entry in entries),
    )


def _own(entries: Iterable[CacheEntry]) -> list[CacheEntry]:
    return [entry for entry in entries if len(entry.owners) < 2]


def _n_covered(entries: Iterable[CacheEntry]) -> int:
    """Tokens of segments; of whole states, which all begin at 0, only the longest."""
    n_whole = n_segments = 0
    for entry in entries:
        if entry.start:
            n_segments += entry.n_tokens - entry.start
        else:
            n_whole = max(n_whole, entry.n_tokens)
    return n_whole + n_segments


def forget_on_disk(owner: str) -> "list[Segment]":
    """Delete the states on disk that only this owner uses, and return them.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    from engine.cache.store import SegmentStore  # with the first deletion

    if not paths.snapshots_dir().is_dir():
        return []
    with SegmentStore(paths.snapshots_dir()) as store:
        return store.forget(owner)


def chat_titles(database: Path) -> tuple[dict[int, str], str | None]:
    """The titles by number, and why they could not be read."""
    if not database.is_file():
        return {}, None
    try:
        with ChatStore(database) as store:
            return {chat.id: chat.title for chat in store.list_chats(ALL, archived=None)}, None
    except StoreError as error:
        return {}, f"the chat titles cannot be read ({error}): the list shows chat numbers"


class UnknownSnapshotError(EngineError):
    """A key that names no saved state, or more than one."""

    title = "Unknown state"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """The states of one model and its settings, last used first."""

    namespace: "Namespace"
    entries: "tuple[Segment, ...]"

    @property
    def name(self) -> str:
        """The stem of the model's file."""
        return Path(self.namespace.model).stem

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(entry.nbytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class SnapshotCheck:
    """Result of the check of one state."""

    key: str | None
    """Key of the state; None if the head of its file could not be read."""
    problem: str | None = None
    """None for an intact state."""


def cached_models(store: "SegmentStore") -> list[CachedModel]:
    """The models with states on disk, last used first."""
    of: defaultdict[str, list[Segment]] = defaultdict(list)
    for entry in store.segments():
        of[entry.namespace].append(entry)
    namespaces = {namespace.key: namespace for namespace in store.namespaces()}
    models = [
        CachedModel(namespaces[key], tuple(sorted(entries, key=_used_at, reverse=True)))
        for key, entries in of.items()
        if key in namespaces
    ]
    return sorted(models, key=lambda model: _used_at(model.entries[0]), reverse=True)


def find_snapshot(models: Sequence[CachedModel], text: str) -> "Segment":
    """The state with this key, or with this unique beginning of a key.

    Raises:
        UnknownSnapshotError: there is none, or more than one.
    """
    entries = {entry.key: entry for model in models for entry in model.entries}
    wanted = text.strip().lower()
    found = [key for key in entries if wanted and key.startswith(wanted)]
    if len(found) == 1:
        return entries[found[0]]
    if found:
        raise UnknownSnapshotError(
            f"{len(found)} keys start with {text!r}: type one of {', '.join(sorted(found)[:8])}"
        )
    raise UnknownSnapshotError(
        f"no saved state has the key {text!r}: `kvchat cache list` shows the keys"
    )


def with_continuations(model: "Sequence[Segment]", entry: "Segment") -> "list[Segment]":
    """A state and the longer states that extend it, the longest first."""
    found, keys = [entry], {entry.key}
    for other in sorted(model, key=lambda each: each.start):
        if other.parent in keys:
            found.append(other)
            keys.add(other.key)
    return found[::-1]


def chat_numbers(entry: "Segment") -> list[int]:
    """The numbers of the chats that use a state."""
    numbers = (owner.removeprefix(CHAT) for owner in entry.owners if owner.startswith(CHAT))
    return sorted(int(number) for number in numbers if number.isdecimal())


def chats_of(entry: "Segment", titles: Mapping[int, str]) -> list[str]:
    """The chats of a state by title, or by number without one."""
    return [titles.get(number, f"chat {number}") for number in chat_numbers(entry)]


def verified(
    store: "SegmentStore", entries: "Sequence[Segment]", show: Callable[[str, float], None]
) -> list[SnapshotCheck]:
    """Check states, and report damaged files that were found while the states were listed."""
    checks = [SnapshotCheck(None, note) for note in store.take_notes()]
    for n_done, entry in enumerate(entries):
        show(f"{n_done:,} of {len(entries):,} states", n_done / len(entries))
        try:
            store.read(entry)
            checks.append(SnapshotCheck(entry.key))
        except (StateError, CacheStoreError) as error:
            checks.append(SnapshotCheck(entry.key, str(error)))
    return checks


def _used_at(entry: "Segment") -> float:
    return entry.used_at
