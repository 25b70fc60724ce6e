"""The one thread that writes the chat database."""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TypeVar

from app.store.errors import StoreError, busy_error, is_busy, is_damage, store_error
from app.store.records import dump_tokens
from engine.background import PAUSES_S, ThreadFault, start_thread

T = TypeVar("T")

FLUSH_S = 0.25
"""Seconds that a partial reply may wait before it is written."""
BUSY_S = 5.0
"""Seconds that a write waits for another program that is writing."""
TRY_EVERY_MS = 50

_Partial = tuple[str, tuple[int, ...]]


class Writer:
    """Runs closures one after another on a connection of its own, each in a transaction.

    Whoever asks waits `patience_s` seconds at most: while another program writes the database, a
    job of `run` is then given up, and one of `run_surely` continues without the caller.
    Partial replies are kept back up to `FLUSH_S` seconds, the newest of a message replacing the
    ones before. What fails there is given to `on_error`, once until a write succeeds again;
    without a handler the next `run` raises it.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.on_error: Callable[[StoreError], None] | None = None
        self.patience_s = 2 * BUSY_S
        """How long a caller waits, in seconds."""
        connection.execute(f"PRAGMA busy_timeout = {TRY_EVERY_MS}")
        self._connection = connection
        self._path = path
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._partials: dict[int, _Partial] = {}
        self._partials_lock = threading.Lock()
        self._flush_at: float | None = None
        self._last_failure: str | None = None
        self._unreported: StoreError | None = None
        self._is_closed = False
        self.is_damaged = False
        """A write met damage in the file."""
        self._thread = start_thread(
            self._work, name="chat-store", on_fault=self._report_fault, pauses_s=PAUSES_S
        )

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` in a transaction on the writer's thread and give what it returns.

        Raises:
            StoreError: If the writer is closed, the job fails, another program writes the database
                for too long, or an earlier partial reply could not be written and nobody was told.
        """
        self._raise_unreported()
        future = self._submit(job)
        try:
            return future.result(self.patience_s)
        except TimeoutError:
            if future.cancel():
                raise busy_error(self._path) from None
            return future.result()  # it has begun: what it waited for is over

    def run_surely(self, job: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run `job` in a transaction, and wait for a busy database as long as it takes.

        Gives what it returns, or None where the caller's patience is over: it is done later then,
        and `on_error` receives the error if that fails.

        Raises:
            StoreError: As `run` does, except for a busy database.
        """
        self._raise_unreported()
        future = self._submit(job, is_patient=True)
        try:
            return future.result(self.patience_s)
        except TimeoutError:
            future.add_done_callback(self._report_late)
            return None

    def _submit(
        self, job: Callable[[sqlite3.Connection], T], *, is_patient: bool = False
    ) -> "Future[T]":
        if self._is_closed:
            raise StoreError(f"{self._path} is closed")
        future: Future[T] = Future()
        self._jobs.put(lambda: self._settle(future, job, is_patient=is_patient))
        return future

    def _report_late(self, future: "Future[T]") -> None:
        error = future.exception()
        if isinstance(error, StoreError):
            self._report(error)

    def later(
        self,
        job: Callable[[sqlite3.Connection], None],
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `job` in a transaction soon; returns at once, and errors are reported as above.

        After an error the writer's thread calls `on_failed`.
        """
        if not self._is_closed:
            self._jobs.put(lambda: self._try(job, on_failed))

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

    def _settle(
        self, future: "Future[T]", job: Callable[[sqlite3.Connection], T], *, is_patient: bool
    ) -> None:
        def unless_given_up(connection: sqlite3.Connection) -> T:
            if not _begins(future):
                raise CancelledError
            return job(connection)

        try:
            result = self._transact(
                unless_given_up, is_patient=is_patient, is_given_up=future.cancelled
            )
        except CancelledError:
            return
        except BaseException as error:  # noqa: BLE001  handed to the caller, who waits for it
            if _begins(future):
                future.set_exception(error)
        else:
            future.set_result(result)

    def _transact(
        self,
        job: Callable[[sqlite3.Connection], T],
        *,
        is_patient: bool = False,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> T:
        try:
            self._begin(is_patient=is_patient, is_given_up=is_given_up)
            return self._commit(job)
        except sqlite3.Error as error:
            self.is_damaged = self.is_damaged or is_damage(error)
            raise store_error(error, self._path) from error
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):04X}"
            raise StoreError(
                f"The text contains {half}, an unpaired surrogate, and cannot be saved in "
                f"{self._path}: remove that character"
            ) from error

    def _begin(
        self, *, is_patient: bool = False, is_given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin a transaction as soon as no other program writes.

        Raises:
            sqlite3.Error: If one writes for `BUSY_S` seconds, the caller has given up, or the
                database fails. A patient one waits on, until the writer is closed.
        """
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.Error as error:
                if not is_busy(error) or is_given_up():
                    raise
                if time.monotonic() > deadline:
                    if self._is_closed or not is_patient:
                        raise
                    self._report(store_error(error, self._path))

    def _commit(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in the transaction that was begun, and end that."""
        try:
            result = job(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite has ended the transaction by itself after some faults, a full disk too.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._last_failure = None
        return result

    def _flush(self) -> None:
        with self._partials_lock:
            partials, self._partials = self._partials, {}
            self._flush_at = None
        if not partials:
            return
        self._try(lambda connection: _update_partials(connection, partials))

    def _try(
        self,
        job: Callable[[sqlite3.Connection], None],
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        try:
            self._transact(job)
        except StoreError as error:
            on_failed()
            self._report(error)
        except Exception as error:  # noqa: BLE001  the next jobs have to be done
            on_failed()
            self._report(self._fault(error))

    def _fault(self, error: Exception) -> StoreError:
        fault = StoreError(f"{self._path} could not be written: {type(error).__name__}")
        fault.__cause__ = error
        return fault

    def _report_fault(self, fault: ThreadFault) -> None:
        self._report(self._fault(fault.error))

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


def _begins(future: "Future[T]") -> bool:
    """Whether somebody waits for a job still, who cannot give it up any more from here on."""
    if future.cancelled():
        return False
    return future.running() or future.set_running_or_notify_cancel()


def _wake() -> None:
    """An empty job, after which the writer looks at its clock again."""


def _update_partials(connection: sqlite3.Connection, partials: dict[int, _Partial]) -> None:
    connection.executemany(
        "UPDATE messages SET content = ?, token_ids = ? WHERE id = ? AND finish_reason IS NULL",
        [(content, dump_tokens(tokens), key) for key, (content, tokens) in partials.items()],
    )
