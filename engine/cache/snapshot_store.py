"""States on disk: one SQLite row and one file each, for all models and processes.

A file holds a digest and the backend's state. The digest also covers the state's key, which is
derived from model, settings and tokens, so files cannot be confused. A file is renamed into place
within the transaction that writes its row: a killed process leaves at most a file without a row
or a row without a file, and neither is used.
"""

import contextlib
import math
import os
import re
import sqlite3
from collections.abc import Collection, Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Self

import psutil

from engine.cache.eviction import eviction_order
from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState
from engine.cache.state_table import (
    NAMES,
    NAMES_WITHOUT_TOKENS,
    SCHEMA_VERSION,
    SUFFIX,
    StateTable,
    enter_namespace,
    enter_state,
    keys_in,
    namespace_of_row,
    state_of_row,
    store_error,
    text_of_owners,
)
from engine.errors import CacheStoreError, StateError
from engine.files import DRAFT_SUFFIX, drafted_file, drafting_process, open_file

DIGEST_BYTES = 32
EARLIER_FOLDER = re.compile("[0-9a-f]{32}")
BY_KEY = "DELETE FROM states WHERE key = ?"


class SnapshotStore:
    """The states of a folder, safe for threads and processes.

    A table that is damaged or has another schema is recreated and all states are deleted. A
    read-only folder can be read.

    Args:
        path: The folder.
        may_lock: See `StateTable`.

    Raises:
        CacheStoreError: the folder cannot be created or read.
    """

    def __init__(self, path: Path, *, may_lock: bool = False) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_leftovers(path)
            notes = self._remove_earlier_format()
        except OSError as error:
            raise store_error(error, path) from error
        self._table = StateTable(path, may_lock=may_lock)
        self._table.notes += notes
        with contextlib.suppress(CacheStoreError, OSError):  # leftovers only take space
            self._remove_strays()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the table; a second call does nothing."""
        self._table.close()

    @property
    def nbytes(self) -> int:
        """Total size of the states of all namespaces, in bytes.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        found = self._table.ask(
            lambda rows: rows.execute("SELECT TOTAL(nbytes) FROM states").fetchone()
        )
        return int(found[0])

    def take_notes(self) -> tuple[str, ...]:
        """Return and clear the messages for the user."""
        notes, self._table.notes = tuple(self._table.notes), []
        return notes

    def know(self, namespace: Namespace) -> None:
        """Save a namespace and the path of its model.

        Raises:
            CacheStoreError: the table cannot be written.
        """
        self._table.change(lambda rows: enter_namespace(rows, namespace))

    def namespaces(self) -> list[Namespace]:
        """All namespaces; some may have no states.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        return self._table.ask(
            lambda rows: list(map(namespace_of_row, rows.execute("SELECT * FROM namespaces")))
        )

    def states(self, namespace: str | None = None, *, has_tokens: bool = True) -> list[StoredState]:
        """The states of a namespace, or of all, in any order; faster without their tokens.

        States may overlap, and their parents may be missing: the caller handles that.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        those = "" if namespace is None else " WHERE namespace = ?"
        asked = () if namespace is None else (namespace,)
        names = NAMES if has_tokens else NAMES_WITHOUT_TOKENS
        choice = f"SELECT {names} FROM states{those}"
        read = partial(state_of_row, has_tokens=has_tokens)
        return self._table.ask(lambda rows: list(map(read, rows.execute(choice, asked))))

    def write(self, namespace: Namespace, state: StoredState, payload: bytes | memoryview) -> None:
        """Write a state atomically, replacing one with the same key.

        Raises:
            CacheStoreError: the disk is full or the folder cannot be written; nothing was saved.
        """
        path = self.file_of(state.key)

        def enter(rows: sqlite3.Connection) -> None:
            enter_namespace(rows, namespace)
            enter_state(rows, state)
            if draft.exists():  # otherwise an earlier attempt has renamed it
                draft.replace(path)

        try:
            with drafted_file(path, [_digest(state.key, payload), payload]) as draft:
                try:
                    self._table.change(enter)
                except CacheStoreError:
                    if not draft.exists():
                        path.unlink(missing_ok=True)  # it was renamed, but its row was not written
                    raise
        except OSError as error:
            raise store_error(error, path) from error

    def read(self, state: StoredState) -> bytes:
        """The payload of a state; waits for no other thread.

        Raises:
            StateError: the file is gone or damaged; the state was removed.
            CacheStoreError: the file exists and cannot be read.
        """
        path = self.file_of(state.key)
        try:
            with open_file(path) as file:
                if os.fstat(file.fileno()).st_size != state.nbytes + DIGEST_BYTES:
                    raise self._unusable(state, "its size has changed")
                digest, payload = file.read(DIGEST_BYTES), file.readall()
        except FileNotFoundError as error:
            raise self._unusable(state, "its file is missing") from error
        except OSError as error:
            raise store_error(error, path) from error
        if digest != _digest(state.key, payload):
            raise self._unusable(state, "it is damaged: the checksum differs")
        return payload

    def delete(self, keys: Collection[str]) -> None:
        """Delete states; unknown keys are ignored.

        Raises:
            CacheStoreError: the folder cannot be written.
        """
        if keys:
            self._table.change(lambda rows: self._drop(rows, keys))

    def prune(
        self,
        nbytes: int,
        *,
        now: float,
        used_before: float = math.inf,
        in_use: Collection[str] = (),
        superseded: Collection[str] = (),
    ) -> list[StoredState]:
        """Delete the states of lowest worth until `nbytes` are free; return them without tokens.

        Args:
            nbytes: Bytes to free.
            now: Seconds since the epoch.
            used_before: Delete only states last used before this time.
            in_use: Keys of states to protect; pinned ones are protected too.
            superseded: Keys of states to delete first; so are those whose model file is gone.

        Raises:
            CacheStoreError: the folder cannot be read or written.
        """

        def may_go(state: StoredState) -> bool:
            is_free = not state.is_pinned and state.key not in in_use
            return is_free and state.used_at < used_before

        orphaned = {each.key for each in self.namespaces() if each.is_orphaned}

        def is_useless(state: StoredState) -> bool:
            return state.namespace in orphaned or state.key in superseded

        known = self.states(has_tokens=False)
        order = eviction_order(known, may_go=may_go, is_useless=is_useless, now=now)
        gone: list[StoredState] = []
        n_left = nbytes
        for state in order:
            if n_left <= 0:
                break
            gone.append(state)
            n_left -= state.nbytes
        self.delete([state.key for state in gone])
        return gone

    def forget(self, owner: str) -> list[StoredState]:
        """Delete and return the states, pinned or not, that only this owner used.

        The owner is removed from states that others use as well.

        Raises:
            CacheStoreError: the folder cannot be read or written.
        """
        found = [state for state in self.states() if owner in state.owners]
        gone = [state for state in found if state.owners == {owner}]

        def forget(rows: sqlite3.Connection) -> None:
            self._drop(rows, [state.key for state in gone])
            rows.executemany(
                "UPDATE states SET owners = ? WHERE key = ?",
                [(text_of_owners(state.owners - {owner}), state.key) for state in found],
            )

        if found:
            self._table.change(forget)
        return gone

    def save_uses(self, states: Iterable[StoredState]) -> None:
        """Save last use, number of uses and owners of states.

        Raises:
            CacheStoreError: the table cannot be written.
        """
        uses = [
            (each.used_at, each.n_uses, text_of_owners(each.owners), each.key) for each in states
        ]
        change = "UPDATE states SET used_at = ?, n_uses = ?, owners = ? WHERE key = ?"
        if uses:
            self._table.change(lambda rows: rows.executemany(change, uses))

    def pin(self, key: str, *, is_pinned: bool) -> None:
        """Pin or unpin a state.

        Raises:
            CacheStoreError: the table cannot be written.
        """
        change = "UPDATE states SET is_pinned = ? WHERE key = ?"
        self._table.change(lambda rows: rows.execute(change, (is_pinned, key)))

    def file_of(self, key: str) -> Path:
        """Path of a state's file."""
        return self.path / f"{key}{SUFFIX}"

    def _drop(self, rows: sqlite3.Connection, keys: Collection[str]) -> None:
        """Delete files before rows: on a full disk that frees the space to change the table."""
        for key in keys:
            path = self.file_of(key)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise store_error(error, path) from error
        rows.executemany(BY_KEY, [(key,) for key in keys])

    def _unusable(self, state: StoredState, reason: str) -> StateError:
        """Delete an unusable state and return the error that reports it."""
        fate = "it was deleted, and its tokens will be recomputed"
        try:
            self.delete([state.key])
        except CacheStoreError as error:
            fate = f"it cannot be deleted: {error}"
        return StateError(f"the saved state {state.key} could not be used ({reason}): {fate}")

    def _remove_strays(self) -> None:
        """Remove files without a row, and rows without a file or of a namespace without states."""

        def remove(rows: sqlite3.Connection) -> None:
            # Outside a transaction, another process may have renamed a file but not added its row.
            files, keys = self._files(), keys_in(rows)
            for key in files - keys:
                with contextlib.suppress(OSError):
                    self.file_of(key).unlink(missing_ok=True)
            rows.executemany(BY_KEY, [(key,) for key in keys - files])
            rows.execute("DELETE FROM namespaces WHERE key NOT IN (SELECT namespace FROM states)")

        if self._table.ask(keys_in) != self._files():
            self._table.change(remove)

    def _files(self) -> set[str]:
        return {each.name.removesuffix(SUFFIX) for each in self.path.glob(f"*{SUFFIX}")}

    def _remove_earlier_format(self) -> list[str]:
        """Delete the earlier format (`index.db`, a folder per namespace); return messages."""
        if not (self.path / "index.db").exists():
            return []
        for each in self.path.iterdir():
            if each.name.startswith("index."):
                each.unlink(missing_ok=True)
            elif each.is_dir() and EARLIER_FOLDER.fullmatch(each.name):
                rmtree(each, ignore_errors=True)
        return [
            "States saved by an earlier version of kvchat were deleted from disk: their "
            "tokens will be recomputed"
        ]


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of processes that no longer run.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as found:
        drafts = [Path(entry.path) for entry in found if entry.name.endswith(DRAFT_SUFFIX)]
    for draft in drafts:
        process = drafting_process(draft)
        if process is not None and not _is_writing(process, draft):
            with contextlib.suppress(OSError):  # it only takes space
                draft.unlink(missing_ok=True)


def _is_writing(process: int, draft: Path) -> bool:
    """Whether a process may be writing a file: it runs, and was started before the file was."""
    try:
        began = psutil.Process(process).create_time()
        return began <= draft.stat().st_mtime + 1.0
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except psutil.AccessDenied:
        return True


def _digest(key: str, payload: bytes | memoryview) -> bytes:
    digest = sha256(f"kvchat state {SCHEMA_VERSION} {key}\n".encode())
    digest.update(payload)
    return digest.digest()
