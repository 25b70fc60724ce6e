"""Replace files atomically and read files within size limits."""

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, Self, TypeVar

from engine.parsing import parse_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
DRAFT_SUFFIX = ".new"  # suffix of a file that is being written, after the number of its process
SETTINGS_BYTES = 1 << 18  # of settings, presets and themes, which people write
RECORDS_BYTES = 1 << 23  # of JSON files that kvchat writes itself


def reason_of(error: Exception) -> str:
    """Why a file cannot be used, without the number and the path of an `OSError`."""
    return getattr(error, "strerror", None) or str(error)


def expanded(path: str | Path) -> Path:
    """A path with its `~` expanded, or unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def replace_file(
    path: Path, parts: Iterable[bytes | memoryview], *, is_durable: bool, mode: int = 0o600
) -> None:
    """Replace a file, not a link's target, atomically; safe with several processes.

    Its parts go to a new file in the same folder, which is made if it is missing; that file is
    flushed to disk and renamed. With `is_durable` the folder is flushed too, so that the new file
    survives a power cut. Raises `OSError`, and then leaves no temporary file.
    """
    with drafted_file(path, parts, mode=mode) as draft:
        draft.replace(path)
    if is_durable:
        sync_folder(path.parent)


@contextlib.contextmanager
def drafted_file(
    path: Path, parts: Iterable[bytes | memoryview], *, mode: int = 0o600
) -> Iterator[Path]:
    """Context with a file to rename to `path`, removed if not renamed; raises as `replace_file`."""
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
        with contextlib.suppress(OSError):  # the first error is the one to report
            draft.unlink(missing_ok=True)


def drafting_process(path: Path) -> int | None:
    """Id of the process that writes or wrote a draft file; None for other files."""
    number = path.name.removesuffix(DRAFT_SUFFIX).rpartition(".")[2]
    return int(number) if path.name.endswith(DRAFT_SUFFIX) and number.isdecimal() else None


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that new names in it survive a power cut; raises `OSError`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_text(path: Path, *, limit: int, errors: str = "strict") -> str:
    """Read a UTF-8 file with line ends converted to line feeds.

    Raises as `read_bytes`, and `UnicodeDecodeError` if it is not UTF-8 and `errors` is `strict`.
    """
    text = read_bytes(path, limit=limit).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Read a regular file.

    Raises `OSError` if it cannot be read, is not a regular file, or has more than `limit` bytes.
    """
    with io.BufferedReader(open_file(path)) as file:
        return _read_all(file, path, limit)


def read_file_or_pipe(path: Path, *, limit: int) -> bytes:
    """Read a file, or a pipe such as a shell's `<(command)`; raises as `read_bytes`."""
    if not stat.S_ISFIFO(file_status(path).st_mode):
        return read_bytes(path, limit=limit)
    with path.open("rb") as pipe:
        return _read_all(pipe, path, limit)


def _read_all(file: BinaryIO, path: Path, limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it exceeds the limit of {limit:,} bytes", str(path))
    return data


def open_file(path: Path) -> FileIO:
    """Open a file for reading without blocking; raises `OSError` for a pipe or a device."""
    mode = file_status(path).st_mode  # opening a device may change its state
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))

    def without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    return open(path, "rb", buffering=0, opener=without_waiting)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; raises `OSError`."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_status(path: Path) -> os.stat_result:
    """The status of a file; raises `OSError` if it is missing or its name has a zero byte."""
    try:
        return path.stat()
    except ValueError as error:
        raise OSError(errno.EINVAL, "the name contains a NUL byte", str(path)) from error


def exists(path: Path) -> bool:
    """Whether a path exists; False for an invalid name."""
    return os.path.exists(path)  # noqa: PTH110  that of pathlib raises for a long name


def is_file(path: Path) -> bool:
    """Whether a path is a regular file; False for an invalid name."""
    return os.path.isfile(path)  # noqa: PTH113  that of pathlib raises for a long name


class FileLock:
    """A lock that is held until `close` or the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor is None:
            return
        # Unlinked while locked, so that a waiting process notices that its file is gone.
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def acquire_lock(path: Path) -> FileLock | None:
    """Lock a file that exists as long as the lock; None if another process holds it."""
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return FileLock(path, descriptor)
        os.close(descriptor)  # its holder removed it meanwhile


@dataclass
class NewestEntries(Generic[T]):
    """Store of the newest `limit` entries in a JSON file, under its key `name`.

    Entries can be computed again: damaged ones are ignored. Without a path nothing is stored.
    """

    path: Path | None
    name: str
    version: int
    limit: int
    kind: type[T]

    def read(self) -> dict[str, T]:
        """Read the valid entries by key, oldest first."""
        try:
            found = self.path and parse_json(read_bytes(self.path, limit=RECORDS_BYTES))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict) or found.get("version") != self.version:
            return {}
        found, valid = found.get(self.name), {}
        for key, entry in found.items() if isinstance(found, dict) else ():
            with contextlib.suppress(ValueError):  # of pydantic
                valid[key] = self._adapter.validate_python(entry)
        return valid

    def add(self, key: str, entry: T) -> None:
        """Store an entry as the newest; disk errors are ignored."""
        entries = self.read()
        entries.pop(key, None)
        with contextlib.suppress(OSError):
            self.write({**entries, key: entry})

    def write(self, entries: Mapping[str, T]) -> None:
        """Replace all entries; raises `OSError` and then leaves the file unchanged."""
        if self.path is None:
            return
        dumped = {
            key: self._adapter.dump_python(entry, mode="json")
            for key, entry in list(entries.items())[-self.limit :]
        }
        text = json.dumps({"version": self.version, self.name: dumped}, ensure_ascii=False)
        data = text.encode(errors="replace")  # names of files need not be valid Unicode
        replace_file(self.path, [data], is_durable=False)

    @cached_property
    def _adapter(self) -> "TypeAdapter[T]":
        from pydantic import TypeAdapter  # a slow import, needed after the first screen only

        return TypeAdapter(self.kind)
