"""Files that are replaced whole or stay as they were, and those that are read to their end."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

DRAFT_SUFFIX = ".new"
"""Ends the name of a file that is being written; the number of the process stands before it."""


def replace_file(
    path: Path, parts: Iterable[bytes | memoryview], *, is_durable: bool, mode: int = 0o600
) -> None:
    """Replace a file whole, or leave it as it was.

    The parts are written one behind the other to a new file in the same folder, which is flushed
    to the disk and then takes the name. Its own name is used by nobody else, so that several
    processes may replace a file at once. The folder is made where it is missing.

    Args:
        path: The file; a link is replaced, not followed.
        parts: Its content.
        is_durable: Whether the folder is flushed too, so that the new file outlives a power cut;
            without it the old one may come back then.
        mode: Who may use it, less what the umask takes away; the owner only if nothing is said.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{path.name}.{secrets.token_hex(4)}.{os.getpid()}{DRAFT_SUFFIX}"
    draft = path.with_name(name)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        # What failed is worth telling, not that its remains could not be removed.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_folder(path.parent)


def read_text(path: Path, *, errors: str = "strict") -> str:
    """Give the text of a file in UTF-8; a pipe or a device, which might never end, is refused.

    Args:
        path: The file.
        errors: What becomes of bytes that are no text, as `open` takes it.

    Raises:
        OSError: it cannot be read, or is no file.
        UnicodeDecodeError: it is no text in UTF-8.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "a pipe or a device is no file", str(path))
    return path.read_text(encoding="utf-8", errors=errors)


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that new and changed names in it outlive a power cut.

    Raises:
        OSError: the folder cannot be opened or flushed.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def drafting_process(path: Path) -> int | None:
    """Give the number of the process that writes, or wrote, a draft; None where it is none."""
    number = path.name.removesuffix(DRAFT_SUFFIX).rpartition(".")[2]
    return int(number) if path.name.endswith(DRAFT_SUFFIX) and number.isdecimal() else None
