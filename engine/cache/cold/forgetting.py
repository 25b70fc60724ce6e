"""Forgets an owner on disk: what only he used goes, what others share stays."""

from dataclasses import dataclass
from pathlib import Path

from engine.cache.cold.folder import ColdFolder


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was removed."""

    n_states: int
    file_bytes: int


def forget_owner(path: Path, owner: str) -> Forgotten:
    """Remove the states of all namespaces that only this owner used, pinned ones too.

    Of a state that others use as well, the owner's name is taken away.

    Raises:
        CacheStoreError: the folder cannot be read or written.
    """
    n_states, file_bytes = 0, 0
    with ColdFolder(path) as folder:
        entries = [entry for entry in folder.all_entries() if owner in entry.state.owners]
        # A state is removed after those that continue it.
        for entry in sorted(entries, key=lambda entry: entry.state.end, reverse=True):
            state = entry.state
            if state.owners == {owner}:
                folder.delete(entry.namespace, state.key)
                n_states, file_bytes = n_states + 1, file_bytes + entry.file_bytes
            else:
                folder.note_use(
                    entry.namespace,
                    state.key,
                    used_at=state.used_at,
                    n_uses=state.n_uses,
                    owners=state.owners - {owner},
                )
        for namespace in {entry.namespace for entry in entries}:
            folder.forget_empty(namespace)
    return Forgotten(n_states, file_bytes)
