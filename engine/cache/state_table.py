"""The table of kept states in SQLite: opened, begun anew where it is damaged, and its rows."""

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
"""Of the files that hold the states."""
SHAPE = 4
"""Rises with every change of the tables or of the files: those of another shape are not used."""
BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for another kvchat that is writing."""
PAGE_BYTES = 16384
"""Rows with some hundred tokens lie whole in such a page, so that a list reads them in one go."""
KINDS = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}
COLUMNS = {
    "key": str, "namespace": str, "parent": str, "line": str, "start": int, "end": int,
    "nbytes": int, "recompute_s": float, "owners": str, "is_pinned": int, "n_uses": int,
    "used_at": float, "packed": bytes,
}  # fmt: skip
"""Those of a state's row: its fields, owners as lines of text. The tokens are last, so that the
rest of a row is read without them."""
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
"""What a table says that is damaged, or has other tables and columns than it should."""
OTHERS_FAULT = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
"""What it would say again if it was opened again."""
NO_SHARED_MEMORY = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
"""What it says where the file of the memory that processes share cannot be made: a full disk."""
NO_WRITING = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)

TABLE_FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""What a table may raise; the second where SQLite's message quotes what is no text."""

Row = tuple[object, ...]
Found = TypeVar("Found")


class StateTable:
    """The connection to the table of a folder, for several threads and processes.

    A table that is damaged, or of another version, is begun anew; a folder that cannot be written
    is read. Whoever else has the table open finds the new one by its file's number.

    Args:
        folder: Of the table.
        may_lock: Whether the table is locked for this process alone where a full disk has no room
            for the memory that processes share: for short commands, which make room.

    Raises:
        CacheStoreError: the table cannot be opened or made.
    """

    def __init__(self, folder: Path, *, may_lock: bool = False) -> None:
        self._path = folder / TABLE
        self._may_lock = may_lock
        self._lock = threading.RLock()
        self.notes: list[str] = []
        """What the user should know."""
        try:
            self._rows = self._opened()
        except (OSError, *TABLE_FAULTS) as error:
            raise store_error(error, self._path) from error
        self._inode = _inode(self._path)

    def close(self) -> None:
        """End the connection; closing twice is harmless."""
        with self._lock:
            self._rows.close()

    def ask(self, ask: Callable[[sqlite3.Connection], Found]) -> Found:
        """What the table answers; it is asked once more after it was opened again or begun anew.

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
                self._reopen(self._begun_anew if is_damaged else self._opened)
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
        """Change it in a transaction, asked and refused as in `ask`."""
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
            return self._begun_anew()

    def _begun_anew(self) -> sqlite3.Connection:
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
    """A connection to the table, which is made where there is none.

    Args:
        path: Of the table.
        is_locked: Whether no other process may use it meanwhile, so that no memory is shared.

    Raises:
        sqlite3.Error: it cannot be opened, is damaged, or has another shape.
    """
    # Files beside it take their mode from it.
    with contextlib.suppress(FileExistsError, PermissionError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    rows = _bare(_uri(path))
    try:
        if is_locked:
            rows.execute("PRAGMA locking_mode = EXCLUSIVE")
        rows.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        rows.execute("PRAGMA journal_mode = WAL")
        rows.execute("PRAGMA synchronous = NORMAL")
        # Tokens are what a chat says: those of deleted states do not stay in free pages.
        rows.execute("PRAGMA secure_delete = ON")
        if _shape(rows) == 0:
            in_transaction(rows, _make_tables)
        if _shape(rows) != SHAPE or _statements(rows) != STATEMENTS:
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


def _statements(rows: sqlite3.Connection) -> set[str]:
    """What the table was made by; a view or trigger in it could run without end."""
    found = rows.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {str(statement) for (statement,) in found}


def _make_tables(rows: sqlite3.Connection) -> None:
    if _shape(rows) == 0:  # another process may have been first
        for statement in TABLES.split(";"):
            rows.execute(statement.strip())
        rows.execute(f"PRAGMA user_version = {SHAPE}")


def in_transaction(
    rows: sqlite3.Connection, change: Callable[[sqlite3.Connection], object]
) -> None:
    """Make a change wholly or not at all, and one at a time over all processes."""
    rows.execute("BEGIN IMMEDIATE")
    try:
        change(rows)
        rows.execute("COMMIT")
    finally:
        if rows.in_transaction:
            rows.execute("ROLLBACK")


def keys_in(rows: sqlite3.Connection) -> set[str]:
    """The keys of all states."""
    return {key for (key,) in rows.execute("SELECT key FROM states")}


def enter_namespace(rows: sqlite3.Connection, namespace: Namespace) -> None:
    """Enter a namespace, or where its model is now."""
    rows.execute(
        "INSERT INTO namespaces VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET "
        "model = ?2 WHERE model <> ?2",
        (namespace.key, _storable(namespace.model), json.dumps(namespace.fields)),
    )


def namespace_of_row(row: Row) -> Namespace:
    """The namespace of a row, which a damaged table may have made up."""
    try:
        key, model, text = row
        about = tuple((name, value) for name, value in json.loads(str(text)))
        return Namespace(str(key), os.fsdecode(model), about)  # type: ignore[arg-type]  # checked by it
    except (TypeError, ValueError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"a row is not a valid namespace: {error}") from error


def _storable(path: str) -> str | bytes:
    """A path as SQLite can keep it: one that is no UTF-8 by its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path


def enter_state(rows: sqlite3.Connection, state: StoredState) -> None:
    """Enter a state, in the place of one of the same key."""
    about = {name: getattr(state, name) for name in COLUMNS}
    row = tuple((about | {"owners": text_of_owners(state.owners)}).values())
    rows.execute(f"INSERT OR REPLACE INTO states ({NAMES}) VALUES ({MARKS})", row)


def state_of_row(row: Row, *, has_tokens: bool = True) -> StoredState:
    """The state of a row of `NAMES`, which a damaged table may have made up."""
    if tuple(map(type, row)) != tuple(COLUMNS.values()):
        raise sqlite3.DatabaseError("a row of the table is not a valid state: its types are wrong")
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
            f"a row of the table is not a valid state: {state.key!r} has impossible values"
        )
    return state


def text_of_owners(owners: frozenset[str]) -> str:
    """Owners as a row has them."""
    return "\n".join(sorted(owners))


def _is_damage(error: Exception) -> bool:
    """Whether a table that raises this is damaged, or none of this version."""
    if isinstance(error, sqlite3.ProgrammingError):
        return False  # its connection is closed
    return primary_code(error) in (*DAMAGED, None)


TURN_OFF = 'or set cold = "0" under [cache] in the settings to save nothing on disk'
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)


def store_error(error: Exception, path: Path) -> CacheStoreError:
    """The error that says what to do about `error` on a file or folder of the cache."""
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
        return CacheStoreError(f"{path} is locked: another kvchat is writing to it")
    reason = error.strerror if isinstance(error, OSError) else None
    return CacheStoreError(f"{path}: {reason or error}: check the disk, {TURN_OFF}")


def primary_code(error: Exception) -> int | None:
    """SQLite's result code; other errors, and those of Python's module itself, carry none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
