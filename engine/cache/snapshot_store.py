"""The states on disk: a row in an SQLite table and a file each, for all models and processes.

The table is the truth. A file holds a digest and the state as the backend gave it. The digest
covers the state's key too, which follows from model, settings and tokens, so no file passes for
another. A file takes its name within the transaction that writes its row: a process that is killed
leaves at most a file without a row, or a row without a file, and neither is ever used.
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
    SHAPE,
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

    A table that is damaged, or of another kvchat, is begun anew, and all states are computed
    again. A folder that cannot be written is read all the same.

    Args:
        path: The folder.
        may_lock: As of `StateTable`.

    Raises:
        CacheStoreError: the folder is not there and cannot be made, or cannot be read.
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
        with contextlib.suppress(CacheStoreError, OSError):  # what is left over only takes room
            self._remove_strays()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection to the table; closing twice is harmless."""
        self._table.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the states of all namespaces.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        found = self._table.ask(
            lambda rows: rows.execute("SELECT TOTAL(nbytes) FROM states").fetchone()
        )
        return int(found[0])

    def take_notes(self) -> tuple[str, ...]:
        """What the user should know since this was asked last."""
        notes, self._table.notes = tuple(self._table.notes), []
        return notes

    def know(self, namespace: Namespace) -> None:
        """Remember a namespace, and where its model is.

        Raises:
            CacheStoreError: the table cannot be written.
        """
        self._table.change(lambda rows: enter_namespace(rows, namespace))

    def namespaces(self) -> list[Namespace]:
        """The namespaces; some may have no states.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        return self._table.ask(
            lambda rows: list(map(namespace_of_row, rows.execute("SELECT * FROM namespaces")))
        )

    def states(self, namespace: str | None = None, *, has_tokens: bool = True) -> list[StoredState]:
        """The states of a namespace, or of all, in any order; without their tokens in less time.

        They may overlap, and their parents may be missing: the caller sorts that out.

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
        """Put a state on disk, whole or not at all; one of the same key is replaced.

        Raises:
            CacheStoreError: the disk is full or the folder cannot be written; nothing was kept.
        """
        path = self.file_of(state.key)

        def enter(rows: sqlite3.Connection) -> None:
            enter_namespace(rows, namespace)
            enter_state(rows, state)
            if draft.exists():  # else an attempt before took its place
                draft.replace(path)

        try:
            with drafted_file(path, [_digest(state.key, payload), payload]) as draft:
                try:
                    self._table.change(enter)
                except CacheStoreError:
                    if not draft.exists():
                        path.unlink(missing_ok=True)  # it took its name, and its row was refused
                    raise
        except OSError as error:
            raise store_error(error, path) from error

    def read(self, state: StoredState) -> bytes:
        """The payload of a state; no other thread is waited for.

        Raises:
            StateError: the file is gone or damaged; the state was removed.
            CacheStoreError: the file is there and cannot be read.
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
        """Remove states; one that is not there is no error.

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
        """Delete states of least worth until so many bytes are free; gives those that went.

        These have no tokens.

        Args:
            nbytes: Bytes to free.
            now: Seconds since the epoch.
            used_before: Only states that were last used before this moment go.
            in_use: Keys of states that stay, as pinned ones do.
            superseded: Keys of states that go first, as those of models that are gone do.

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
        """Delete the states that only this owner used, pinned ones too; gives those that went.

        Of a state that others use as well, the owner's name is taken away.

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
        """Keep when, how often and by whom states were used, for the next start.

        Raises:
            CacheStoreError: it could not be written down.
        """
        uses = [
            (each.used_at, each.n_uses, text_of_owners(each.owners), each.key) for each in states
        ]
        change = "UPDATE states SET used_at = ?, n_uses = ?, owners = ? WHERE key = ?"
        if uses:
            self._table.change(lambda rows: rows.executemany(change, uses))

    def pin(self, key: str, *, is_pinned: bool) -> None:
        """Protect a state from being pruned, or no longer.

        Raises:
            CacheStoreError: it could not be written down.
        """
        change = "UPDATE states SET is_pinned = ? WHERE key = ?"
        self._table.change(lambda rows: rows.execute(change, (is_pinned, key)))

    def file_of(self, key: str) -> Path:
        """The file of a state."""
        return self.path / f"{key}{SUFFIX}"

    def _drop(self, rows: sqlite3.Connection, keys: Collection[str]) -> None:
        """Files go first: a disk that is full has room for the rest then."""
        for key in keys:
            path = self.file_of(key)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise store_error(error, path) from error
        rows.executemany(BY_KEY, [(key,) for key in keys])

    def _unusable(self, state: StoredState, reason: str) -> StateError:
        """Remove a state that cannot be used; the error that says so."""
        fate = "it was deleted, and its tokens will be recomputed"
        try:
            self.delete([state.key])
        except CacheStoreError as error:
            fate = f"it cannot be deleted: {error}"
        return StateError(f"the saved state {state.key} could not be used ({reason}): {fate}")

    def _remove_strays(self) -> None:
        """Remove files without a row, and rows without a file or of a namespace without states."""

        def remove(rows: sqlite3.Connection) -> None:
            # Only within the transaction do those of a kvchat that writes now agree.
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
        """Remove what kvchat kept as `index.db` and a folder for each namespace; what to say."""
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
    """Remove the drafts of processes that are gone, and leave those of living ones.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as found:
        drafts = [Path(entry.path) for entry in found if entry.name.endswith(DRAFT_SUFFIX)]
    for draft in drafts:
        process = drafting_process(draft)
        if process is not None and not _is_writing(process, draft):
            with contextlib.suppress(OSError):  # it only takes room
                draft.unlink(missing_ok=True)


def _is_writing(process: int, draft: Path) -> bool:
    """Whether a process may be writing a draft: it lives, and began before the draft did."""
    try:
        began = psutil.Process(process).create_time()
        return began <= draft.stat().st_mtime + 1.0
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except psutil.AccessDenied:
        return True


def _digest(key: str, payload: bytes | memoryview) -> bytes:
    digest = sha256(f"kvchat state {SHAPE} {key}\n".encode())
    digest.update(payload)
    return digest.digest()
