"""The SQLite table of cached states: its connection, schema and rows."""

import contextlib
import errno
import json
import math
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from engine.cache.namespace import Namespace
from engine.cache.radix import TOKEN_BYTES, StoredState, state_key
from engine.errors import CacheStoreError

TABLE = "states.db"
SUFFIX = ".kv"
"""Suffix of state files."""
SCHEMA_VERSION = 4
"""Version of the tables and the files; other versions are deleted."""
BUSY_TIMEOUT_S = 5.0
"""Time a statement waits for another process that is writing."""
PAGE_BYTES = 16384
"""A row with a few hundred tokens fits in one page, so a list needs no overflow pages."""
KINDS = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}
COLUMNS = {
    "key": str, "namespace": str, "parent": str, "line": str, "start": int, "end": int,
    "nbytes": int, "recompute_s": float, "owners": str, "is_pinned": int, "n_uses": int,
    "used_at": float, "packed": bytes,
}  # fmt: skip
"""Columns of a state's row; owners are newline-separated. The tokens are last, so that the other
columns can be read without them."""
NAMES = ", ".join(COLUMNS)
NAMES_WITHOUT_TOKENS = NAMES.replace("packed", "x'' AS packed")
MARKS = ", ".join("?" * len(COLUMNS))
TABLES = f"""
CREATE TABLE namespaces (key TEXT PRIMARY KEY, model TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE states ({", ".join(f"{name} {KINDS[kind]} NOT NULL" for name, kind in COLUMNS.items())}
    , PRIMARY KEY (key));
CREATE INDEX states_by_namespace ON states (namespace);
CREATE INDEX states_by_size ON states (nbytes);
"""
STATEMENTS = {statement.strip() for statement in TABLES.split(";") if statement.strip()}
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""Result codes of a damaged table, or of one with unexpected tables or columns."""
OTHERS_FAULT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
"""Result codes that reopening the table would not fix."""
NO_SHARED_MEMORY = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
"""Result codes if the shared-memory file (`-shm`) cannot be created on a full disk."""
NO_WRITING = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)

TABLE_FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of a table; UnicodeDecodeError if SQLite's message quotes bytes that are not UTF-8."""

Row = tuple[object, ...]
Found = TypeVar("Found")


class StateTable:
    """The connection to a folder's table, for several threads and processes.

    A table that is damaged or has another version is recreated; a read-only folder is read.
    Other processes notice a recreated table by its inode.

    Args:
        folder: The table's folder.
        may_lock: Whether to lock the table exclusively if a full disk has no space for the
            shared-memory file: for short commands that free space.

    Raises:
        CacheStoreError: the table cannot be opened or created.
    """

    def __init__(self, folder: Path, *, may_lock: bool = False) -> None:
        self._path = folder / TABLE
        self._may_lock = may_lock
        self._lock = threading.RLock()
        self.notes: list[str] = []
        """Messages for the user."""
        try:
            self._rows = self._opened()
        except (OSError, *TABLE_FAULTS) as error:
            raise store_error(error, self._path) from error
        self._inode = _inode(self._path)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        with self._lock:
            self._rows.close()

    def ask(self, ask: Callable[[sqlite3.Connection], Found]) -> Found:
        """Run `ask` on the connection; after an error reopen or recreate the table and retry once.

        Raises:
            CacheStoreError: it cannot be read or written.
        """
        with self._lock:
            try:
                if _inode(self._path) != self._inode:
                    self._reopen(self._opened)
                return ask(self._rows)
            except TABLE_FAULTS as error:
                if primary_code(error) in OTHERS_FAULT:
                    raise store_error(error, self._path) from error
                is_damaged = _is_damage(error)
            try:
                self._reopen(self._recreated if is_damaged else self._opened)
                return ask(self._rows)
            except TABLE_FAULTS as error:
                raise store_error(error, self._path) from error

    def _reopen(self, opened: Callable[[], sqlite3.Connection]) -> None:
        self._rows.close()
        try:
            self._rows = opened()
            self._inode = _inode(self._path)
        except OSError as error:
            raise store_error(error, self._path) from error

    def change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        """Run `change` in a transaction; retries and raises as `ask` does."""
        self.ask(lambda rows: in_transaction(rows, change))

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return _connected(self._path)
        except TABLE_FAULTS as error:
            if primary_code(error) in NO_WRITING:
                return _bare(f"{_uri(self._path)}?immutable=1")
            if self._may_lock and primary_code(error) in NO_SHARED_MEMORY:
                return _connected(self._path, is_locked=True)
            if not _is_damage(error):
                raise
            return self._recreated()

    def _recreated(self) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(TABLE + suffix).unlink(missing_ok=True)
        for state in self._path.parent.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                state.unlink(missing_ok=True)
        self.notes.append(
            f"{self._path} was damaged or written by another version of kvchat: all states "
            "on disk were deleted"
        )
        return _connected(self._path)


def _uri(path: Path) -> str:
    return f"file:{quote(os.fsencode(path))}"


def _connected(path: Path, *, is_locked: bool = False) -> sqlite3.Connection:
    """A connection to the table, which is created if missing.

    Args:
        path: The table's path.
        is_locked: Whether to lock other processes out, which needs no shared-memory file.

    Raises:
        sqlite3.Error: it cannot be opened, is damaged, or has another version.
    """
    # SQLite gives the -wal and -shm files the mode of the table.
    with contextlib.suppress(FileExistsError, PermissionError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    rows = _bare(_uri(path))
    try:
        if is_locked:
            rows.execute("PRAGMA locking_mode = EXCLUSIVE")
        rows.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        rows.execute("PRAGMA journal_mode = WAL")
        rows.execute("PRAGMA synchronous = NORMAL")
        # Tokens are conversation text: overwrite those of deleted states.
        rows.execute("PRAGMA secure_delete = ON")
        if _version(rows) == 0:
            in_transaction(rows, _make_tables)
        if _version(rows) != SCHEMA_VERSION or _statements(rows) != STATEMENTS:
            raise sqlite3.DatabaseError(f"{path} has version {_version(rows)}")
    except TABLE_FAULTS:
        rows.close()
        raise
    return rows


def _inode(path: Path) -> int | None:
    """The inode of a file; None if there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _bare(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def _version(rows: sqlite3.Connection) -> int:
    found: int = rows.execute("PRAGMA user_version").fetchone()[0]
    return found


def _statements(rows: sqlite3.Connection) -> set[str]:
    """The SQL of the schema; an unexpected view or trigger could run endlessly."""
    found = rows.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {str(statement) for (statement,) in found}


def _make_tables(rows: sqlite3.Connection) -> None:
    if _version(rows) == 0:  # another process may have been first
        for statement in TABLES.split(";"):
            rows.execute(statement.strip())
        rows.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def in_transaction(
    rows: sqlite3.Connection, change: Callable[[sqlite3.Connection], object]
) -> None:
    """Run a change in an immediate transaction; roll back on error."""
    rows.execute("BEGIN IMMEDIATE")
    try:
        change(rows)
        rows.execute("COMMIT")
    finally:
        if rows.in_transaction:
            rows.execute("ROLLBACK")


def keys_in(rows: sqlite3.Connection) -> set[str]:
    """Keys of all states."""
    return {key for (key,) in rows.execute("SELECT key FROM states")}


def enter_namespace(rows: sqlite3.Connection, namespace: Namespace) -> None:
    """Insert a namespace, or update the path of its model."""
    rows.execute(
        "INSERT INTO namespaces VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET "
        "model = ?2 WHERE model <> ?2",
        (namespace.key, _storable(namespace.model), json.dumps(namespace.fields)),
    )


def namespace_of_row(row: Row) -> Namespace:
    """The namespace of a row; raises `sqlite3.DatabaseError` if the row is damaged."""
    try:
        key, model, text = row
        about = tuple((name, value) for name, value in json.loads(str(text)))
        return Namespace(str(key), os.fsdecode(model), about)  # type: ignore[arg-type]  # checked by it
    except (TypeError, ValueError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"a row is not a valid namespace: {error}") from error


def _storable(path: str) -> str | bytes:
    """A path as SQLite can store it: bytes if it is not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path


def enter_state(rows: sqlite3.Connection, state: StoredState) -> None:
    """Insert a state, replacing one with the same key."""
    about = {name: getattr(state, name) for name in COLUMNS}
    row = tuple((about | {"owners": text_of_owners(state.owners)}).values())
    rows.execute(f"INSERT OR REPLACE INTO states ({NAMES}) VALUES ({MARKS})", row)


def state_of_row(row: Row, *, has_tokens: bool = True) -> StoredState:
    """The state of a row of `NAMES`; raises `sqlite3.DatabaseError` if the row is damaged."""
    if tuple(map(type, row)) != tuple(COLUMNS.values()):
        raise sqlite3.DatabaseError("the list of saved states is damaged: an entry has wrong types")
    about = dict(zip(COLUMNS, row, strict=True))
    about["owners"] = frozenset(filter(None, str(about["owners"]).split("\n")))
    about["is_pinned"] = bool(about["is_pinned"])
    state = StoredState(**about)  # type: ignore[arg-type]  # their types were compared
    is_named = state.key == state_key(state.namespace, state.start, state.line)
    n_tokens = state.end - state.start
    is_whole = n_tokens > 0 and (not has_tokens or len(state.packed) == n_tokens * TOKEN_BYTES)
    is_finite = math.isfinite(state.recompute_s) and math.isfinite(state.used_at)
    is_whole = is_whole and is_finite and min(state.start, state.nbytes, state.n_uses) >= 0
    if not (is_named and is_whole):
        raise sqlite3.DatabaseError(
            f"the list of saved states is damaged: entry {state.key!r} has invalid values"
        )
    return state


def text_of_owners(owners: frozenset[str]) -> str:
    """Owners as newline-separated text."""
    return "\n".join(sorted(owners))


def _is_damage(error: Exception) -> bool:
    """Whether the error means a damaged table or one of another version."""
    if isinstance(error, sqlite3.ProgrammingError):
        return False  # its connection is closed
    return primary_code(error) in (*DAMAGED, None)


TURN_OFF = 'or set cold = "0" under [cache] in the settings to save nothing on disk'
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)


def store_error(error: Exception, path: Path) -> CacheStoreError:
    """Translate `error` on a file or folder of the cache, with advice."""
    code = primary_code(error)
    number = error.errno if isinstance(error, OSError) else None
    is_full = code == sqlite3.SQLITE_FULL or number in NO_SPACE
    if is_full or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return CacheStoreError(
            f"no space is left for {path}: free some space, delete states with `kvchat cache "
            "prune`, "
            f"{TURN_OFF}"
        )
    if code in NO_WRITING or number in NO_RIGHT:
        return CacheStoreError(f"{path} cannot be written: make its folder writable, {TURN_OFF}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CacheStoreError(f"{path} is locked: another kvchat process is writing to it")
    reason = error.strerror if isinstance(error, OSError) else None
    return CacheStoreError(f"{path}: {reason or error}: check the disk, {TURN_OFF}")


def primary_code(error: Exception) -> int | None:
    """SQLite's primary result code; None for other errors and those of the sqlite3 module."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
