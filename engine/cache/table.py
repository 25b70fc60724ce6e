"""The SQLite table of saved segments: its connection, schema, rows and errors."""

import contextlib
import errno
import json
import math
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

from engine.cache.namespace import Namespace
from engine.cache.segments import TOKEN_BYTES, Segment, segment_key
from engine.errors import CacheStoreError
from engine.files import reason_of

TABLE = "states.db"
SUFFIX = ".kv"
"""Suffix of the files of segments."""
SCHEMA_VERSION = 6
"""Version of the tables and the files; other versions are deleted."""
BUSY_TIMEOUT_S = 5.0
"""Time a statement waits for another process that is writing."""
PAGE_BYTES = 16384
"""A row with a few hundred tokens fits in one page, so a list needs no overflow pages."""
COLUMNS = {
    "key": str, "namespace": str, "parent": str, "start": int, "end": int, "nbytes": int,
    "recompute_s": float, "owners": str, "is_pinned": int, "n_uses": int, "used_at": float,
    "packed": bytes,
}  # fmt: skip
"""Columns of a segment's row; owners are newline-separated. The tokens are last, so that the other
columns can be read without them."""
TYPES = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}
NAMES = ", ".join(COLUMNS)
NAMES_WITHOUT_TOKENS = NAMES.replace("packed", "x'' AS packed")
STATEMENTS = (
    "CREATE TABLE namespaces (key TEXT PRIMARY KEY, model BLOB NOT NULL, fields TEXT NOT NULL)",
    f"CREATE TABLE segments ({', '.join(f'{n} {TYPES[t]} NOT NULL' for n, t in COLUMNS.items())}, "
    "PRIMARY KEY (key))",
    "CREATE INDEX segments_by_namespace ON segments (namespace)",
    "CREATE INDEX segments_by_size ON segments (nbytes)",
)
KEY = re.compile("[0-9a-f]{16}")

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""Result codes of a damaged table, or of one with unexpected tables or columns."""
NOT_WRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
TABLE_FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of a table; UnicodeDecodeError if SQLite's message quotes bytes that are not UTF-8."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the table, which is created if missing.

    It uses a rollback journal: a write-ahead log needs free space even to read the table.

    Raises:
        sqlite3.Error: it cannot be opened, is damaged, or has another version.
    """
    # SQLite gives the journal the mode of the table.
    with contextlib.suppress(FileExistsError, PermissionError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    rows = sqlite3.connect(
        os.fsencode(path), timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        rows.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        rows.execute("PRAGMA synchronous = NORMAL")
        # Tokens are conversation text: overwrite those of deleted segments.
        rows.execute("PRAGMA secure_delete = ON")
        if _version(rows) == 0:
            transaction(rows, _create_tables)  # another process may have been first
        found = rows.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        # An unexpected view or trigger could run endlessly.
        is_ours = {str(statement) for (statement,) in found} == set(STATEMENTS)
        if _version(rows) != SCHEMA_VERSION or not is_ours:
            raise sqlite3.DatabaseError(f"{path} has the wrong version {_version(rows)}")
    except TABLE_FAULTS:
        rows.close()
        raise
    return rows


def _version(rows: sqlite3.Connection) -> int:
    found: int = rows.execute("PRAGMA user_version").fetchone()[0]
    return found


def _create_tables(rows: sqlite3.Connection) -> None:
    if _version(rows) == 0:
        for statement in STATEMENTS:
            rows.execute(statement)
        rows.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def transaction(rows: sqlite3.Connection, change: Callable[[sqlite3.Connection], object]) -> None:
    """Run a change in an immediate transaction; roll back on error."""
    rows.execute("BEGIN IMMEDIATE")
    try:
        change(rows)
        rows.execute("COMMIT")
    finally:
        if rows.in_transaction:
            rows.execute("ROLLBACK")


def insert_namespace(rows: sqlite3.Connection, namespace: Namespace) -> None:
    """Insert a namespace, or update the path of its model."""
    rows.execute(
        "INSERT INTO namespaces VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET "
        "model = ?2 WHERE model <> ?2",
        (namespace.key, os.fsencode(namespace.model), json.dumps(namespace.fields)),
    )


def namespace_of_row(row: tuple[object, ...]) -> Namespace:
    """The namespace of a row; raises `sqlite3.DatabaseError` if the row is damaged."""
    try:
        key, model, text = row
        fields = tuple((name, value) for name, value in json.loads(str(text)))
        return Namespace(str(key), os.fsdecode(model), fields)  # type: ignore[arg-type]  # checked by it
    except (TypeError, ValueError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"a row of the table namespaces is damaged: {error}") from error


def insert_segment(rows: sqlite3.Connection, segment: Segment) -> None:
    """Insert a segment, replacing one with the same key."""
    values = {name: getattr(segment, name) for name in COLUMNS}
    row = tuple((values | {"owners": owners_text(segment.owners)}).values())
    marks = ", ".join("?" * len(COLUMNS))
    rows.execute(f"INSERT OR REPLACE INTO segments ({NAMES}) VALUES ({marks})", row)


def segment_of_row(row: tuple[object, ...], *, has_tokens: bool = True) -> Segment:
    """The segment of a row of `NAMES`; raises `sqlite3.DatabaseError` if the row is damaged."""
    values = dict(zip(COLUMNS, row, strict=True))
    segment = None
    if tuple(map(type, row)) == tuple(COLUMNS.values()):
        values["owners"] = frozenset(filter(None, str(values["owners"]).split("\n")))
        values["is_pinned"] = bool(values["is_pinned"])
        segment = Segment(**values)  # type: ignore[arg-type]  # their types were compared
    if segment is None or not _is_valid(segment, has_tokens=has_tokens):
        raise sqlite3.DatabaseError(
            f"the list of saved states is damaged: entry {values['key']!r} has invalid values"
        )
    return segment


def _is_valid(segment: Segment, *, has_tokens: bool) -> bool:
    start, end, packed = segment.start, segment.end, segment.packed
    is_finite = math.isfinite(segment.recompute_s) and math.isfinite(segment.used_at)
    is_range = 0 <= start < end and min(segment.nbytes, segment.n_uses) >= 0
    if not (is_finite and is_range and KEY.fullmatch(segment.key)):
        return False
    if not has_tokens:
        return True
    key = segment_key(segment.namespace, segment.parent, start, packed)
    return segment.key == key and len(packed) == (end - start) * TOKEN_BYTES


def owners_text(owners: frozenset[str]) -> str:
    """Owners as newline-separated text."""
    return "\n".join(sorted(owners))


def is_damage(error: Exception) -> bool:
    """Whether an error means a damaged table or one of another version."""
    if isinstance(error, sqlite3.ProgrammingError):
        return False  # its connection is closed
    return _primary_code(error) in (*DAMAGED, None)


def is_busy_or_full(error: Exception) -> bool:
    """Whether reopening the table would not help."""
    return _primary_code(error) in (*LOCKED, sqlite3.SQLITE_FULL)


TURN_OFF = 'or set cold = "0" under [cache] in the settings to save nothing on disk'
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)


def store_error(error: Exception, path: Path) -> CacheStoreError:
    """Translate `error` on a file or folder of the cache, with advice."""
    code = _primary_code(error)
    number = error.errno if isinstance(error, OSError) else None
    if code == sqlite3.SQLITE_FULL or number in NO_SPACE:
        return CacheStoreError(
            f"no space is left for {path}: free some space, delete states with `kvchat cache "
            f"prune`, {TURN_OFF}"
        )
    if code in NOT_WRITABLE or number in NO_RIGHT:
        return CacheStoreError(f"{path} cannot be written: make its folder writable, {TURN_OFF}")
    if code in LOCKED:
        return CacheStoreError(f"{path} is locked: another kvchat process is writing to it")
    return CacheStoreError(f"{path}: {reason_of(error)}: check the disk, {TURN_OFF}")


def _primary_code(error: Exception) -> int | None:
    """SQLite's primary result code; None for other errors and those of the sqlite3 module."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
