"""The connections that read the chat database, one for each thread."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.store.database import connect
from app.store.errors import StoreError, is_damage, read_error


class Readers:
    """One connection for each thread, closed between two reads and never amid one.

    SQLite's module for Python crashes where a connection is closed while a thread reads by it.
    """

    def __init__(self, path: Path) -> None:
        self.is_damaged = False
        """A read met damage in the file."""
        self._path = path
        self._lock = threading.Lock()
        self._readers: dict[threading.Thread, _ReadConnection] = {}
        self._is_closed = False

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """The connection of this thread.

        Raises:
            StoreError: If the readers are closed, or what is read meanwhile fails.
        """
        try:
            reader = self._of_thread()
            with reader.lock:
                self._check_open()
                yield reader.connection
        except sqlite3.Error as error:
            self.is_damaged = self.is_damaged or is_damage(error)
            raise read_error(error, self._path) from error

    def close(self) -> None:
        """Break off what is read just now, and close every connection."""
        with self._lock:
            self._is_closed = True
        for reader in self._readers.values():
            reader.connection.interrupt()
            with reader.lock:
                reader.connection.close()

    def _of_thread(self) -> "_ReadConnection":
        with self._lock:
            self._check_open()
            thread = threading.current_thread()
            if thread not in self._readers:
                for over in [each for each in self._readers if not each.is_alive()]:
                    self._readers.pop(over).connection.close()
                self._readers[thread] = _ReadConnection(self._path)
            return self._readers[thread]

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"{self._path} is closed")


class _ReadConnection:
    def __init__(self, path: Path) -> None:
        self.connection = connect(path)
        self.lock = threading.Lock()
