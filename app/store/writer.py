"""The one thread that writes the chat database."""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from app.store.errors import StoreError, is_damaged_index, store_error
from app.store.records import dump_tokens
from app.store.search import rebuild

T = TypeVar("T")

FLUSH_S = 0.25
"""Seconds that a partial reply may wait before it is written."""

_Partial = tuple[str, tuple[int, ...]]


class Writer:
    """Runs closures one after another on a connection of its own, each in a transaction.

    Partial replies are kept back up to `FLUSH_S` seconds, the newest of a message replacing the
    ones before. What fails there is given to `on_error`, once until a write succeeds again;
    without a handler the next `run` raises it.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.on_error: Callable[[StoreError], None] | None = None
        self._connection = connection
        self._path = path
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._partials: dict[int, _Partial] = {}
        self._partials_lock = threading.Lock()
        self._flush_at: float | None = None
        self._last_failure: str | None = None
        self._unreported: StoreError | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="chat-store", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` in a transaction on the writer's thread and give what it returns.

        Raises:
            StoreError: If the writer is closed, the job fails, or an earlier partial reply could
                not be written and nobody was told.
        """
        self._raise_unreported()
        if self._is_closed:
            raise StoreError(f"{self._path} is closed")
        future: Future[T] = Future()
        self._jobs.put(lambda: self._settle(future, job))
        return future.result()

    def write_partial(self, message_id: int, content: str, token_ids: Sequence[int]) -> None:
        """Note the text so far of a reply, written within `FLUSH_S` seconds; returns at once."""
        with self._partials_lock:
            self._partials[message_id] = (content, tuple(token_ids))
            if self._flush_at is not None:
                return
            self._flush_at = time.monotonic() + FLUSH_S
        self._jobs.put(_wake)

    def drop_partial(self, message_id: int) -> None:
        """Forget what `write_partial` noted for a message."""
        with self._partials_lock:
            self._partials.pop(message_id, None)

    def close(self) -> None:
        """Write what is kept back, end the thread and close its connection."""
        if self._is_closed:
            return
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        self._raise_unreported()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._time_to_flush())
            except queue.Empty:
                self._flush()
                continue
            if job is None:
                self._flush()
                return
            job()
            if self._time_to_flush() == 0.0:
                self._flush()

    def _time_to_flush(self) -> float | None:
        with self._partials_lock:
            if self._flush_at is None:
                return None
            return max(0.0, self._flush_at - time.monotonic())

    def _settle(self, future: "Future[T]", job: Callable[[sqlite3.Connection], T]) -> None:
        try:
            future.set_result(self._transact(job))
        except BaseException as error:  # noqa: BLE001  handed to the caller, who waits for it
            future.set_exception(error)

    def _transact(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            try:
                return self._in_transaction(job)
            except sqlite3.Error as error:
                if not is_damaged_index(error):
                    raise
                # No reply is lost because words cannot be found: the messages are whole.
                self._in_transaction(rebuild)
                return self._in_transaction(job)
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error

    def _in_transaction(self, job: Callable[[sqlite3.Connection], T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = job(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite has ended the transaction by itself after some faults, a full disk too.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return result

    def _flush(self) -> None:
        with self._partials_lock:
            partials, self._partials = self._partials, {}
            self._flush_at = None
        if not partials:
            return
        try:
            self._transact(lambda connection: _update_partials(connection, partials))
        except StoreError as error:
            self._report(error)
        else:
            self._last_failure = None

    def _report(self, error: StoreError) -> None:
        if str(error) == self._last_failure:
            return
        self._last_failure = str(error)
        if self.on_error is None:
            self._unreported = error
        else:
            self.on_error(error)

    def _raise_unreported(self) -> None:
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error


def _wake() -> None:
    """Do nothing: the writer only looks at its clock again."""


def _update_partials(connection: sqlite3.Connection, partials: dict[int, _Partial]) -> None:
    connection.executemany(
        "UPDATE messages SET content = ?, token_ids = ? WHERE id = ? AND finish_reason IS NULL",
        [(content, dump_tokens(tokens), key) for key, (content, tokens) in partials.items()],
    )
