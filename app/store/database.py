"""The database file: opened, checked, salvaged when damaged, and the locks of its chats."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from app.store.errors import StoreError, file_error, is_damage, store_error
from app.store.records import TEXT
from app.store.schema import STEPS, check_version, upgrade, version_of
from engine import files
from engine.files import FileLock

BUSY_TIMEOUT_MS = 5000
"""How long a statement waits for a second kvchat that is writing."""
_TABLES = ("chats", "messages")

# A damaged page can also give rows that were never written: what could not be read back later is
# left out, and what can be done without is emptied.
_NO_TEXT = "typeof({0}) NOT IN ('text', 'null')"
_NO_OBJECT = "CASE WHEN json_valid({0}) THEN json_type({0}) <> 'object' ELSE {0} IS NOT NULL END"
_CLEANING = (
    "DELETE FROM chats WHERE typeof(title) <> 'text' OR typeof(system_prompt) <> 'text'"
    " OR typeof(created_at) <> 'real' OR typeof(updated_at) <> 'real'",
    "DELETE FROM messages WHERE chat_id NOT IN (SELECT id FROM chats)"
    " OR typeof(content) <> 'text' OR typeof(created_at) <> 'real'",
    "UPDATE messages SET token_ids = NULL"
    " WHERE typeof(token_ids) NOT IN ('blob', 'null') OR length(token_ids) % 4 <> 0",
    "UPDATE messages SET seed = NULL WHERE typeof(seed) NOT IN ('integer', 'null')",
    f"UPDATE messages SET stats = NULL WHERE {_NO_OBJECT.format('stats')}",
    f"UPDATE chats SET sampling = '{{}}' WHERE {_NO_OBJECT.format('sampling')}",
    "UPDATE chats SET archived_at = NULL WHERE typeof(archived_at) NOT IN ('real', 'null')",
    *(
        f"UPDATE {table} SET {column} = NULL WHERE {_NO_TEXT.format(column)}"
        for table, columns in (
            ("chats", ("model_path", "summary")),
            (
                "messages",
                ("vocabulary_id", "model_name", "finish_reason", "predictor", "controller"),
            ),
        )
        for column in columns
    ),
    "UPDATE messages SET parent_id = NULL WHERE parent_id >= id OR NOT EXISTS"
    " (SELECT 1 FROM messages AS above WHERE above.id = messages.parent_id"
    " AND above.chat_id = messages.chat_id)",
    "UPDATE chats SET kept_from = NULL, summary = NULL WHERE NOT EXISTS"
    " (SELECT 1 FROM messages WHERE messages.id = kept_from AND chat_id = chats.id)",
    "UPDATE chats SET head_id = (SELECT max(id) FROM messages WHERE chat_id = chats.id)"
    " WHERE NOT EXISTS"
    " (SELECT 1 FROM messages WHERE messages.id = head_id AND chat_id = chats.id)",
)


def take_lock(path: Path) -> FileLock | None:
    """A lock on the file at `path`; None while someone else holds it.

    Raises:
        StoreError: If the lock file cannot be made.
    """
    try:
        return files.take_lock(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be made ({error.strerror})") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection with the pragmas that every connection needs."""
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    connection.text_factory = TEXT
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing that was committed; only a power cut can cost the last
        # commits, and each commit is spared a wait for the disk.
        connection.execute("PRAGMA synchronous = NORMAL")
    except (sqlite3.Error, UnicodeDecodeError):
        connection.close()
        raise
    return connection


def hold_database(path: Path) -> int:
    """A file descriptor that marks the database as in use until it is closed.

    Raises:
        StoreError: If the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        holder = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        remedy = "give yourself the right to write it, or set XDG_DATA_HOME to another folder"
        raise file_error(error, path.parent, remedy) from error
    fcntl.flock(holder, fcntl.LOCK_SH)
    return holder


def open_database(path: Path, holder: int) -> tuple[sqlite3.Connection, str | None]:
    """Open and upgrade the database; the second value is what the user should know about it.

    A damaged file is moved aside to a name with `.broken` in it, and what can still be read of it
    goes into a new one.

    Args:
        path: The database file; it need not exist.
        holder: What `hold_database` returned for it.

    Raises:
        StoreError: If the file cannot be opened, or a newer kvchat made it.
    """
    try:
        return _open_checked(path, is_whole=_was_left_whole(path, holder))
    except sqlite3.Error as error:
        if not is_damage(error):
            raise store_error(error, path) from error
        kept = _move_aside(path, holder)
    connection = None
    try:
        connection, _ = _open_checked(path, is_whole=False)
        n_chats, n_messages = salvage(kept, connection)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise store_error(error, path) from error
    told = (
        f"{n_chats} chats with {n_messages} messages could be read and are here"
        if n_chats
        else "a new one was begun"
    )
    return connection, f"the chat database was damaged and is kept as {kept}; {told}"


def release_database(path: Path, holder: int, *, is_whole: bool) -> None:
    """Release what `hold_database` returned, and note how the last kvchat left the file.

    Args:
        path: The database file, to which no connection is open any more.
        holder: What `hold_database` returned for it.
        is_whole: Whether no damage was met.
    """
    if is_whole and _holds_alone(holder):
        # Without the note the next start checks the whole file, and no more than that.
        with suppress(OSError):
            os.pwrite(holder, _stamp(path), 0)
    os.close(holder)


def _was_left_whole(path: Path, holder: int) -> bool:
    """Whether the file is as a kvchat left it, or open in one that has checked it.

    A check of a large file takes long; it is for what a kill, a copy or a disk has done.
    """
    if not _holds_alone(holder):
        return True
    noted = os.pread(holder, 100, 0)
    os.ftruncate(holder, 0)
    fcntl.flock(holder, fcntl.LOCK_SH)
    return path.exists() and noted == _stamp(path)


def _holds_alone(holder: int) -> bool:
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stamp(path: Path) -> bytes:
    state = path.stat()
    return f"{state.st_size} {state.st_mtime_ns}".encode()


def _open_checked(path: Path, *, is_whole: bool) -> tuple[sqlite3.Connection, str | None]:
    _create_private(path)
    try:
        return _checked(connect(path), path, is_whole=is_whole)
    except UnicodeDecodeError as error:
        # SQLite's own message quotes a damaged schema.
        raise _damage(str(error)) from error


def _checked(
    connection: sqlite3.Connection, path: Path, *, is_whole: bool
) -> tuple[sqlite3.Connection, str | None]:
    try:
        if not is_whole:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise _damage(verdict)
        notice = _copy_before_upgrade(connection, path)
        upgrade(connection, path)
    except (sqlite3.Error, UnicodeDecodeError, StoreError):
        connection.close()
        raise
    return connection, notice


def _copy_before_upgrade(connection: sqlite3.Connection, path: Path) -> str | None:
    """A copy that the kvchat before can open, and the notice that names it."""
    version = version_of(connection)
    if not 0 < version < len(STEPS):
        return None
    copy = _free_name(path, f"version-{version}")
    _create_private(copy)
    try:
        connection.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as error:
        copy.unlink(missing_ok=True)
        raise StoreError(
            f"{path} is of an older kvchat, and the copy that is made before it is changed cannot "
            f"be written ({error}): make room in {path.parent}"
        ) from error
    return (
        f"the chats were brought from database version {version} to {len(STEPS)}; {copy} holds "
        "them as they were, for an older kvchat"
    )


def _damage(verdict: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(verdict)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _create_private(path: Path) -> None:
    # An existing database is not opened here: closing a descriptor of it would drop the locks
    # that SQLite holds on it in this process. Its -wal and -shm files take their mode from it.
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise file_error(error, path, "give yourself the right to write its folder") from error


def _move_aside(path: Path, holder: int) -> Path:
    if not _holds_alone(holder):
        raise StoreError(
            f"{path} is damaged and another kvchat has it open: end that one and start again"
        )
    kept = _free_name(path, "broken")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    fcntl.flock(holder, fcntl.LOCK_SH)
    return kept


def _free_name(path: Path, suffix: str) -> Path:
    names = (f"{path.name}.{suffix}{f'-{n}' if n > 1 else ''}" for n in range(1, 10_000))
    return next(free for name in names if not (free := path.with_name(name)).exists())


def problem_of(path: Path) -> str | None:
    """What keeps the database from being opened, None where nothing does; changes nothing."""
    if not path.exists():
        return None
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            check_version(connection, path)
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError, StoreError) as error:
        return str(error)
    return None if verdict == "ok" else f"{path} is damaged ({verdict})"


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def salvage(broken: Path, into: sqlite3.Connection) -> tuple[int, int]:
    """Copy every chat and message that can still be read, under its id, in one transaction.

    A message whose parent is lost begins a tree of its own.

    Args:
        broken: The damaged database; it stays as it is.
        into: A new database of the newest version.

    Returns:
        How many chats and messages were taken over.

    Raises:
        sqlite3.Error: If the new database cannot be written; it is then as it was.
    """
    source = sqlite3.connect(f"{broken.absolute().as_uri()}?mode=ro", uri=True)
    source.text_factory = TEXT
    try:
        into.execute("BEGIN IMMEDIATE")
        try:
            into.execute("PRAGMA defer_foreign_keys = ON")
            for table in _TABLES:
                _copy(source, into, table)
            for statement in _CLEANING:
                into.execute(statement)
        except BaseException:
            into.execute("ROLLBACK")
            raise
        into.execute("COMMIT")
    finally:
        source.close()
    n_chats, n_messages = (
        int(into.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in _TABLES
    )
    return n_chats, n_messages


def _copy(source: sqlite3.Connection, into: sqlite3.Connection, table: str) -> None:
    wanted = [row[1] for row in into.execute(f"PRAGMA table_info({table})")]
    try:
        there = {row[1] for row in source.execute(f"PRAGMA table_info({table})")}
    except (sqlite3.Error, UnicodeDecodeError):
        return  # nothing of it can be read
    names = [name for name in wanted if name in there]
    if "id" not in names:
        return
    marks = ", ".join("?" * len(names))
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"
    for order in ("ASC", "DESC"):
        # Read from both ends, so that a damaged page in the middle hides only what lies on it.
        query = f"SELECT {', '.join(names)} FROM {table} NOT INDEXED ORDER BY id {order}"
        for row in _readable(source, query):
            into.execute(insert, row)


def _readable(source: sqlite3.Connection, query: str) -> Iterator[tuple[object, ...]]:
    """The rows up to the first that cannot be read."""
    try:
        yield from source.execute(query)
    except (sqlite3.Error, UnicodeDecodeError):
        return
