"""A lock on one chat, so that a second kvchat does not write into it."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

from app.store.errors import StoreError


class ChatLock:
    """Holds a chat until `close`, or until the process ends however it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Let the chat go; a second call does nothing."""
        if self._descriptor is None:
            return
        # Unlinked while it is held, so whoever waits for it sees that its file is gone.
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> "ChatLock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def take_lock(path: Path) -> ChatLock | None:
    """Lock the file at `path`, or give None while someone else holds it.

    Raises:
        StoreError: If the lock file cannot be made.
    """
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be made ({error.strerror})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_still_there(path, descriptor):
            return ChatLock(path, descriptor)
        os.close(descriptor)


def _is_still_there(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
