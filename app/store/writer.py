"""The one thread that writes the chat database."""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from app.store.errors import StoreError, busy_error, is_busy, is_damage, store_error
from app.store.records import dump_tokens
from engine.background import PAUSES_S, start_thread

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

FLUSH_S = 0.25
"""Seconds that a partial reply may wait before it is written."""
BUSY_S = 5.0
"""Seconds that a write waits for another program that is writing."""
TRY_EVERY_MS = 50


class Writer:
    """Runs jobs one after another on a connection of its own, each in a transaction.

    A caller waits `patience_s` seconds at most while another program writes the database: a job of
    `run` is then cancelled, and one of `run_surely` continues without the caller. Partial replies
    wait up to `FLUSH_S` seconds, and a newer one replaces an older one of the same message.

    An error that no caller receives goes to `on_error`, once until a write succeeds again; without
    a handler, the next `run` raises it.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.on_error: Callable[[StoreError], None] | None = None
        self.patience_s = 2 * BUSY_S
        self.is_damaged = False
        """Whether a write met damage in the file."""
        connection.execute(f"PRAGMA busy_timeout = {TRY_EVERY_MS}")
        self._connection = connection
        self._path = path
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._partials: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._partials_lock = threading.Lock()
        self._flush_at: float | None = None
        self._last_failure: str | None = None
        self._unreported: StoreError | None = None
        self._is_closed = False
        self._thread = start_thread(
            self._work,
            name="chat-store",
            on_fault=lambda fault: self._report(self._fault(fault.error)),
            pauses_s=PAUSES_S,
        )

    def run(self, job: Job[T]) -> T:
        """Run a job in a transaction on the writer's thread, and return its result.

        Raises:
            StoreError: the writer is closed, the job fails, another program writes the database for
                too long, or an earlier partial reply could not be written and nobody knows it.
        """
        self._raise_unreported()
        future = self._submit(job)
        try:
            return future.result(self.patience_s)
        except TimeoutError:
            if future.cancel():
                raise busy_error(self._path) from None
            return future.result()  # it runs: the other program is done

    def run_surely(self, job: Job[T]) -> T | None:
        """Run a job in a transaction, and wait for a busy database as long as it takes.

        Returns the result; None if the caller's patience ends before.

        Raises:
            StoreError: as `run`, except for a busy database.
        """
        self._raise_unreported()
        future = self._submit(job, is_patient=True)
        try:
            return future.result(self.patience_s)
        except TimeoutError:
            future.add_done_callback(self._report_failed)
            return None

    def later(self, job: Job[None], on_failed: Callable[[], None] = lambda: None) -> None:
        """Run a job in a transaction soon; returns at once.

        After an error, the writer's thread calls `on_failed`.
        """
        if not self._is_closed:
            report = partial(self._report_failed, on_failed=on_failed)
            self._submit(job).add_done_callback(report)

    def write_partial(self, message_id: int, content: str, token_ids: Sequence[int]) -> None:
        """Write the text so far of a reply within `FLUSH_S` seconds; returns at once."""
        with self._partials_lock:
            self._partials[message_id] = (content, tuple(token_ids))
            if self._flush_at is not None:
                return
            self._flush_at = time.monotonic() + FLUSH_S
        self._jobs.put(lambda: None)  # wakes the thread, which then waits until `_flush_at`

    def drop_partial(self, message_id: int) -> None:
        """Forget the partial text of a message."""
        with self._partials_lock:
            self._partials.pop(message_id, None)

    def flush(self) -> None:
        """Write partial replies, and wait for every earlier write, `patience_s` at most."""
        self._raise_unreported()
        is_done = threading.Event()
        if not self._is_closed:
            self._jobs.put(self._flush)
            self._jobs.put(is_done.set)
            is_done.wait(self.patience_s)

    def close(self) -> None:
        """Write what waits, end the thread and close its connection."""
        if self._is_closed:
            return
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        self._raise_unreported()

    # --- the thread ---

    def _submit(self, job: Job[T], *, is_patient: bool = False) -> "Future[T]":
        if self._is_closed:
            raise StoreError(f"the chat database {self._path} is closed")
        future: Future[T] = Future()
        self._jobs.put(partial(self._do, future, job, is_patient=is_patient))
        return future

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._time_to_flush())
            except queue.Empty:
                job = self._flush
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

    def _flush(self) -> None:
        with self._partials_lock:
            partials, self._partials = self._partials, {}
            self._flush_at = None
        if partials:
            rows = [(text, dump_tokens(ids), key) for key, (text, ids) in partials.items()]
            written: Future[None] = Future()
            written.add_done_callback(self._report_failed)
            self._do(written, partial(_update_partials, rows), is_patient=False)

    def _do(self, future: "Future[T]", job: Job[T], *, is_patient: bool) -> None:
        """Run a job in a transaction, unless its caller has given up before it begins."""
        try:
            self._begin(future, is_patient=is_patient)
            if not future.set_running_or_notify_cancel():
                self._connection.execute("ROLLBACK")
                return
            result = job(self._connection)
            self._connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001  handed to the caller
            # SQLite itself ends the transaction after some faults, such as a full disk.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if future.running() or future.set_running_or_notify_cancel():
                future.set_exception(self._translated(error))
        else:
            self._last_failure = None
            future.set_result(result)

    def _begin(self, future: "Future[T]", *, is_patient: bool) -> None:
        """Begin a transaction as soon as no other program writes.

        Raises:
            sqlite3.Error: another program writes for `BUSY_S` seconds, the caller has given up, or
                the database fails. A patient job waits on, until the writer is closed.
        """
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.Error as error:
                if not is_busy(error) or future.cancelled():
                    raise
                if time.monotonic() > deadline:
                    if self._is_closed or not is_patient:
                        raise
                    self._report(store_error(error, self._path))

    # --- errors ---

    def _translated(self, error: BaseException) -> BaseException:
        match error:
            case sqlite3.Error():
                self.is_damaged = self.is_damaged or is_damage(error)
                found = store_error(error, self._path)
            case UnicodeEncodeError():
                half = f"U+{ord(error.object[error.start]):04X}"
                found = StoreError(
                    f"The text contains {half}, an unpaired surrogate, and cannot be saved in "
                    f"{self._path}: remove that character"
                )
            case _:
                return error
        found.__cause__ = error
        return found

    def _report_failed(
        self, future: "Future[Any]", *, on_failed: Callable[[], None] = lambda: None
    ) -> None:
        if future.cancelled() or (error := future.exception()) is None:
            return
        on_failed()
        self._report(error if isinstance(error, StoreError) else self._fault(error))

    def _fault(self, error: BaseException) -> StoreError:
        fault = StoreError(f"{self._path} could not be written: {type(error).__name__}")
        fault.__cause__ = error
        return fault

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


def _update_partials(
    rows: Sequence[tuple[str, bytes | None, int]], connection: sqlite3.Connection
) -> None:
    connection.executemany(
        "UPDATE messages SET content = ?, token_ids = ? WHERE id = ? AND finish_reason IS NULL",
        rows,
    )
