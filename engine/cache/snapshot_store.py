"""The states on disk: a row in an SQLite table and a file each, for all models and processes.

The table is the truth. A file holds a digest and the state as the backend gave it. The digest
covers the state's key too, which follows from model, settings and tokens, so no file passes for
another. A file takes its name within the transaction that writes its row: a process that is killed
leaves at most a file without a row, or a row without a file, and neither is ever used.
"""

import contextlib
import errno
import json
import math
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Self, TypeVar
from urllib.parse import quote

import psutil

from engine.cache.eviction import eviction_order
from engine.cache.namespace import Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState, state_key
from engine.errors import CacheStoreError, StateError
from engine.files import DRAFT_SUFFIX, drafted_file, drafting_process, open_file

SUFFIX = ".kv"
TABLE = "states.db"
SHAPE = 3
"""Rises with every change of the tables or of the files: those of another shape are not used."""
DIGEST_BYTES = 32
BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for another kvchat that is writing."""
PAGE_BYTES = 16384
"""Rows with some hundred tokens lie whole in such a page, so that a list reads them in one go."""
EARLIER_FOLDER = re.compile("[0-9a-f]{32}")
KINDS = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}
COLUMNS = {
    "key": str, "namespace": str, "parent": str, "line": str, "start": int, "end": int,
    "packed": bytes, "nbytes": int, "recompute_s": float, "owners": str, "is_pinned": int,
    "n_uses": int, "used_at": float, "origin": str,
}  # fmt: skip
"""Those of a state's row: its fields, owners as lines of text."""
NAMES = ", ".join(COLUMNS)
MARKS = ", ".join("?" * len(COLUMNS))
TABLES = f"""
CREATE TABLE namespaces (key TEXT PRIMARY KEY, model TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE states ({", ".join(f"{name} {KINDS[kind]} NOT NULL" for name, kind in COLUMNS.items())}
    , PRIMARY KEY (key));
CREATE INDEX states_by_namespace ON states (namespace);
CREATE INDEX states_by_size ON states (nbytes);
"""
BY_KEY = "DELETE FROM states WHERE key = ?"
OTHERS_FAULT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
"""What another table would not mend."""
NO_WRITING = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)
OF_THE_DISK = (*NO_WRITING, sqlite3.SQLITE_IOERR)
"""What says nothing of the table itself."""

TABLE_FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""What a table may raise; the second where SQLite's message quotes what is no text."""

Row = tuple[object, ...]
Found = TypeVar("Found")


class SnapshotStore:
    """The states of a folder, safe for threads and processes.

    A table that is damaged, or of another kvchat, is begun anew, and all states are computed
    again. A folder that cannot be written is read all the same.

    Raises:
        CacheStoreError: the folder is not there and cannot be made, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = path / TABLE
        self._lock = threading.RLock()
        self._notes: list[str] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_leftovers(path)
            self._remove_earlier_format()
            self._rows = self._opened()
        except (OSError, *TABLE_FAULTS) as error:
            raise store_error(error, path) from error
        self._inode = _inode(self._table)
        with contextlib.suppress(CacheStoreError, OSError):  # what is left over only takes room
            self._remove_strays()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection to the table; closing twice is harmless."""
        with self._lock:
            self._rows.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the states of all namespaces.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        found = self._ask(lambda rows: rows.execute("SELECT TOTAL(nbytes) FROM states").fetchone())
        return int(found[0])

    def take_notes(self) -> tuple[str, ...]:
        """What the user should know since this was asked last."""
        with self._lock:
            notes, self._notes = tuple(self._notes), []
        return notes

    def know(self, namespace: Namespace) -> None:
        """Remember a namespace, and where its model is.

        Raises:
            CacheStoreError: the table cannot be written.
        """
        self._change(lambda rows: _know(rows, namespace))

    def namespaces(self) -> list[Namespace]:
        """The namespaces; some may have no states.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        return self._ask(
            lambda rows: list(map(_namespace, rows.execute("SELECT * FROM namespaces")))
        )

    def states(self, namespace: str | None = None) -> list[StoredState]:
        """The states of a namespace, or of all, in any order.

        They may overlap, and their parents may be missing: the caller sorts that out.

        Raises:
            CacheStoreError: the table cannot be read.
        """
        those = "" if namespace is None else " WHERE namespace = ?"
        asked = () if namespace is None else (namespace,)
        choice = f"SELECT {NAMES} FROM states{those}"
        return self._ask(lambda rows: list(map(_state, rows.execute(choice, asked))))

    def write(self, namespace: Namespace, state: StoredState, payload: bytes | memoryview) -> None:
        """Put a state on disk, whole or not at all; one of the same key is replaced.

        Raises:
            CacheStoreError: the disk is full or the folder cannot be written; nothing was kept.
        """
        path = self.file_of(state.key)

        def enter(rows: sqlite3.Connection) -> None:
            _know(rows, namespace)
            rows.execute(f"INSERT OR REPLACE INTO states ({NAMES}) VALUES ({MARKS})", _row(state))
            if draft.exists():  # else an attempt before took its place
                draft.replace(path)

        try:
            with drafted_file(path, [_digest(state.key, payload), payload]) as draft:
                try:
                    self._change(enter)
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
                    raise self._unusable(state, "it has another size than it was written with")
                digest, payload = file.read(DIGEST_BYTES), file.readall()
        except FileNotFoundError as error:
            raise self._unusable(state, "its file is gone") from error
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
            self._change(lambda rows: self._drop(rows, keys))

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

        order = eviction_order(self.states(), may_go=may_go, is_useless=is_useless, now=now)
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
                [(_lines(state.owners - {owner}), state.key) for state in found],
            )

        if found:
            self._change(forget)
        return gone

    def save_uses(self, states: Iterable[StoredState]) -> None:
        """Keep when, how often and by whom states were used, for the next start.

        Raises:
            CacheStoreError: it could not be written down.
        """
        uses = [(each.used_at, each.n_uses, _lines(each.owners), each.key) for each in states]
        change = "UPDATE states SET used_at = ?, n_uses = ?, owners = ? WHERE key = ?"
        if uses:
            self._change(lambda rows: rows.executemany(change, uses))

    def pin(self, key: str, *, is_pinned: bool) -> None:
        """Protect a state from being pruned, or no longer.

        Raises:
            CacheStoreError: it could not be written down.
        """
        change = "UPDATE states SET is_pinned = ? WHERE key = ?"
        self._change(lambda rows: rows.execute(change, (is_pinned, key)))

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
        fate = "it was deleted, and its tokens are computed again"
        try:
            self.delete([state.key])
        except CacheStoreError as error:
            fate = f"it cannot be deleted: {error}"
        return StateError(f"the saved state {state.key} was not usable, {reason}: {fate}")

    def _remove_strays(self) -> None:
        """Remove files without a row, and rows without a file or of a namespace without states."""

        def remove(rows: sqlite3.Connection) -> None:
            # Only within the transaction do those of a kvchat that writes now agree.
            files, keys = self._files(), _keys(rows)
            for key in files - keys:
                with contextlib.suppress(OSError):
                    self.file_of(key).unlink(missing_ok=True)
            rows.executemany(BY_KEY, [(key,) for key in keys - files])
            rows.execute("DELETE FROM namespaces WHERE key NOT IN (SELECT namespace FROM states)")

        if self._ask(_keys) != self._files():
            self._change(remove)

    def _files(self) -> set[str]:
        return {each.name.removesuffix(SUFFIX) for each in self.path.glob(f"*{SUFFIX}")}

    def _remove_earlier_format(self) -> None:
        """Remove what kvchat kept as `index.db` and a folder for each namespace."""
        if not (self.path / "index.db").exists():
            return
        for each in self.path.iterdir():
            if each.name.startswith("index."):
                each.unlink(missing_ok=True)
            elif each.is_dir() and EARLIER_FOLDER.fullmatch(each.name):
                rmtree(each, ignore_errors=True)
        self._notes.append(
            "The states that an earlier version of kvchat kept on disk were deleted: their tokens "
            "are computed again"
        )

    def _ask(self, ask: Callable[[sqlite3.Connection], Found]) -> Found:
        """What the table answers; it is asked once more after it was opened again or begun anew."""
        with self._lock:
            try:
                if _inode(self._table) != self._inode:
                    self._reopen(self._opened)
                return ask(self._rows)
            except TABLE_FAULTS as error:
                code = primary_code(error)
                if code in OTHERS_FAULT:
                    raise store_error(error, self._table) from error
            try:
                self._reopen(self._opened if code in OF_THE_DISK else self._begun_anew)
                return ask(self._rows)
            except TABLE_FAULTS as error:
                raise store_error(error, self._table) from error

    def _reopen(self, opened: Callable[[], sqlite3.Connection]) -> None:
        self._rows.close()
        try:
            self._rows = opened()
            self._inode = _inode(self._table)
        except OSError as error:
            raise store_error(error, self._table) from error

    def _change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        self._ask(lambda rows: _in_transaction(rows, change))

    def _opened(self) -> sqlite3.Connection:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return _connected(self._table)
        except TABLE_FAULTS as error:
            code = primary_code(error)
            if code in NO_WRITING:
                return _bare(f"file:{quote(str(self._table))}?immutable=1")
            if code in OTHERS_FAULT:
                raise
            return self._begun_anew()

    def _begun_anew(self) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm"):
            self._table.with_name(TABLE + suffix).unlink(missing_ok=True)
        self._notes.append(
            f"{self._table} was damaged, or of another version of kvchat: all states on disk are "
            "computed again"
        )
        return _connected(self._table)


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


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to the table, which is made where there is none.

    Raises:
        sqlite3.Error: it cannot be opened, is damaged, or has another shape.
    """
    # Files beside it take their mode from it.
    with contextlib.suppress(FileExistsError, PermissionError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    rows = _bare(f"file:{quote(str(path))}")
    try:
        rows.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        rows.execute("PRAGMA journal_mode = WAL")
        rows.execute("PRAGMA synchronous = NORMAL")
        # Tokens are what a chat says: those of deleted states do not stay in free pages.
        rows.execute("PRAGMA secure_delete = ON")
        if _shape(rows) == 0:
            _in_transaction(rows, _make_tables)
        if _shape(rows) != SHAPE:
            raise sqlite3.DatabaseError(f"{path} has the shape {_shape(rows)}")
    except TABLE_FAULTS:
        rows.close()
        raise
    return rows


def _inode(path: Path) -> int | None:
    """The number of a file, which no other has while it is open; None where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _bare(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def _shape(rows: sqlite3.Connection) -> int:
    found: int = rows.execute("PRAGMA user_version").fetchone()[0]
    return found


def _make_tables(rows: sqlite3.Connection) -> None:
    if _shape(rows) == 0:  # another process may have been first
        for statement in TABLES.split(";"):
            rows.execute(statement)
        rows.execute(f"PRAGMA user_version = {SHAPE}")


def _in_transaction(
    rows: sqlite3.Connection, change: Callable[[sqlite3.Connection], object]
) -> None:
    rows.execute("BEGIN IMMEDIATE")
    try:
        change(rows)
        rows.execute("COMMIT")
    finally:
        if rows.in_transaction:
            rows.execute("ROLLBACK")


def _keys(rows: sqlite3.Connection) -> set[str]:
    return {key for (key,) in rows.execute("SELECT key FROM states")}


def _know(rows: sqlite3.Connection, namespace: Namespace) -> None:
    rows.execute(
        "INSERT INTO namespaces VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET "
        "model = ?2 WHERE model <> ?2",
        (namespace.key, _storable(namespace.model), json.dumps(namespace.fields)),
    )


def _namespace(row: Row) -> Namespace:
    try:
        key, model, text = row
        about = tuple((name, value) for name, value in json.loads(str(text)))
        return Namespace(str(key), os.fsdecode(model), about)  # type: ignore[arg-type]  # checked by it
    except (TypeError, ValueError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"a row is no namespace: {error}") from error


def _storable(path: str) -> str | bytes:
    """A path as SQLite can keep it: one that is no UTF-8 by its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path


def _row(state: StoredState) -> Row:
    about = {name: getattr(state, name) for name in COLUMNS}
    return tuple((about | {"owners": _lines(state.owners)}).values())


def _state(row: Row) -> StoredState:
    """The state of a row, which a damaged table may have made up."""
    if tuple(map(type, row)) != tuple(COLUMNS.values()):
        raise sqlite3.DatabaseError("a row is no state: its types are others")
    about = dict(zip(COLUMNS, row, strict=True))
    about["owners"] = frozenset(filter(None, str(about["owners"]).split("\n")))
    about["is_pinned"] = bool(about["is_pinned"])
    state = StoredState(**about)  # type: ignore[arg-type]  # their types were compared
    is_named = state.key == state_key(state.namespace, state.start, state.line)
    is_whole = len(state.packed) == (state.end - state.start) * TOKEN_BYTES > 0
    if not (is_named and is_whole and min(state.start, state.nbytes, state.n_uses) >= 0):
        raise sqlite3.DatabaseError(f"a row is no state: {state.key!r} says what cannot be")
    return state


def _lines(owners: frozenset[str]) -> str:
    return "\n".join(sorted(owners))


def _digest(key: str, payload: bytes | memoryview) -> bytes:
    digest = sha256(f"kvchat state {SHAPE} {key}\n".encode())
    digest.update(payload)
    return digest.digest()


TURN_OFF = 'or set cold = "0" under [cache] in the settings to keep nothing on disk'
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)


def store_error(error: Exception, path: Path) -> CacheStoreError:
    """The error that says what to do about `error` on a file or folder of the cache."""
    code = primary_code(error)
    number = error.errno if isinstance(error, OSError) else None
    if code == sqlite3.SQLITE_FULL or number in NO_SPACE:
        return CacheStoreError(
            f"no space is left for {path}: free some, make room with `kvchat cache prune`, "
            f"{TURN_OFF}"
        )
    if code in NO_WRITING or number in NO_RIGHT:
        return CacheStoreError(
            f"{path} cannot be written: give yourself the right to write its folder, {TURN_OFF}"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CacheStoreError(f"{path} has been busy for seconds: another kvchat writes it")
    reason = error.strerror if isinstance(error, OSError) else None
    return CacheStoreError(f"{path}: {reason or error}: check the disk, {TURN_OFF}")


def primary_code(error: Exception) -> int | None:
    """SQLite's result code; other errors, and those of Python's module itself, carry none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
