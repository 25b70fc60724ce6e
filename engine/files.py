"""Files that are replaced whole or stay as they were, and those that are read within bounds."""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import selectors
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from engine.parsing import parse_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
DRAFT_SUFFIX = ".new"
"""Ends the name of a file that is being written; the number of the process comes before it."""
SETTINGS_BYTES = 1 << 18
"""Most bytes of settings, presets and themes: a person writes them."""
RECORDS_BYTES = 1 << 23
"""Most bytes of what kvchat itself keeps as one JSON text."""
READ_BYTES = 1 << 20


def expanded(path: str | Path) -> Path:
    """A path with its `~` expanded; as written where no user has that name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


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
    with drafted_file(path, parts, mode=mode) as draft:
        draft.replace(path)
    if is_durable:
        sync_folder(path.parent)


@contextlib.contextmanager
def drafted_file(
    path: Path, parts: Iterable[bytes | memoryview], *, mode: int = 0o600
) -> Iterator[Path]:
    """A new file beside `path`, written and flushed: within the block it may take that name.

    It is removed where it does not. Parts, mode and folder are as `replace_file` has them.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
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
        yield draft
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)  # a write names no file by itself
        raise
    finally:
        # What failed is worth telling, not that its remains could not be removed.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def read_text(path: Path, *, limit: int, errors: str = "strict") -> str:
    """The text of a file in UTF-8, read as `read_bytes` does.

    Args:
        path: The file.
        limit: Most bytes that it may have.
        errors: What becomes of bytes that are no text, as `open` takes it.

    Raises:
        OSError: it cannot be read, is no file, or is too large.
        UnicodeDecodeError: it is no text in UTF-8.
    """
    text = read_bytes(path, limit=limit).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: Path, *, limit: int) -> bytes:
    """What a file holds.

    Args:
        path: The file.
        limit: Most bytes that it may have.

    Raises:
        OSError: it cannot be read, is no file, or is too large.
    """
    with open_file(path) as file:
        return _joined(iter(lambda: file.read(READ_BYTES) or b"", b""), path, limit)


def read_file_or_pipe(path: Path, *, limit: int, wait_s: float) -> bytes:
    """What a file holds, or what comes out of a pipe such as a shell's `<(command)`.

    Args:
        path: The file or the pipe.
        limit: Most bytes that it may have.
        wait_s: How long what writes to the pipe may take for all of it.

    Raises:
        OSError: it cannot be read, is neither, is too large, or the pipe was not closed in time.
    """
    if not stat.S_ISFIFO(file_status(path).st_mode):
        return read_bytes(path, limit=limit)
    with open(path, "rb", buffering=0, opener=_opened) as pipe:
        return _joined(_chunks_in_time(pipe, path, time.monotonic() + wait_s), path, limit)


def _chunks_in_time(pipe: FileIO, path: Path, ends_at: float) -> Iterator[bytes]:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, ends_at - time.monotonic())):
            chunk = pipe.read(READ_BYTES)
            if chunk == b"":
                return
            yield chunk or b""
    raise OSError(errno.ETIMEDOUT, "the pipe was not closed in time", str(path))


def _joined(chunks: Iterable[bytes], path: Path, limit: int) -> bytes:
    found: list[bytes] = []
    n_left = limit
    for chunk in chunks:
        found.append(chunk)
        n_left -= len(chunk)
        if n_left < 0:
            why = f"it exceeds the limit of {limit:,} bytes"
            raise OSError(errno.EFBIG, why, str(path))
    return b"".join(found)


def open_file(path: Path) -> FileIO:
    """Open a file for reading, and wait for nothing; a pipe or a device is refused.

    Raises:
        OSError: it cannot be opened, or is no file.
    """
    _check_mode(file_status(path).st_mode, path)  # to open a device may be to change it
    file = open(path, "rb", buffering=0, opener=_opened)  # noqa: SIM115  the caller closes it
    try:
        _check_mode(os.fstat(file.fileno()).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def file_status(path: Path) -> os.stat_result:
    """What the system says of a file.

    Raises:
        OSError: it is not there, or its name can be none: texts may spell a zero byte.
    """
    try:
        return path.stat()
    except ValueError as error:
        raise OSError(errno.EINVAL, "the name contains a zero byte", str(path)) from error


def is_file(path: Path) -> bool:
    """Whether there is a file that may be looked for; a name too long for any is none."""
    try:
        return stat.S_ISREG(file_status(path).st_mode)
    except OSError:
        return False


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _check_mode(mode: int, path: Path) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


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


class FileLock:
    """Holds a name until `close`, or until the process ends however it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Release the name; a second call does nothing."""
        if self._descriptor is None:
            return
        # Unlinked while it is held, so whoever waits for it sees that its file is gone.
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take_lock(path: Path) -> FileLock | None:
    """A lock on the file at `path`, made for it and gone with it; None while someone else holds it.

    Raises:
        OSError: the file cannot be made.
    """
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_still_there(path, descriptor):
            return FileLock(path, descriptor)
        os.close(descriptor)


def _is_still_there(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def drafting_process(path: Path) -> int | None:
    """The number of the process that writes, or wrote, a draft; None where it is none."""
    number = path.name.removesuffix(DRAFT_SUFFIX).rpartition(".")[2]
    return int(number) if path.name.endswith(DRAFT_SUFFIX) and number.isdecimal() else None


def _is_text(value: object) -> bool:
    """Whether all texts of a value are Unicode, which names of files need not be."""
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


class NewestEntries(Generic[T]):
    """The newest entries of a file by their keys; one that cannot be written stays as it is.

    What is kept here can be found out again: a damaged entry is none. `path` None keeps nothing.
    `name` is the key of the entries in the file, and of more than `n_most` the oldest go.
    """

    def __init__(
        self, path: Path | None, name: str, version: int, n_most: int, kind: type[T]
    ) -> None:
        self._path, self._name, self._version, self._n_most = path, name, version, n_most
        self._kind = kind

    def read(self) -> dict[str, T]:
        """The entries, oldest first."""
        try:
            path = self._path
            found = None if path is None else parse_json(read_bytes(path, limit=RECORDS_BYTES))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict) or found.get("version") != self._version:
            return {}
        entries = found.get(self._name)
        return dict(self._sound(entries)) if isinstance(entries, dict) and entries else {}

    def add(self, key: str, entry: T) -> None:
        """Keep an entry as the newest, in the place of one with its key."""
        entries = self.read()
        entries.pop(key, None)
        with contextlib.suppress(OSError):
            self.write({**entries, key: entry})

    def write(self, entries: Mapping[str, T]) -> None:
        """Keep these entries and no others.

        Raises:
            OSError: they cannot be written; what was there stays.
        """
        if self._path is not None:
            dump = self._adapter.dump_python
            newest = list(entries.items())[-self._n_most :]
            found = {key: dump(entry, mode="json") for key, entry in newest}
            found = {key: entry for key, entry in found.items() if _is_text({key: entry})}
            text = json.dumps({"version": self._version, self._name: found})
            replace_file(self._path, [text.encode()], is_durable=False)

    def _sound(self, entries: Mapping[str, object]) -> Iterator[tuple[str, T]]:
        from pydantic import ValidationError

        validate = self._adapter.validate_python
        for key, entry in entries.items():
            with contextlib.suppress(ValidationError):
                yield key, validate(entry)

    @cached_property
    def _adapter(self) -> "TypeAdapter[T]":
        from pydantic import TypeAdapter  # the screen is up before an entry is asked for

        return TypeAdapter(self._kind)
