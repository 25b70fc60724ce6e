"""The database file: opened, checked, moved aside when damaged, and the locks of its chats."""

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from app.store.errors import StoreError, is_damage, store_error
from app.store.records import TEXT
from app.store.salvage import salvage
from app.store.schema import upgrade
from engine import files
from engine.files import FileLock

BUSY_TIMEOUT_MS = 5000
"""How long a statement waits for a second kvchat that is writing."""


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
        raise StoreError(
            f"{path.parent} cannot be written ({error.strerror}): give yourself the right to "
            "write it, or set XDG_DATA_HOME to another folder"
        ) from error
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
        return _open_checked(path, is_whole=_was_left_whole(path, holder)), None
    except sqlite3.Error as error:
        if not is_damage(error):
            raise store_error(error, path) from error
        kept = _move_aside(path, holder)
    connection = None
    try:
        connection = _open_checked(path, is_whole=False)
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


def _open_checked(path: Path, *, is_whole: bool) -> sqlite3.Connection:
    _create_private(path)
    try:
        return _checked(connect(path), path, is_whole=is_whole)
    except UnicodeDecodeError as error:
        # SQLite's own message quotes a damaged schema.
        raise _damage(str(error)) from error


def _checked(connection: sqlite3.Connection, path: Path, *, is_whole: bool) -> sqlite3.Connection:
    try:
        if not is_whole:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise _damage(verdict)
        upgrade(connection, path)
    except (sqlite3.Error, UnicodeDecodeError, StoreError):
        connection.close()
        raise
    return connection


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
        raise StoreError(
            f"{path} cannot be made ({error.strerror}): give yourself the right to write its folder"
        ) from error


def _move_aside(path: Path, holder: int) -> Path:
    if not _holds_alone(holder):
        raise StoreError(
            f"{path} is damaged and another kvchat has it open: end that one and start again"
        )
    kept = _free_name(path)
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    fcntl.flock(holder, fcntl.LOCK_SH)
    return kept


def _free_name(path: Path) -> Path:
    names = (f"{path.name}.broken{f'-{n}' if n > 1 else ''}" for n in range(1, 10_000))
    return next(kept for name in names if not (kept := path.with_name(name)).exists())


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")
