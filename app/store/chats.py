"""The chats of a user: a tree of messages each, in SQLite, written while a reply streams."""

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Self, Unpack

from app.format import moment
from app.store import search, sql
from app.store.database import (
    Backup,
    acquire_lock,
    connect,
    expire_backup,
    hold_database,
    open_database,
    release_database,
)
from app.store.errors import ChatInUseError, StoreError, is_damage, store_error
from app.store.records import (
    CHAT_COLUMNS,
    Chat,
    ChatChanges,
    ChatSize,
    ChatTree,
    StoredMessage,
    UnsentText,
    chat_of,
    message_of,
)
from app.store.writer import Writer
from engine.files import FileLock
from engine.model.speeds import ModelSpeed

RECENT_REPLIES = 20
"""The newest replies of a model, whose median is its speed in chats."""


class ChatStore:
    """Reads on the caller's thread, writes on a thread of its own.

    Every write returns when it is committed, except that `write_partial` returns at once and is on
    disk within half a second, and that `finish_message` waits for a database which another program
    writes. Two kvchat processes can use one database.

    Every method raises `StoreError` if the database cannot be read or written, or if a chat or
    message is gone, or a message is not of its chat.

    Attributes:
        notices: What the user should know about how the database was opened.
        writer: The thread that writes; its `on_error` receives errors of partial replies.
        unsent_of: Returns the text that stays unsent in a chat (None is the new one) when a
            question of it is saved.
    """

    def __init__(self, path: Path, *, patience_s: float | None = None) -> None:
        """Open the database at a path, or create it; a write waits `patience_s` for other programs.

        Raises:
            StoreError: If it cannot be opened, or has the tables of another version.
        """
        self.path = path
        self._holder = hold_database(path)
        try:
            connection, notice = open_database(path, self._holder)
        except StoreError:
            os.close(self._holder)
            raise
        self.notices: tuple[str, ...] = () if notice is None else (notice,)
        self.writer = Writer(connection, path)
        if patience_s is not None:
            self.writer.patience_s = patience_s
        self._backup = Backup(path)
        self._is_damaged = False
        self._new_lock: FileLock | None = None
        self._new_index = 0
        """Which of the new chats of all open kvchats is this one's."""
        self.unsent_of: Callable[[int | None], UnsentText] | None = None
        self._is_closed = False

    # --- reading ---

    def list_chats(
        self, limit: int = 500, *, archived: bool | None = False, pinned_first: bool = False
    ) -> list[Chat]:
        """The chats outside the archive, those in it, or all (None), last used first."""
        where = {None: "", False: "WHERE archived_at IS NULL", True: "WHERE archived_at NOT NULL"}
        first = "is_pinned DESC, " if pinned_first else ""
        rows = self._read(
            f"SELECT {CHAT_COLUMNS} FROM chats {where[archived]}"
            f" ORDER BY {first}updated_at DESC, id DESC LIMIT ?",
            limit,
        )
        return [chat_of(row) for row in rows]

    def count_chats(self, *, archived: bool = False) -> int:
        """The number of chats outside the archive, or in it."""
        where = "NOT NULL" if archived else "IS NULL"
        [(n,)] = self._read(f"SELECT count(*) FROM chats WHERE archived_at {where}")
        return int(n)

    def sizes(self) -> dict[int, ChatSize]:
        """Number of messages and tokens of each chat with messages, by its id."""
        return {chat_id: ChatSize(*size) for chat_id, *size in self._read(sql.SIZES)}

    def search(self, text: str, limit: int = 50) -> list[search.SearchHit]:
        """Matches that contain all words of `text`: titles, then messages, the newest first.

        Words are found inside words too, whatever their case; those of a phrase in double quotes
        follow one another. No text is an error, and blanks alone find nothing.
        """
        with self._reading() as connection:
            return search.search(connection, text, limit)

    def chat(self, chat_id: int) -> Chat:
        """One chat."""
        return chat_of(self._row("chat", chat_id, sql.CHAT))

    def message(self, message_id: int) -> StoredMessage:
        """One message."""
        return message_of(self._row("message", message_id, sql.MESSAGE))

    def tree(self, chat_id: int) -> ChatTree:
        """A chat with all of its messages, in the order in which they were added."""
        chat = self.chat(chat_id)
        return ChatTree(chat, tuple(map(message_of, self._read(sql.MESSAGES, chat_id))))

    def path_to(self, message_id: int) -> list[StoredMessage]:
        """The messages from the root of the tree to this one."""
        rows = self._read(sql.PATH, message_id)
        if not rows:
            raise sql.missing("message", message_id)
        return [message_of(row) for row in rows]

    def variant_ids(
        self, chat_id: int, beside: StoredMessage | None = None
    ) -> dict[int, list[int]]:
        """The ids of each message's variants in a chat, itself among them, oldest first.

        Other variants without text are left out: such a reply was requested and never began. With
        `beside`, only that message and its variants are read.
        """
        groups: dict[tuple[int | None, str], list[sqlite3.Row]] = defaultdict(list)
        query = sql.VARIANTS.format(beside="AND parent_id IS ? AND role = ?" if beside else "")
        values = () if beside is None else (beside.parent_id, beside.role)
        for row in self._read(query, chat_id, *values):
            groups[row["parent_id"], row["role"]].append(row)
        return {
            row["id"]: [each["id"] for each in group if each["has_text"] or each is row]
            for group in groups.values()
            for row in group
        }

    def leaf_of(self, message_id: int) -> int:
        """The newest message below this one, or itself if there is none."""
        leaf: int | None = self._read(sql.LEAF, message_id)[0]["leaf"]
        if leaf is None:
            raise sql.missing("message", message_id)
        return leaf

    def newest_questions(self, chat_id: int | None, *, limit: int) -> list[str]:
        """The questions of a chat, on all of its branches, or of all (None); newest first."""
        where = "" if chat_id is None else "AND chat_id = ?"
        values = (limit,) if chat_id is None else (chat_id, limit)
        rows = self._read(
            f"SELECT content FROM messages WHERE role = 'user' {where} ORDER BY id DESC LIMIT ?",
            *values,
        )
        return [row["content"] for row in rows]

    def model_speeds(self, n_newest: int = 1000) -> dict[str, ModelSpeed]:
        """Speeds without drafts of the newest replies of each model, by the model's name."""
        rows: dict[str, list[sqlite3.Row]] = defaultdict(list)
        for row in self._read(sql.SPEEDS, n_newest):
            rows[row["model_name"]].append(row)
        return {name: _speed_of(each[:RECENT_REPLIES]) for name, each in rows.items()}

    def unsent_texts(self) -> dict[int | None, UnsentText]:
        """The texts that were not sent, by chat; None is the new chat.

        Each open kvchat has a new chat of its own: the text of one that was closed goes to the next
        that calls this.

        Raises:
            StoreError: If they cannot be read, or no new chat can be locked.
        """
        rows = self._read(sql.UNSENT)
        if self._new_lock is None:
            self._lock_new_chat(sorted(row["place"] for row in rows if row["chat_id"] is None))
        return {
            row["chat_id"]: UnsentText(row["content"], row["edited_id"], row["before_edit"])
            for row in rows
            if row["chat_id"] is not None or row["place"] == self._new_index
        }

    # --- writing ---

    def update_chat(self, chat_id: int, **changes: Unpack[ChatChanges]) -> Chat:
        """Change a chat, which keeps its position in the list."""
        return self.writer.run(lambda db: sql.update_chat(db, chat_id, changes))

    def show_message(self, message_id: int) -> None:
        """Show this message in its chat, on its branch down to the newest leaf."""
        chat_id = self.message(message_id).chat_id
        head_id = self.chat(chat_id).head_id
        path = [] if head_id is None else self.path_to(head_id)
        if message_id not in (message.id for message in path):
            self.update_chat(chat_id, head_id=self.leaf_of(message_id))

    def add_trees(self, added: Iterable[ChatTree]) -> list[Chat]:
        """Add whole chats, all or none, with new ids for chats and messages.

        They are read one by one in the writer's thread; an error meanwhile adds none.

        Raises:
            StoreError: a parent, head or first message of the context is missing in its tree.
        """
        return self.writer.run(lambda db: [sql.insert_tree(db, tree) for tree in added])

    def fork_chat(self, message_id: int, *, live: StoredMessage | None = None) -> Chat:
        """Copy a chat with its settings up to one of its messages, and return the copy.

        `live` is a reply that is being written, as the copy should have it.
        """
        path = self.path_to(message_id)
        chat = self.chat(path[-1].chat_id)
        is_seen = chat.context_start in {message.id for message in path}
        now = time.time()
        forked = replace(
            chat,
            title=f"(fork) {chat.title.removeprefix('(fork) ')}",
            head_id=message_id,
            context_start=chat.context_start if is_seen else None,
            summary=chat.summary if is_seen else None,
            archived_at=None,
            created_at=now,
            updated_at=now,
        )
        copied = (live if live and live.id == message.id else message for message in path)
        return self.add_trees([ChatTree(forked, tuple(copied))])[0]

    def delete_chat(self, chat_id: int, held: FileLock | None = None) -> None:
        """Delete a chat and all of its messages; a deleted chat is no error.

        `held` is the caller's lock on it; without one the chat is locked meanwhile.

        Raises:
            ChatInUseError: If another kvchat process is answering in the chat.
        """
        lock = held or self.lock_chat(chat_id)
        if lock is None:
            raise ChatInUseError(
                f"another kvchat process is answering in chat {chat_id}: "
                "wait until the reply is complete"
            )
        with nullcontext() if held else lock:
            self.writer.run(lambda db: db.execute("DELETE FROM chats WHERE id = ?", (chat_id,)))
            expire_backup(self.path)

    def add_messages(
        self, chat: Chat, messages: Sequence[StoredMessage]
    ) -> tuple[Chat, list[StoredMessage]]:
        """Add messages to a chat, all or none, and return both as stored.

        The first message has a parent, each other one is below the one before it, and the last
        becomes the chat's head. A chat without an id is added too. In the same transaction the
        chat's unsent text becomes that of `unsent_of`, so that a question is never saved twice.
        """
        chat_id, index = chat.id or None, self._new_index
        unsent = None if self.unsent_of is None else self.unsent_of(chat_id)

        def add(db: sqlite3.Connection) -> tuple[Chat, list[StoredMessage]]:
            stored, added = sql.add_messages(db, chat, messages)
            if unsent is not None:
                sql.save_unsent(db, {chat_id: UnsentText(), stored.id: unsent}, index)
            return stored, added

        return self.writer.run(add)

    def write_partial(self, message_id: int, content: str, token_ids: Sequence[int]) -> None:
        """Save the text so far of a reply within 0.5 s; returns at once."""
        self.writer.write_partial(message_id, content, token_ids)

    def finish_message(self, ended: StoredMessage) -> StoredMessage | None:
        """Save the end of a reply, and return it as stored; later partial writes change nothing.

        None while another program holds the database: the reply is saved as soon as it is free.
        """
        self.writer.drop_partial(ended.id)
        return self.writer.run_surely(lambda db: sql.finish_message(db, ended))

    def reopen_message(self, message_id: int) -> None:
        """Open a finished reply again for partial writes, until `finish_message` ends it."""
        self.writer.run(lambda db: sql.reopen_message(db, message_id))

    def save_unsent(
        self,
        texts: Mapping[int | None, UnsentText],
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Save the unsent texts of these chats soon; returns at once.

        If that fails, the writer's thread calls `on_failed`.
        """
        index = self._new_index
        self.writer.later(lambda db: sql.save_unsent(db, texts, index), on_failed)

    def flush(self) -> None:
        """Wait until every earlier write is done, or the writer's patience is over."""
        self.writer.flush()

    # --- locks, end ---

    def lock_chat(self, chat_id: int) -> FileLock | None:
        """A lock to answer in a chat; None while another kvchat process has it."""
        return self._lock(f"chat-{chat_id}")

    def _lock_new_chat(self, left: Sequence[int]) -> None:
        """Lock the first new chat that no other kvchat has, those with a text first."""
        for index in chain(left, count()):
            self._new_lock, self._new_index = self._lock(f"new-{index}"), index
            if self._new_lock is not None:
                return

    def _lock(self, name: str) -> FileLock | None:
        return acquire_lock(self.path.with_name(self.path.name + ".locks") / name)

    def close(self) -> None:
        """Write what waits, and close every connection."""
        if self._is_closed:
            return
        self._is_closed = True
        self._backup.close()
        try:
            self.writer.close()
        finally:
            if self._new_lock is not None:
                self._new_lock.close()
            is_whole = not (self._is_damaged or self.writer.is_damaged)
            release_database(self.path, self._holder, is_whole=is_whole)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for one read; opening it takes 0.1 ms."""
        if self._is_closed:
            raise StoreError(f"the chat database {self.path} is closed")
        try:
            with closing(connect(self.path)) as connection:
                yield connection
        except sqlite3.Error as error:
            self._is_damaged = self._is_damaged or is_damage(error)
            raise store_error(error, self.path) from error

    def _read(self, query: str, *values: int | str | None) -> list[sqlite3.Row]:
        with self._reading() as connection:
            return connection.execute(query, values).fetchall()

    def _row(self, kind: str, key: int, query: str) -> sqlite3.Row:
        rows = self._read(query, key)
        if not rows:
            raise sql.missing(kind, key)
        return rows[0]


def _speed_of(newest: Sequence[sqlite3.Row]) -> ModelSpeed:
    """The median speed of a model's replies, the newest first."""
    when = moment(newest[0]["created_at"])
    day = "" if when is None else when.astimezone(UTC).date().isoformat()
    tps = 1 / median(row["step_s"] for row in newest)
    return ModelSpeed(tps, None, None, None, "", day, by="chats", n_replies=len(newest))
