"""What the disk or SQLite refused, in words for the user."""

import errno
import sqlite3
from pathlib import Path

from engine.errors import CacheStoreError

TURN_OFF = 'or set cold = "0" under [cache] in the settings to keep nothing on disk'
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)


def store_error(error: OSError | sqlite3.Error, path: Path) -> CacheStoreError:
    """Give the error that says what to do about `error` on a file or folder of the cache."""
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
    """Give SQLite's result code; errors that Python's module raises by itself carry none."""
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
