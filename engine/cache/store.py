"""Segments on disk: one SQLite row and one file each, for all models and processes.

A file holds a digest and the backend's state. The digest also covers the segment's key, which is
derived from model, settings and tokens, so files cannot be confused. A file is renamed into place
within the transaction that writes its row: a killed process leaves at most a file without a row
or a row without a file, and neither is used.
"""

import contextlib
import math
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Self, TypeVar

import psutil

from engine.cache.eviction import eviction_order
from engine.cache.namespace import Namespace
from engine.cache.segments import Payload, Segment
from engine.cache.table import (
    NAMES,
    NAMES_WITHOUT_TOKENS,
    SCHEMA_VERSION,
    SUFFIX,
    TABLE,
    TABLE_FAULTS,
    connect,
    insert_namespace,
    insert_segment,
    is_busy_or_full,
    is_damage,
    namespace_of_row,
    owners_text,
    segment_of_row,
    store_error,
    transaction,
)
from engine.errors import CacheStoreError, StateError
from engine.files import DRAFT_SUFFIX, drafted_file, drafting_process, open_file

DIGEST_BYTES = 32
DELETE = "DELETE FROM segments WHERE key = ?"
Found = TypeVar("Found")


class SegmentStore:
    """The segments of a folder, safe for threads and processes.

    A table that is damaged or of another version is recreated, and all segments are deleted. All
    methods raise `CacheStoreError` if the folder cannot be read or written.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = path / TABLE
        self._lock = threading.RLock()
        self._notes: list[str] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_leftovers(path)
            self._rows = self._open()
        except (OSError, *TABLE_FAULTS) as error:
            raise store_error(error, self._table) from error
        with contextlib.suppress(CacheStoreError, OSError):  # leftovers only take space
            self._remove_strays()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the table; a second call does nothing."""
        with self._lock:
            self._rows.close()

    @property
    def nbytes(self) -> int:
        """Total size of the segments of all namespaces, in bytes."""
        total = "SELECT TOTAL(nbytes) FROM segments"
        return int(self._run(lambda rows: rows.execute(total).fetchone()[0]))

    def take_notes(self) -> tuple[str, ...]:
        """Return and clear the messages for the user."""
        notes, self._notes = tuple(self._notes), []
        return notes

    def add_namespace(self, namespace: Namespace) -> None:
        """Save a namespace and the path of its model."""
        self._change(lambda rows: insert_namespace(rows, namespace))

    def namespaces(self) -> list[Namespace]:
        """All namespaces; some may have no segments."""
        return self._run(
            lambda rows: list(map(namespace_of_row, rows.execute("SELECT * FROM namespaces")))
        )

    def segments(self, namespace: str | None = None, *, has_tokens: bool = True) -> list[Segment]:
        """The segments of a namespace, or of all, in any order; faster without their tokens."""
        where, values = ("", ()) if namespace is None else (" WHERE namespace = ?", (namespace,))
        query = f"SELECT {NAMES if has_tokens else NAMES_WITHOUT_TOKENS} FROM segments{where}"
        read = partial(segment_of_row, has_tokens=has_tokens)
        return self._run(lambda rows: list(map(read, rows.execute(query, values))))

    def write(self, namespace: Namespace, segment: Segment, payload: Payload) -> None:
        """Write a segment atomically, replacing one with the same key."""
        path = self.file_of(segment.key)

        def insert(rows: sqlite3.Connection) -> None:
            insert_namespace(rows, namespace)
            insert_segment(rows, segment)
            if draft.exists():  # otherwise an earlier attempt has renamed it
                draft.replace(path)

        try:
            with drafted_file(path, [_digest(segment.key, payload), payload]) as draft:
                try:
                    self._change(insert)
                except CacheStoreError:
                    if not draft.exists():
                        path.unlink(missing_ok=True)  # it was renamed, but its row was not written
                    raise
        except OSError as error:
            raise store_error(error, path) from error

    def read(self, segment: Segment) -> bytes:
        """The state of a segment; waits for no other thread.

        Raises:
            StateError: the file is gone or damaged; the segment was removed.
            CacheStoreError: the file exists and cannot be read.
        """
        path = self.file_of(segment.key)
        try:
            with open_file(path) as file:
                if os.fstat(file.fileno()).st_size != segment.nbytes + DIGEST_BYTES:
                    raise self._unusable(segment, "its size has changed")
                digest, payload = file.read(DIGEST_BYTES), file.readall()
        except FileNotFoundError as error:
            raise self._unusable(segment, "its file is missing") from error
        except OSError as error:
            raise store_error(error, path) from error
        if digest != _digest(segment.key, payload):
            raise self._unusable(segment, "it is damaged: the checksum differs")
        return payload

    def delete(self, keys: Collection[str]) -> None:
        """Delete segments; unknown keys are ignored."""
        if keys:
            self._change(lambda rows: self._delete(rows, keys))

    def prune(
        self,
        nbytes: int,
        *,
        now: float,
        used_before: float = math.inf,
        in_use: Collection[str] = (),
    ) -> list[Segment]:
        """Delete the segments of lowest worth until `nbytes` are free; return them without tokens.

        Those whose model file is gone are deleted first.

        Args:
            nbytes: Bytes to free.
            now: Seconds since the epoch.
            used_before: Delete only segments last used before this time.
            in_use: Keys of segments to protect; pinned ones are protected too.
        """
        orphaned = {each.key for each in self.namespaces() if each.is_orphaned}

        def may_go(segment: Segment) -> bool:
            is_free = not segment.is_pinned and segment.key not in in_use
            return is_free and segment.used_at < used_before

        known = self.segments(has_tokens=False)
        gone: list[Segment] = []
        order = eviction_order(
            known, may_go=may_go, is_useless=lambda each: each.namespace in orphaned, now=now
        )
        for segment in order:
            if nbytes <= 0:
                break
            gone.append(segment)
            nbytes -= segment.nbytes
        self.delete([segment.key for segment in gone])
        return gone

    def forget(self, owner: str) -> list[Segment]:
        """Delete and return the segments, pinned or not, that only this owner used.

        The owner is removed from segments that others use as well.
        """
        found = [segment for segment in self.segments() if owner in segment.owners]
        gone = [segment for segment in found if segment.owners == {owner}]

        def forget(rows: sqlite3.Connection) -> None:
            self._delete(rows, [segment.key for segment in gone])
            rows.executemany(
                "UPDATE segments SET owners = ? WHERE key = ?",
                [(owners_text(each.owners - {owner}), each.key) for each in found],
            )

        if found:
            self._change(forget)
        return gone

    def save_uses(self, segments: Iterable[Segment]) -> None:
        """Save last use, number of uses and owners of segments."""
        update = "UPDATE segments SET used_at = ?, n_uses = ?, owners = ? WHERE key = ?"
        uses = [
            (each.used_at, each.n_uses, owners_text(each.owners), each.key) for each in segments
        ]
        if uses:
            self._change(lambda rows: rows.executemany(update, uses))

    def pin(self, key: str, *, is_pinned: bool) -> None:
        """Pin or unpin a segment."""
        update = "UPDATE segments SET is_pinned = ? WHERE key = ?"
        self._change(lambda rows: rows.execute(update, (is_pinned, key)))

    def file_of(self, key: str) -> Path:
        """Path of a segment's file."""
        return self.path / f"{key}{SUFFIX}"

    def _open(self) -> sqlite3.Connection:
        try:
            return connect(self._table)
        except TABLE_FAULTS as error:
            if not is_damage(error):
                raise
            return self._recreate()

    def _recreate(self) -> sqlite3.Connection:
        for suffix in ("", "-journal"):
            self._table.with_name(TABLE + suffix).unlink(missing_ok=True)
        for key in self._files():
            with contextlib.suppress(OSError):
                self.file_of(key).unlink(missing_ok=True)
        self._notes.append(
            f"{self._table} was damaged or written by another version of kvchat: all states "
            "on disk were deleted"
        )
        return connect(self._table)

    def _run(self, action: Callable[[sqlite3.Connection], Found]) -> Found:
        """Run an action on the table; after an error reopen or recreate it and retry once."""
        with self._lock:
            try:
                return action(self._rows)
            except TABLE_FAULTS as error:
                if is_busy_or_full(error):
                    raise store_error(error, self._table) from error
                open_again = self._recreate if is_damage(error) else self._open
            try:
                self._rows.close()
                self._rows = open_again()
                return action(self._rows)
            except (OSError, *TABLE_FAULTS) as error:
                raise store_error(error, self._table) from error

    def _change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        self._run(lambda rows: transaction(rows, change))

    def _delete(self, rows: sqlite3.Connection, keys: Collection[str]) -> None:
        """Delete files before rows: on a full disk that frees the space to change the table."""
        for key in keys:
            path = self.file_of(key)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise store_error(error, path) from error
        rows.executemany(DELETE, [(key,) for key in keys])

    def _unusable(self, segment: Segment, reason: str) -> StateError:
        """Delete an unusable segment and return the error that reports it."""
        fate = "it was deleted, and its tokens will be recomputed"
        try:
            self.delete([segment.key])
        except CacheStoreError as error:
            fate = f"it cannot be deleted: {error}"
        return StateError(f"the saved state {segment.key} could not be used ({reason}): {fate}")

    def _remove_strays(self) -> None:
        """Remove files without a row, rows without a file, and namespaces without segments."""

        def remove(rows: sqlite3.Connection) -> None:
            # Outside a transaction, another process may have renamed a file but not added its row.
            files, keys = self._files(), _keys(rows)
            for key in files - keys:
                with contextlib.suppress(OSError):
                    self.file_of(key).unlink(missing_ok=True)
            rows.executemany(DELETE, [(key,) for key in keys - files])
            rows.execute("DELETE FROM namespaces WHERE key NOT IN (SELECT namespace FROM segments)")

        if self._run(_keys) != self._files():
            self._change(remove)

    def _files(self) -> set[str]:
        return {each.name.removesuffix(SUFFIX) for each in self.path.glob(f"*{SUFFIX}")}


def _keys(rows: sqlite3.Connection) -> set[str]:
    return {key for (key,) in rows.execute("SELECT key FROM segments")}


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of processes that no longer run.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as found:
        drafts = [Path(entry.path) for entry in found if entry.name.endswith(DRAFT_SUFFIX)]
    for draft in drafts:
        process = drafting_process(draft)
        if process is not None and not psutil.pid_exists(process):
            with contextlib.suppress(OSError):  # it only takes space
                draft.unlink(missing_ok=True)


def _digest(key: str, payload: Payload) -> bytes:
    digest = sha256(f"kvchat state {SCHEMA_VERSION} {key}\n".encode())
    digest.update(payload)
    return digest.digest()
