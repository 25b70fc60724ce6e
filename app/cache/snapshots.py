"""The snapshots on disk: found by model, checked, and removed with what needs them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.cache.cached_chats import CHAT
from engine.cache.disk_index import ColdEntry
from engine.cache.namespace import Namespace
from engine.cache.snapshot_folder import ColdFolder
from engine.errors import CacheStoreError, EngineError, StateError
from engine.validation import nearest


class UnknownSnapshotError(EngineError):
    """No kept state, or more than one, is meant by what was typed."""

    title = "Which state?"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """The states of one model and its settings, those used last first."""

    namespace: Namespace
    entries: tuple[ColdEntry, ...]

    @property
    def name(self) -> str:
        """The model's file without folder and ending."""
        return Path(self.namespace.model).stem

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(entry.file_bytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class SnapshotCheck:
    """What a check of one snapshot found."""

    key: str
    """Empty where the head of a file could not be read."""
    problem: str | None = None
    """What is wrong; None where nothing is."""


def cached_models(folder: ColdFolder) -> list[CachedModel]:
    """What a folder holds, the model used last first.

    Raises:
        CacheStoreError: it cannot be read.
    """
    of: defaultdict[str, list[ColdEntry]] = defaultdict(list)
    for entry in folder.all_entries():
        of[entry.namespace].append(entry)
    namespaces = {namespace.key: namespace for namespace in folder.namespaces()}
    models = [
        CachedModel(namespaces[key], tuple(sorted(entries, key=_used_at, reverse=True)))
        for key, entries in of.items()
        if key in namespaces
    ]
    return sorted(models, key=lambda model: _used_at(model.entries[0]), reverse=True)


def find_snapshot(models: Sequence[CachedModel], text: str) -> ColdEntry:
    """The snapshot with this key or, where there is only one, this beginning of a key.

    Raises:
        UnknownSnapshotError: none is meant, or more than one.
    """
    entries = {entry.state.key: entry for model in models for entry in model.entries}
    wanted = text.strip().lower()
    found = [key for key in entries if wanted and key.startswith(wanted)]
    if len(found) == 1:
        return entries[found[0]]
    if found:
        raise UnknownSnapshotError(
            f"{len(found)} keys begin with {text!r}: {', '.join(sorted(found)[:8])}"
        )
    near = nearest(wanted, entries, n=3, cutoff=0.4)
    hint = f"near are {', '.join(near)}" if near else "`kvchat cache list` shows the keys"
    raise UnknownSnapshotError(f"no kept state has the key {text!r}: {hint}")


def with_continuations(model: Sequence[ColdEntry], entry: ColdEntry) -> list[ColdEntry]:
    """A snapshot and all that are of no use without it, the ends of lines first."""
    found, lines = [entry], {entry.state.line}
    for other in sorted(model, key=lambda each: each.state.start):
        if other.state.start and other.state.parent in lines and other != entry:
            found.append(other)
            lines.add(other.state.line)
    return found[::-1]


def chat_numbers(entry: ColdEntry) -> list[int]:
    """The numbers of the chats whose prompts passed through a snapshot."""
    numbers = (owner.removeprefix(CHAT) for owner in entry.state.owners if owner.startswith(CHAT))
    return sorted(int(number) for number in numbers if number.isdecimal())


def chats_of(entry: ColdEntry, titles: Mapping[int, str]) -> list[str]:
    """The chats of a snapshot by title, or by number where there is none."""
    return [titles.get(number, f"chat {number}") for number in chat_numbers(entry)]


def verified(
    folder: ColdFolder, entries: Sequence[ColdEntry], *, tell: Callable[[int, int], None]
) -> list[SnapshotCheck]:
    """Check snapshots, damaged files that were found while listing them included.

    Args:
        folder: Where they lie; damaged ones are removed.
        entries: The snapshots.
        tell: Receives how many are done, of how many.
    """
    verdicts = [SnapshotCheck("", note) for note in folder.take_damaged()]
    for n_done, entry in enumerate(entries):
        tell(n_done, len(entries))
        try:
            folder.verify(entry.namespace, entry.state.key)
            verdicts.append(SnapshotCheck(entry.state.key))
        except (StateError, CacheStoreError) as error:
            verdicts.append(SnapshotCheck(entry.state.key, str(error)))
    tell(len(entries), len(entries))
    return verdicts


def _used_at(entry: ColdEntry) -> float:
    return entry.state.used_at
