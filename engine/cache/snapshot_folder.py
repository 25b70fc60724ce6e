"""The folder of states on disk: several processes read, write and delete in it at once."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psutil

from engine.cache.disk_index import ColdEntry, ColdIndex, primary_code, store_error
from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState, line_digest, state_key
from engine.cache.snapshot_file import (
    FileFacts,
    read_facts,
    read_snapshot,
    write_snapshot,
)
from engine.errors import CacheStoreError, StateError
from engine.files import DRAFT_SUFFIX, drafting_process


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


SUFFIX = ".kv"
PINNED_MODE = 0o400
USUAL_MODE = 0o600
OTHERS_FAULT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
"""What a new index would not mend."""

Found = TypeVar("Found")


class ColdFolder:
    """Snapshots as files `NAMESPACE/KEY.kv` with an index beside; safe for threads and processes.

    The files are the truth: one without a row in the index is taken in, a row without a file
    dropped, and an index that cannot be read is made anew. A pinned file is read-only, so that a
    new index knows it.

    Raises:
        CacheStoreError: the folder is not there and cannot be made, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._damaged: list[str] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders = self._folders()
        except OSError as error:
            raise store_error(error, path) from error
        for folder in folders:
            # What cannot be removed only takes room; a folder that cannot be read says so later.
            with contextlib.suppress(OSError):
                remove_leftovers(folder)
        self._index = ColdIndex(path)
        self._nbytes = 0

    def __enter__(self) -> "ColdFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the index; closing twice is harmless."""
        with self._lock:
            self._index.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the files of all namespaces, as the index knows them."""
        # What was known last is near enough where the index is busy or damaged.
        with contextlib.suppress(CacheStoreError):
            self._nbytes = self._indexed(ColdIndex.nbytes)
        return self._nbytes

    @property
    def index_problem(self) -> str | None:
        """Why the index is kept in main memory only; None where it is on disk."""
        if self._index.is_kept:
            return None
        return (
            f"{self.path / 'index.db'} cannot be written, or is damaged and in use: how states are "
            "used now is forgotten at the end, the states themselves are not"
        )

    def take_damaged(self) -> tuple[str, ...]:
        """What was removed because it was damaged, since this was asked last."""
        with self._lock:
            damaged, self._damaged = tuple(self._damaged), []
        return damaged

    def know(self, namespace: Namespace) -> None:
        """Remember a namespace, and where its model is.

        Raises:
            CacheStoreError: the index cannot be written.
        """
        self._indexed(lambda index: index.know(namespace))

    def namespaces(self) -> tuple[Namespace, ...]:
        """The namespaces whose states were listed or written here; some may have none left.

        Raises:
            CacheStoreError: the index is busy.
        """
        return tuple(self._indexed(ColdIndex.namespaces))

    def all_entries(self, *, but: str = "") -> list[ColdEntry]:
        """The states of all namespaces.

        Args:
            but: Key of a namespace that is left out.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        try:
            folders = self._folders()
        except OSError as error:
            raise store_error(error, self.path) from error
        names = [folder.name for folder in folders if folder.name != but]
        return [entry for name in names for entry in self.entries(name)]

    def entries(self, namespace: str) -> list[ColdEntry]:
        """The states of one namespace, after a comparison of index and files.

        Raises:
            CacheStoreError: the folder cannot be read.
        """
        rows = self._indexed(lambda index: index.entries(namespace))
        try:
            names = self._names(namespace)
        except OSError as error:
            raise store_error(error, self.path / namespace) from error
        known = {entry.state.key for entry in rows}
        if gone := known - names:
            self._indexed(lambda index: index.drop(namespace, sorted(gone)))
            rows = [entry for entry in rows if entry.state.key not in gone]
        found = [entry for key in names - known if (entry := self._taken_in(namespace, key))]
        if found:
            self._indexed(lambda index: index.adopt(found))
        return rows + found

    def write(self, namespace: Namespace, state: StoredState, payload: bytes | memoryview) -> int:
        """Put a state on disk, whole or not at all, and give the bytes of its file.

        Raises:
            CacheStoreError: the disk is full or the folder cannot be written; nothing was kept.
            StateError: the state is larger than a file may be.
        """
        path = self.file_of(namespace.key, state.key)
        write = partial(write_snapshot, path, namespace, state, payload)
        try:
            try:
                nbytes = write()
            except (FileNotFoundError, FileExistsError):
                nbytes = write()  # another kvchat removed the namespace's folder as an empty one
            if state.is_pinned:
                path.chmod(PINNED_MODE)
        except OSError as error:
            raise store_error(error, path) from error
        entry = ColdEntry(namespace.key, state, nbytes)
        self._indexed(lambda index: index.put(namespace, entry))
        return nbytes

    def read(self, namespace: str, state: StoredState) -> bytes:
        """The payload of a state.

        Raises:
            StateError: the file is gone, damaged, or stands for other tokens; it was removed.
            CacheStoreError: the file is there and cannot be read.
        """
        found, payload = self._read(namespace, state.key)
        told = (found.key, found.parent, found.line, found.start, found.end, found.packed)
        asked = (state.key, state.parent, state.line, state.start, state.end, state.packed)
        if told != asked:
            raise self._removed(namespace, state.key, "it stands for other tokens")
        return payload

    def verify(self, namespace: str, key: str) -> None:
        """Read a state and check all of it.

        Raises:
            StateError: the file is gone or was damaged; it was removed.
            CacheStoreError: the file is there and cannot be read.
        """
        self._read(namespace, key)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a state; one that is not there is no error.

        Raises:
            CacheStoreError: the folder cannot be written.
        """
        path = self.file_of(namespace, key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise store_error(error, path) from error
        self._indexed(lambda index: index.drop(namespace, [key]))

    def forget_empty(self, namespace: str) -> None:
        """Remove the folder of a namespace without states, if it is one."""
        try:
            (self.path / namespace).rmdir()
        except OSError:
            return  # it has files, or another kvchat was first
        self._indexed(lambda index: index.forget_namespace(namespace))

    def note_use(
        self, namespace: str, key: str, *, used_at: float, n_uses: int, owners: frozenset[str]
    ) -> None:
        """Keep when, how often and by whom a state was used, for the next start.

        Raises:
            CacheStoreError: it could not be written down.
        """
        self._indexed(
            lambda index: index.note_use(
                namespace, key, used_at=used_at, n_uses=n_uses, owners=owners
            )
        )

    def pin(self, namespace: str, key: str, *, is_pinned: bool) -> None:
        """Protect a state from being pruned, or no longer.

        Raises:
            CacheStoreError: it could not be written down.
        """
        path = self.file_of(namespace, key)
        try:
            path.chmod(PINNED_MODE if is_pinned else USUAL_MODE)
        except OSError as error:
            raise store_error(error, path) from error
        self._indexed(lambda index: index.pin(namespace, key, is_pinned=is_pinned))

    def file_of(self, namespace: str, key: str) -> Path:
        """The file of a state."""
        return self.path / namespace / f"{key}{SUFFIX}"

    def _folders(self) -> list[Path]:
        with os.scandir(self.path) as found:
            return sorted(Path(entry.path) for entry in found if entry.is_dir())

    def _names(self, namespace: str) -> set[str]:
        try:
            with os.scandir(self.path / namespace) as found:
                names = [entry.name for entry in found]
        except FileNotFoundError:
            return set()
        return {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)}

    def _taken_in(self, namespace: str, key: str) -> ColdEntry | None:
        """What a file without a row says of itself; a damaged one is removed."""
        try:
            facts = read_facts(self.file_of(namespace, key))
            _check_place(facts, namespace, key)
        except StateError as error:
            self._removed(namespace, key, str(error))
            return None
        except OSError:
            return None  # it went away meanwhile, or is not ours to read: nothing to list
        self.know(facts.header.namespace)
        return ColdEntry(namespace, facts.state, facts.nbytes)

    def _read(self, namespace: str, key: str) -> tuple[StoredState, bytes]:
        path = self.file_of(namespace, key)
        try:
            facts, payload = read_snapshot(path)
            _check_place(facts, namespace, key)
        except FileNotFoundError as error:
            self._indexed(lambda index: index.drop(namespace, [key]))
            raise StateError(f"the saved state {key} is gone: {path} was deleted") from error
        except StateError as error:
            raise self._removed(namespace, key, str(error)) from error
        except OSError as error:
            raise store_error(error, path) from error
        return facts.state, payload

    def _removed(self, namespace: str, key: str, reason: str) -> StateError:
        """Remove a damaged file, note it, and give the error that says so."""
        path = self.file_of(namespace, key)
        try:
            path.unlink(missing_ok=True)
            fate = "it was deleted, and its tokens are computed again"
        except OSError as error:
            fate = f"it cannot be deleted ({error.strerror})"
        text = f"the saved state {key} was not usable, {reason}: {fate}"
        with self._lock:
            self._damaged.append(text)
        # A row that stays is dropped when the namespace is listed next.
        with contextlib.suppress(CacheStoreError):
            self._indexed(lambda index: index.drop(namespace, [key]))
        return StateError(text)

    def _indexed(self, ask: Callable[[ColdIndex], Found]) -> Found:
        """Ask the index, and once more after it was mended."""
        with self._lock:
            try:
                return ask(self._index)
            except sqlite3.Error as error:
                if primary_code(error) in OTHERS_FAULT:
                    raise store_error(error, self.path / "index.db") from error
            self._index.reopen()
            try:
                self._take_in_all()
                return ask(self._index)
            except (OSError, sqlite3.Error) as error:
                raise store_error(error, self.path / "index.db") from error

    def _take_in_all(self) -> None:
        for folder in self._folders():
            known = {entry.state.key for entry in self._index.entries(folder.name)}
            for key in self._names(folder.name) - known:
                try:
                    facts = read_facts(self.file_of(folder.name, key))
                    _check_place(facts, folder.name, key)
                except (OSError, StateError):
                    continue  # reading it says why; here all others are taken in
                self._index.know(facts.header.namespace)
                self._index.adopt([ColdEntry(folder.name, facts.state, facts.nbytes)])


def _check_place(facts: FileFacts, namespace: str, key: str) -> None:
    """See to it that a file is where it was written.

    Raises:
        StateError: it belongs to another namespace or key.
    """
    own, state = facts.header.namespace.key, facts.header.state
    if own != namespace:
        raise StateError(f"it belongs to other settings or another model ({own})")
    if state.key != key or state.key != state_key(own, state.start, state.line):
        raise StateError(f"it is the state {state.key}")
    if state.start == 0 and line_digest(state.packed) != state.line:
        raise StateError("its tokens are not those of its name")
