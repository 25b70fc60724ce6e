"""What the cache holds, chat by chat, and the snapshots on disk: found, checked, sent on."""

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
from engine.validation import nearest

if TYPE_CHECKING:  # the chat asks here for owners' names alone
    from engine.cache.namespace import Namespace
    from engine.cache.segments import Segment
    from engine.cache.store import SegmentStore

NOBODY = ""
"""Owner of snapshots whose chats are deleted, or that no chat asked for."""
CHAT = "chat:"
"""Begins the name of an owner that is a chat; its number follows."""
ALL = 1_000_000


def owner_of(chat_id: int) -> str:
    """The name by which the cache knows a chat."""
    return f"{CHAT}{chat_id}"


@dataclass(frozen=True, slots=True)
class CachedChat:
    """The snapshots of one chat, over all of its branches."""

    owner: str
    entries: tuple[CacheEntry, ...]
    n_tokens: int
    """Length of its longest line that is kept."""
    n_by_tier: Mapping[TierName, int]
    """Tokens that lie in each tier; those of several branches count once for each."""
    nbytes: int
    n_shared_bytes: int
    """Of those, bytes of states that other chats use too."""
    n_pinned: int
    n_uses: int
    used_at: float
    """Seconds since the epoch. Both are those of its own states, where it has any: a shared prefix
    is used by every chat."""
    recompute_s: float
    """Measured time of the tokens that its states spare."""

    @property
    def own(self) -> tuple[CacheEntry, ...]:
        """States that no other chat uses, the last of a line first."""
        return tuple(sorted(_own(self.entries), key=lambda entry: -entry.n_tokens))

    @property
    def is_pinned(self) -> bool:
        """Whether all of its states are pinned."""
        return self.n_pinned == len(self.entries)


def cached_chats(entries: Iterable[CacheEntry]) -> list[CachedChat]:
    """The chats with snapshots, those used last first; a shared snapshot is in all of them."""
    by_owner: dict[str, list[CacheEntry]] = defaultdict(list)
    for entry in entries:
        for owner in entry.owners or (NOBODY,):
            by_owner[owner].append(entry)
    chats = [_chat(owner, states) for owner, states in by_owner.items()]
    return sorted(chats, key=lambda chat: -chat.used_at)


def _chat(owner: str, entries: Sequence[CacheEntry]) -> CachedChat:
    told = _own(entries) or entries
    tiers: tuple[TierName, ...] = ("hot", "warm", "cold")
    return CachedChat(
        owner=owner,
        entries=tuple(entries),
        n_tokens=max(entry.n_tokens for entry in entries),
        n_by_tier={tier: _n_covered(e for e in entries if tier in e.tiers) for tier in tiers},
        nbytes=sum(entry.nbytes for entry in entries),
        n_shared_bytes=sum(entry.nbytes for entry in entries if len(entry.owners) > 1),
        n_pinned=sum(entry.is_pinned for entry in entries),
        n_uses=max(entry.n_uses for entry in told),
        used_at=max(entry.used_at for entry in told),
        recompute_s=sum(entry.recompute_s for entry in entries),
    )


def _own(entries: Iterable[CacheEntry]) -> list[CacheEntry]:
    return [entry for entry in entries if len(entry.owners) < 2]


def _n_covered(entries: Iterable[CacheEntry]) -> int:
    """Tokens of stretches; of whole snapshots, which all begin at 0, only the longest."""
    n_whole = n_stretches = 0
    for entry in entries:
        if entry.start:
            n_stretches += entry.n_tokens - entry.start
        else:
            n_whole = max(n_whole, entry.n_tokens)
    return n_whole + n_stretches


def forget_on_disk(owner: str) -> "list[Segment]":
    """Remove the snapshots on disk that an owner alone uses; gives those that went.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    from engine.cache.store import SegmentStore  # with the first deletion

    if not paths.snapshots_dir().is_dir():
        return []
    with SegmentStore(paths.snapshots_dir(), may_lock=True) as store:
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
    """No kept state, or more than one, is meant by what was typed."""

    title = "Which state?"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """The states of one model and its settings, those used last first."""

    namespace: "Namespace"
    entries: "tuple[Segment, ...]"

    @property
    def name(self) -> str:
        """The model's file without folder and ending."""
        return Path(self.namespace.model).stem

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(entry.nbytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class SnapshotCheck:
    """What a check of one snapshot found."""

    key: str | None
    """None if the head of the file could not be read."""
    problem: str | None = None
    """What is wrong; None where nothing is."""


def cached_models(store: "SegmentStore") -> list[CachedModel]:
    """What the disk holds, the model used last first.

    Raises:
        CacheStoreError: it cannot be read.
    """
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
    """The snapshot with this key or, where there is only one, this beginning of a key.

    Raises:
        UnknownSnapshotError: none is meant, or more than one.
    """
    entries = {entry.key: entry for model in models for entry in model.entries}
    wanted = text.strip().lower()
    found = [key for key in entries if wanted and key.startswith(wanted)]
    if len(found) == 1:
        return entries[found[0]]
    if found:
        raise UnknownSnapshotError(
            f"{len(found)} keys start with {text!r}: {', '.join(sorted(found)[:8])}"
        )
    near = nearest(wanted, entries, n=3, cutoff=0.4)
    hint = f"similar: {', '.join(near)}" if near else "`kvchat cache list` shows the keys"
    raise UnknownSnapshotError(f"no saved state has the key {text!r}: {hint}")


def with_continuations(model: "Sequence[Segment]", entry: "Segment") -> "list[Segment]":
    """A snapshot and all that are of no use without it, the ends of lines first."""
    found, keys = [entry], {entry.key}
    for other in sorted(model, key=lambda each: each.start):
        if other.parent in keys:
            found.append(other)
            keys.add(other.key)
    return found[::-1]


def chat_numbers(entry: "Segment") -> list[int]:
    """The numbers of the chats whose prompts passed through a snapshot."""
    numbers = (owner.removeprefix(CHAT) for owner in entry.owners if owner.startswith(CHAT))
    return sorted(int(number) for number in numbers if number.isdecimal())


def chats_of(entry: "Segment", titles: Mapping[int, str]) -> list[str]:
    """The chats of a snapshot by title, or by number where there is none."""
    return [titles.get(number, f"chat {number}") for number in chat_numbers(entry)]


def verified(
    store: "SegmentStore", entries: "Sequence[Segment]", show: Callable[[str, float], None]
) -> list[SnapshotCheck]:
    """Check states, and report damaged files that were found while the states were listed.

    Args:
        store: Their folder; damaged files are removed.
        entries: The states.
        show: Called with the progress in words, and the finished share.
    """
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
