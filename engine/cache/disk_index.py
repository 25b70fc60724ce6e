"""The index of the states on disk, in SQLite; and what the disk refuses, in words for the user."""

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState
from engine.errors import CacheStoreError

TURN_OFF = 'or set cold = "0" under [cache] in the settings to keep nothing on disk'
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)


def store_error(error: OSError | sqlite3.Error, path: Path) -> CacheStoreError:
    """The error that says what to do about `error` on a file or folder of the cache."""
    if isinstance(error, sqlite3.Error):
        return _index_error(error, path)
    if error.errno in NO_SPACE:
        return _no_space(path)
    if error.errno in NO_RIGHT:
        return _no_right(path)
    return CacheStoreError(f"{path}: {error.strerror or error}: check the disk, {TURN_OFF}")


def _index_error(error: sqlite3.Error, path: Path) -> CacheStoreError:
    match primary_code(error):
        case sqlite3.SQLITE_FULL:
            return _no_space(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return _no_right(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return CacheStoreError(f"{path} has been busy for seconds: another kvchat writes it")
        case _:
            return CacheStoreError(f"{path}: {error}: check the disk, {TURN_OFF}")


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's result code; errors that Python's module raises by itself carry none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _no_space(path: Path) -> CacheStoreError:
    return CacheStoreError(
        f"no space is left for {path}: free some, make room with `kvchat cache prune`, {TURN_OFF}"
    )


def _no_right(path: Path) -> CacheStoreError:
    return CacheStoreError(
        f"{path} cannot be written: give yourself the right to write its folder, {TURN_OFF}"
    )


@dataclass(frozen=True, slots=True)
class ColdEntry:
    """A snapshot file: where it belongs, what it stands for, what it takes."""

    namespace: str
    """Key of its namespace."""
    state: StoredState
    file_bytes: int


SHAPE = 2
"""Rises with every change of the tables; an index of another shape is made anew."""
BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for another kvchat that is writing."""
PAGE_BYTES = 16384
"""Rows with some hundred tokens lie whole in such a page, so that a list reads them in one go."""
TABLES = """
CREATE TABLE namespaces (key TEXT PRIMARY KEY, model TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE states (
    namespace TEXT NOT NULL, key TEXT NOT NULL, parent TEXT NOT NULL, line TEXT NOT NULL,
    start INTEGER NOT NULL, end INTEGER NOT NULL, nbytes INTEGER NOT NULL,
    file_bytes INTEGER NOT NULL, recompute_s REAL NOT NULL, owners TEXT NOT NULL,
    is_pinned INTEGER NOT NULL, n_uses INTEGER NOT NULL, used_at REAL NOT NULL,
    tokens BLOB NOT NULL, origin TEXT NOT NULL, PRIMARY KEY (namespace, key)
) WITHOUT ROWID;
CREATE INDEX states_by_size ON states (namespace, file_bytes);
"""
COLUMNS = (
    "namespace, key, parent, line, start, end, nbytes, file_bytes, recompute_s, owners, "
    "is_pinned, n_uses, used_at, tokens, origin"
)
MARKS = ", ".join("?" * 15)

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

Row = tuple[str, str, str, str, int, int, int, int, float, str, int, int, float, bytes, str]


class ColdIndex:
    """The table of all states of a folder, which several processes may have open.

    Where the file cannot be used, the table is kept in main memory and `is_kept` is False. Not safe
    for threads. Every method may raise `sqlite3.Error`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "index.db"
        self._holder: int | None = None
        self.is_kept = True
        try:
            self._holder = _hold(folder / "index.lock")
            self._connection = self._opened()
        except (OSError, sqlite3.Error):
            self._give_up()

    def close(self) -> None:
        """End the connection; closing twice is harmless."""
        self._connection.close()
        self._release()

    def know(self, namespace: Namespace) -> None:
        """Remember the words of a namespace, and where its model is now."""
        fields = json.dumps(namespace.fields)
        self._connection.execute(
            "INSERT INTO namespaces VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET "
            "model = ?2 WHERE model <> ?2",
            (namespace.key, _kept_path(namespace.model), fields),
        )

    def namespaces(self) -> list[Namespace]:
        """Every namespace that is known."""
        rows = self._connection.execute("SELECT key, model, fields FROM namespaces").fetchall()
        try:
            return [
                Namespace(
                    key,
                    os.fsdecode(model),
                    tuple((name, value) for name, value in json.loads(fields)),
                )
                for key, model, fields in rows
            ]
        except (TypeError, ValueError, RecursionError) as error:
            raise sqlite3.DatabaseError(f"a row is no namespace: {error}") from error

    def forget_namespace(self, key: str) -> None:
        """Forget a namespace, unless it has states."""
        self._connection.execute(
            "DELETE FROM namespaces WHERE key = ?1 "
            "AND NOT EXISTS (SELECT 1 FROM states WHERE namespace = ?1)",
            (key,),
        )

    def entries(self, namespace: str) -> list[ColdEntry]:
        """The states of a namespace, in any order."""
        cursor = self._connection.execute(
            f"SELECT {COLUMNS} FROM states WHERE namespace = ?", (namespace,)
        )
        try:
            return [_entry(row) for row in cursor]
        except (TypeError, ValueError, AttributeError) as error:
            raise sqlite3.DatabaseError(f"a row is no state: {error}") from error

    def put(self, namespace: Namespace, entry: ColdEntry) -> None:
        """Remember a state that was written; what was known of its use is replaced."""
        with self._transaction():
            self.know(namespace)
            self._connection.execute(
                f"INSERT OR REPLACE INTO states ({COLUMNS}) VALUES ({MARKS})", _row(entry)
            )

    def adopt(self, entries: Sequence[ColdEntry]) -> None:
        """Remember states whose files were found; those known meanwhile stay as they are."""
        with self._transaction():
            self._connection.executemany(
                f"INSERT OR IGNORE INTO states ({COLUMNS}) VALUES ({MARKS})", map(_row, entries)
            )

    def drop(self, namespace: str, keys: Sequence[str]) -> None:
        """Forget states."""
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM states WHERE namespace = ? AND key = ?",
                [(namespace, key) for key in keys],
            )

    def note_use(
        self, namespace: str, key: str, *, used_at: float, n_uses: int, owners: frozenset[str]
    ) -> None:
        """Remember when, how often and by whom a state was used."""
        self._connection.execute(
            "UPDATE states SET used_at = ?, n_uses = ?, owners = ? WHERE namespace = ? AND key = ?",
            (used_at, n_uses, "\n".join(sorted(owners)), namespace, key),
        )

    def pin(self, namespace: str, key: str, *, is_pinned: bool) -> None:
        """Remember whether a state is protected."""
        self._connection.execute(
            "UPDATE states SET is_pinned = ? WHERE namespace = ? AND key = ?",
            (is_pinned, namespace, key),
        )

    def nbytes(self) -> int:
        """The bytes of all files."""
        found = self._connection.execute("SELECT TOTAL(file_bytes) FROM states").fetchone()
        return int(found[0])

    def reopen(self) -> None:
        """Open the file again, as it may have been damaged or replaced; anew where it was damaged.

        Where others still use a damaged file, or none can be written, the table is in main memory
        from then on.
        """
        self.close()
        try:
            self._holder = _hold(self._path.with_name("index.lock"))
            self._connection = self._opened()
            if self._connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                self._connection.close()
                self._connection = self._remade()
        except (OSError, sqlite3.Error):
            self._give_up()

    def _opened(self) -> sqlite3.Connection:
        try:
            return _connected(self._path)
        except sqlite3.DatabaseError as error:
            if primary_code(error) not in DAMAGED:
                raise
            return self._remade()

    def _remade(self) -> sqlite3.Connection:
        if self._holder is None:
            raise OSError(f"{self._path} is not held")
        fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            return _connected(self._path)
        finally:
            fcntl.flock(self._holder, fcntl.LOCK_SH)

    def _give_up(self) -> None:
        self._release()
        self.is_kept = False
        self._connection = _memory()

    def _release(self) -> None:
        if self._holder is not None:
            os.close(self._holder)
            self._holder = None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except sqlite3.Error:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _hold(path: Path) -> int:
    """A descriptor that says to others that the index is in use, until it is closed."""
    holder = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(holder, fcntl.LOCK_SH)
    return holder


def _connected(path: Path) -> sqlite3.Connection:
    # Files beside it take their mode from it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = _bare(str(path))
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        # The files are the truth, so a power cut may cost what the index learnt last.
        connection.execute("PRAGMA synchronous = OFF")
        # Tokens are what a chat says: those of deleted states do not stay in free pages.
        connection.execute("PRAGMA secure_delete = ON")
        _shape(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _memory() -> sqlite3.Connection:
    connection = _bare(":memory:")
    _shape(connection)
    return connection


def _bare(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def _shape(connection: sqlite3.Connection) -> None:
    if _has_shape(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _has_shape(connection):  # another process may have been first
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            connection.execute(f'DROP TABLE "{name}"')
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SHAPE}")
    connection.execute("COMMIT")


def _has_shape(connection: sqlite3.Connection) -> bool:
    if connection.execute("PRAGMA user_version").fetchone()[0] != SHAPE:
        return False
    try:
        connection.execute(f"SELECT {COLUMNS} FROM states LIMIT 0")
        connection.execute("SELECT key, model, fields FROM namespaces LIMIT 0")
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        return False  # no such table or column
    return True


def _row(entry: ColdEntry) -> Row:
    state = entry.state
    return (
        entry.namespace, state.key, state.parent, state.line, state.start, state.end,
        state.nbytes, entry.file_bytes, state.recompute_s, "\n".join(sorted(state.owners)),
        state.is_pinned, state.n_uses, state.used_at,
        state.packed, state.origin,
    )  # fmt: skip


def _entry(row: Row) -> ColdEntry:
    (namespace, key, parent, line, start, end, nbytes, file_bytes, recompute_s, owners, is_pinned,
     n_uses, used_at, tokens, origin) = row  # fmt: skip
    found = frozenset(owners.split("\n")) if owners else frozenset()
    state = StoredState(
        key, parent, line, start, end, tokens, nbytes, recompute_s,
        found, bool(is_pinned), n_uses, used_at, origin,
    )  # fmt: skip
    return ColdEntry(namespace, state, file_bytes)


def _kept_path(path: str) -> str | bytes:
    """A path as SQLite can keep it: one that is no UTF-8 by its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path
