"""What the cache holds, chat by chat."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from app.store.chats import ChatStore
from app.store.errors import StoreError
from engine.cache.report import CacheEntry, TierName

if TYPE_CHECKING:
    from engine.cache.snapshot_store import Forgotten

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


def forget_on_disk(owner: str) -> "Forgotten":
    """Remove the snapshots on disk that an owner alone uses; gives how much that was.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    from engine.cache.snapshot_store import Forgotten, forget_owner  # with the first deletion

    folder = paths.snapshots_dir()
    return forget_owner(folder, owner) if folder.is_dir() else Forgotten(0, 0)


def chat_titles(database: Path) -> tuple[dict[int, str], str | None]:
    """The titles by number, and why they could not be read."""
    if not database.is_file():
        return {}, None
    try:
        with ChatStore(database) as store:
            return {chat.id: chat.title for chat in store.list_chats(ALL, archived=None)}, None
    except StoreError as error:
        return {}, f"chats are shown by number: {error}"
