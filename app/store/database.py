"""The database file: opened, checked, restored from its backup when damaged; its locks."""

import fcntl
import os
import sqlite3
import time
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

from app.format import counted, local_time
from app.store.errors import StoreError, file_error, is_busy, is_damage, store_error
from app.store.records import TEXT
from app.store.schema import check_version, prepare
from engine import files
from engine.background import start_thread
from engine.files import FileLock, reason_of, replace_file

BUSY_TIMEOUT_MS = 5000
"""How long a statement waits for a second kvchat process that is writing."""
RETRY_S = 0.01
BACKUP_EVERY_S = 24 * 3600.0
"""Seconds after which the database is copied once more."""
COPY_BYTES = 1 << 20


def acquire_lock(path: Path) -> FileLock | None:
    """A lock on the file at `path`; None while someone else holds it.

    Raises:
        StoreError: If the lock file cannot be made.
    """
    try:
        return files.acquire_lock(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be created ({reason_of(error)})") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection with the pragmas that every connection needs."""
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    connection.text_factory = TEXT
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        _use_wal(connection)
        # A killed process loses nothing that was committed; only a power cut can cost the last
        # commits, and each commit is spared a wait for the disk.
        connection.execute("PRAGMA synchronous = NORMAL")
    except (sqlite3.Error, UnicodeDecodeError):
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Keep changes in a write-ahead log.

    While another connection switches a new file, SQLite refuses without waiting its timeout.
    """
    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
            time.sleep(RETRY_S)
        else:
            return


def hold_database(path: Path) -> int:
    """A file descriptor that marks the database as in use until it is closed.

    Raises:
        StoreError: If the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        holder = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        remedy = "make the folder writable, or set XDG_DATA_HOME to another folder"
        raise file_error(error, path.parent, remedy) from error
    fcntl.flock(holder, fcntl.LOCK_SH)
    return holder


def open_database(path: Path, holder: int) -> tuple[sqlite3.Connection, str | None]:
    """Open the database, or create it; the second value is what the user should know about it.

    A damaged file is moved aside to a name with `.broken` in it, and the backup takes its place.
    `holder` is the result of `hold_database`.

    Raises:
        StoreError: If the file cannot be opened, or has the tables of another version.
    """
    try:
        return _open_checked(path, is_whole=_was_left_whole(path, holder)), None
    except sqlite3.Error as error:
        if not is_damage(error):
            raise store_error(error, path) from error
        aside = _move_aside(path, holder)
    try:
        connection, what = _begun_again(path)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    fcntl.flock(holder, fcntl.LOCK_SH)
    return connection, f"the damaged chat database was moved to {aside}; {what}"


def _begun_again(path: Path) -> tuple[sqlite3.Connection, str]:
    """The database restored from its backup, else a new one; and a notice about it."""
    connection = _restored(path) or _open_checked(path, is_whole=True)
    n, newest = connection.execute("SELECT count(*), max(updated_at) FROM chats").fetchone()
    if not n:
        return connection, "a new database was created"
    text = f"restored {counted(n, 'chat')}, last used {local_time(newest)}, from {backup_of(path)}"
    return connection, text


def _restored(path: Path) -> sqlite3.Connection | None:
    """The database restored from its backup; None without a usable backup."""
    try:
        with backup_of(path).open("rb") as backup:
            replace_file(path, iter(partial(backup.read, COPY_BYTES), b""), is_durable=True)
        return _open_checked(path, is_whole=False)
    except (OSError, sqlite3.Error, StoreError):
        for part in _files_of(path):
            part.unlink(missing_ok=True)
        return None


def backup_of(path: Path) -> Path:
    """The copy of a database from which a damaged one is restored."""
    return path.with_name(f"{path.name}.backup")


class Backup:
    """Copies the database on a thread of its own where the last copy is more than a day old."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_closed = False
        self._thread = (
            None
            if _age_s(backup_of(path)) < BACKUP_EVERY_S
            else start_thread(self._work, name="chat-backup", on_fault=lambda _: None)
        )

    def close(self) -> None:
        """Give up a copy that is under way; the last one stays."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        with suppress(OSError, sqlite3.Error, UnicodeDecodeError, StoreError):
            lock = acquire_lock(self._path.with_name(f"{self._path.name}.locks") / "backup")
            if lock is not None:
                with lock:
                    self._copy()

    def _copy(self) -> None:
        target = backup_of(self._path)
        draft = target.with_name(f"{target.name}.new")
        draft.unlink(missing_ok=True)
        connection = connect(self._path)
        try:
            connection.set_progress_handler(lambda: self._is_closed, 1000)
            # An emptied list is no reason to lose the copy of a full one.
            if connection.execute("SELECT EXISTS (SELECT 1 FROM messages)").fetchone()[0]:
                _create_private(draft)
                connection.execute("VACUUM INTO ?", (str(draft),))
                with draft.open("rb") as copy:
                    os.fsync(copy.fileno())
                draft.replace(target)
        finally:
            connection.close()
            draft.unlink(missing_ok=True)


def expire_backup(path: Path) -> None:
    """Let the next start copy the database again: a deleted chat leaves its backup then."""
    with suppress(OSError):
        os.utime(backup_of(path), (0, 0))


def _age_s(path: Path) -> float:
    try:
        return abs(time.time() - path.stat().st_mtime)
    except OSError:
        return inf


def release_database(path: Path, holder: int, *, is_whole: bool) -> None:
    """Release the descriptor of `hold_database`; record the state of an undamaged file in it.

    No connection to the database is open any more.
    """
    if is_whole and _holds_alone(holder):
        # Without the note the next start checks the whole file, and no more than that.
        with suppress(OSError):
            os.pwrite(holder, _stamp(path), 0)
    os.close(holder)


def _was_left_whole(path: Path, holder: int) -> bool:
    """Whether the file is as a kvchat left it, or open in one that has checked it.

    Checking a large file takes long: it is done after a kill, a copy or a fault of the disk.
    """
    if not _holds_alone(holder):
        return True
    noted = os.pread(holder, 100, 0)
    os.ftruncate(holder, 0)
    fcntl.flock(holder, fcntl.LOCK_SH)
    return path.exists() and noted == _stamp(path)


def _holds_alone(holder: int) -> bool:
    """Whether no other kvchat has the database open; the lock is shared again where one has."""
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(holder, fcntl.LOCK_SH)  # a refused upgrade drops the shared lock: flock(2)
        return False
    return True


def _stamp(path: Path) -> bytes:
    state = path.stat()
    return f"{state.st_size} {state.st_mtime_ns}".encode()


def _open_checked(path: Path, *, is_whole: bool) -> sqlite3.Connection:
    _create_private(path)
    try:
        connection = connect(path)
        try:
            if not is_whole:
                verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise _damage(verdict)
            prepare(connection, path)
        except (sqlite3.Error, UnicodeDecodeError, StoreError):
            connection.close()
            raise
    except UnicodeDecodeError as error:
        # SQLite's own message quotes a damaged schema.
        raise _damage(str(error)) from error
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
        raise file_error(error, path, "make its folder writable") from error


def _move_aside(path: Path, holder: int) -> Path:
    if not _holds_alone(holder):
        raise StoreError(
            f"{path} is damaged and open in another kvchat process: close that process, then start "
            "kvchat again"
        )
    names = (f"{path.name}.broken{f'-{n}' if n > 1 else ''}" for n in range(1, 10_000))
    aside = next(free for name in names if not (free := path.with_name(name)).exists())
    for part in _files_of(path):
        if part.exists():
            part.rename(part.with_name(part.name.replace(path.name, aside.name, 1)))
    return aside


def _files_of(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]


def problem_of(path: Path) -> str | None:
    """Reason why the database cannot be opened, or None; changes nothing."""
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
