"""Errors of the chat database, in words for the user."""

import errno
import sqlite3
from pathlib import Path

from engine.errors import EngineError
from engine.files import reason_of


class StoreError(EngineError):
    """The chat database cannot be opened, read or written."""

    title = "The chats cannot be read or saved"


class ChatGoneError(StoreError):
    """A chat, or one of its messages, is not there, or no longer."""

    title = "Chat not found"


class ChatInUseError(StoreError):
    """Another kvchat is answering in a chat."""

    title = "The chat is in use"


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """The StoreError that explains SQLite's `error` on the database at `path`."""
    match _primary_code(error):
        case sqlite3.SQLITE_FULL:
            return StoreError(
                f"no space is left for {path}: free some space (the text stays on the screen)"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreError(f"{path} cannot be written: make the file writable")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(
                f"{path} cannot be opened: create its folder, or make the folder writable"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return busy_error(path)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreError(f"{path} is damaged ({error}): restart kvchat to move the file aside")
        case sqlite3.SQLITE_IOERR:
            return StoreError(f"{path} cannot be read or written ({error}): check the disk")
        case _:
            return StoreError(f"{path}: {error}")


def file_error(error: OSError, path: Path, remedy: str) -> StoreError:
    """The StoreError for a file or folder that cannot be made: too little space, or `remedy`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"no space is left for {path}: free some space")
    return StoreError(f"{path} cannot be written ({reason_of(error)}): {remedy}")


def busy_error(path: Path) -> StoreError:
    """The error for a database that another program is writing."""
    return StoreError(
        f"{path} is busy: another program is writing to it, or the disk is slow; try again later"
    )


def is_busy(error: sqlite3.Error) -> bool:
    """Whether `error` means that another program writes the database."""
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether `error` means that the file is not a database, or is damaged."""
    return _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _primary_code(error: sqlite3.Error) -> int | None:
    # Errors that Python's module raises by itself carry no code.
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
