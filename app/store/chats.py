"""The chats of a user: a tree of messages each, in SQLite, written while a reply streams."""

import os
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Self

from app.format import moment
from app.store import search, sql
from app.store.database import (
    Backup,
    acquire_lock,
    expire_backup,
    hold_database,
    open_database,
    release_database,
)
from app.store.errors import ChatInUseError, StoreError
from app.store.readers import Readers
from app.store.records import (
    CHAT_COLUMNS,
    MESSAGE_COLUMNS,
    Chat,
    ChatChanges,
    ChatSize,
    ChatTree,
    NewChat,
    NewMessage,
    NewTurn,
    StoredMessage,
    Turn,
    UnsentText,
    chat_of,
    message_of,
    plain_step_of,
)
from app.store.writer import Writer
from engine.files import FileLock
from engine.model.speeds import ModelSpeed

RECENT_REPLIES = 20
"""The newest replies of a model, whose median is its speed in chats."""
_FORKED = re.compile(r"^\(fork(?: \d+)?\) ")


class ChatStore:
    """Reads on the caller's thread, writes on one thread of its own.

    Every write returns when it is committed, except that `write_partial` returns at once and is on
    disk within half a second, and that `finish_message` outlasts a database which another program
    writes. Two kvchat can use one database. `StoreError` says that a chat or message is gone, that
    a message is none of its chat, or that the database cannot be read or written.

    Attributes:
        notices: What the user should know about how the database was opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        patience_s: float | None = None,
    ) -> None:
        """Open the database at a path; it need not exist.

        Args:
            path: The database file.
            patience_s: How long a caller waits while another program writes; None is as long as a
                command may, which is seconds.

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
        self._writer = Writer(connection, path)
        if patience_s is not None:
            self._writer.patience_s = patience_s
        self._backup = Backup(path)
        self._readers = Readers(path)
        self._new_lock: FileLock | None = None
        self._new_index = 0
        """Which of the new chats of all open kvchats is this one's."""
        self.unsent_of: Callable[[int | None], UnsentText] | None = None
        """What stays unsent in a chat, None being the new one, when a question of it is saved."""
        self._is_closed = False

    @property
    def on_error(self) -> Callable[[StoreError], None] | None:
        """Receives, on the writer's thread, the error of a partial reply that was not written.

        Without a handler the next write raises it.
        """
        return self._writer.on_error

    @on_error.setter
    def on_error(self, handler: Callable[[StoreError], None] | None) -> None:
        self._writer.on_error = handler

    def list_chats(
        self, limit: int = 500, *, archived: bool | None = False, pinned_first: bool = False
    ) -> list[Chat]:
        """The chats outside the archive, those in it, or all (None), last used first.

        Args:
            limit: How many at most.
            archived: Which.
            pinned_first: Whether the pinned ones come before all others.
        """
        where = {None: "", False: "WHERE archived_at IS NULL", True: "WHERE archived_at NOT NULL"}
        first = "is_pinned DESC, " if pinned_first else ""
        rows = self._read(
            f"SELECT {CHAT_COLUMNS} FROM chats {where[archived]}"
            f" ORDER BY {first}updated_at DESC, id DESC LIMIT ?",
            limit,
        )
        return [chat_of(row) for row in rows]

    def count_chats(self, *, archived: bool = False) -> int:
        """How many chats there are outside the archive, or in it."""
        where = "NOT NULL" if archived else "IS NULL"
        [row] = self._read(f"SELECT count(*) AS n FROM chats WHERE archived_at {where}")
        n: int = row["n"]
        return n

    def sizes(self) -> dict[int, ChatSize]:
        """How much each chat with messages holds, by its id."""
        return {row["chat_id"]: ChatSize(row["m"], row["t"]) for row in self._read(sql.SIZES)}

    def search(self, text: str, limit: int = 50) -> list[search.SearchHit]:
        """Where everything in `text` is found: titles, then messages, the newest first.

        Words are found inside words too, whatever their case; a phrase in double quotes is whole
        words in sequence. No text is an error, and blanks alone find nothing.
        """
        with self._readers.connection() as connection:
            return search.search(connection, text, limit)

    def chat(self, chat_id: int) -> Chat:
        """One chat."""
        rows = self._read(sql.CHAT, chat_id)
        return chat_of(_only(rows, "chat", chat_id))

    def message(self, message_id: int) -> StoredMessage:
        """One message."""
        rows = self._read(f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id = ?", message_id)
        return message_of(_only(rows, "message", message_id))

    def tree(self, chat_id: int) -> ChatTree:
        """A chat with all of its messages, in the order in which they were added."""
        with self._readers.connection() as connection:
            return sql.read_tree(connection, chat_id)

    def path_to(self, message_id: int) -> list[StoredMessage]:
        """The messages from the root of the tree to this one."""
        rows = self._read(sql.PATH, message_id)
        _only(rows[-1:], "message", message_id)
        return [message_of(row) for row in rows]

    def variants(self, message_id: int) -> list[StoredMessage]:
        """The messages of the same parent and role, this one among them, oldest first."""
        rows = self._read(sql.VARIANTS, message_id)
        _only(rows[:1], "message", message_id)
        return [message_of(row) for row in rows]

    def variant_ids(self, chat_id: int) -> dict[int, list[int]]:
        """The ids of each message's variants in a chat, itself among them, oldest first.

        Others without text are left out: such a reply was asked for and never began.
        """
        groups: dict[tuple[int | None, str], list[sqlite3.Row]] = defaultdict(list)
        for row in self._read(sql.OUTLINE, chat_id):
            groups[row["parent_id"], row["role"]].append(row)
        return {key: ids for group in groups.values() for key, ids in _variant_ids(group)}

    def variant_ids_beside(self, message_id: int) -> dict[int, list[int]]:
        """The same as `variant_ids`, of one message and its variants alone."""
        return dict(_variant_ids(self._read(sql.VARIANT_OUTLINE, message_id)))

    def leaf_of(self, message_id: int) -> int:
        """The newest message below this one, or itself where there is none."""
        leaf: int | None = self._read(sql.LEAF, message_id)[0]["leaf"]
        if leaf is None:
            raise sql.missing("message", message_id)
        return leaf

    def newest_questions(self, chat_id: int | None, *, limit: int) -> list[str]:
        """What the user asked in a chat, on all of its branches, or in all (None); newest first."""
        where = "" if chat_id is None else "AND chat_id = ?"
        values = (limit,) if chat_id is None else (chat_id, limit)
        rows = self._read(
            f"SELECT content FROM messages WHERE role = 'user' {where} ORDER BY id DESC LIMIT ?",
            *values,
        )
        return [row["content"] for row in rows]

    def model_speeds(self, n_newest: int = 1000) -> dict[str, ModelSpeed]:
        """What the newest replies of each model took without drafts, by the model's name."""
        steps: dict[str, list[float]] = {}
        newest: dict[str, float] = {}
        for row in self._read(sql.SPEEDS, n_newest):
            if (step_s := plain_step_of(row["stats"])) is not None:
                steps.setdefault(row["model_name"], []).append(step_s)
                newest.setdefault(row["model_name"], row["created_at"])
        return {name: _speed_of(each, newest[name]) for name, each in steps.items()}

    def create_chat(self, new: NewChat) -> Chat:
        """Begin a chat without messages."""
        return self._writer.run(lambda db: sql.insert_chat(db, new))

    def update_chat(self, chat_id: int, changes: ChatChanges) -> Chat:
        """Change a chat, which keeps its position in the list."""
        return self._writer.run(lambda db: sql.update_chat(db, chat_id, changes))

    def set_archived(self, chat_id: int, *, archived: bool) -> Chat:
        """Put a chat into the archive or take it out; it keeps its position in the list."""
        return self._writer.run(lambda db: sql.archive_chat(db, chat_id, archived=archived))

    def set_kept_from(
        self, chat_id: int, message_id: int | None, *, summary: str | None = None
    ) -> Chat:
        """Show the model a chat from a message on; None shows it all.

        Args:
            chat_id: The chat.
            message_id: The first message that the model sees.
            summary: What it sees in place of those before.
        """
        return self._writer.run(lambda db: sql.keep_from(db, chat_id, message_id, summary))

    def show_message(self, message_id: int) -> Chat:
        """Show this message in its chat, on its branch down to the newest leaf.

        Nothing changes where it is shown already.
        """
        return self._writer.run(lambda db: sql.show_message(db, message_id))

    def add_trees(self, added: Iterable[ChatTree]) -> list[Chat]:
        """Add whole chats, all or none, with new ids for chats and messages.

        They are read one by one in the writer's thread; an error meanwhile adds none.

        Raises:
            StoreError: If a parent, head or first kept message is not a message of its tree.
        """
        return self._writer.run(lambda db: [sql.insert_tree(db, tree) for tree in added])

    def fork_chat(self, message_id: int, *, live: StoredMessage | None = None) -> Chat:
        """Copy a chat up to one of its messages into a new chat, and return that.

        What the chat was set to goes with it; its other branches stay behind.

        Args:
            message_id: The last message of the copy.
            live: A reply that is being written, as the copy is to have it.
        """
        path = self.path_to(message_id)
        chat = self.chat(path[-1].chat_id)
        is_seen = chat.kept_from in {message.id for message in path}
        now = time.time()
        forked = replace(
            chat,
            title=self._title_of_fork(chat.title),
            head_id=message_id,
            kept_from=chat.kept_from if is_seen else None,
            summary=chat.summary if is_seen else None,
            archived_at=None,
            created_at=now,
            updated_at=now,
        )
        copied = (live if live and live.id == message.id else message for message in path)
        return self.add_trees([ChatTree(forked, tuple(copied))])[0]

    def _title_of_fork(self, title: str) -> str:
        """The title after `(fork)`, or `(fork 2)` and so on: narrow lists cut the end of titles."""
        ends = f") {_FORKED.sub('', title)}"
        [(n,)] = self._read(
            "SELECT COUNT(*) FROM chats WHERE substr(title, 1, 5) = '(fork' "
            "AND substr(title, -length(?)) = ?",
            ends,
            ends,
        )
        return f"(fork {n + 1}{ends}" if n else f"(fork{ends}"

    def delete_chat(self, chat_id: int, held: FileLock | None = None) -> None:
        """Delete a chat and all of its messages; nothing happens where it is gone already.

        Args:
            chat_id: The chat.
            held: The lock on it, where the caller has it; it is locked meanwhile otherwise.

        Raises:
            StoreError: If another kvchat process writes the chat.
        """
        lock = held or self.lock_chat(chat_id)
        if lock is None:
            raise ChatInUseError(
                f"another kvchat process is answering in chat {chat_id}: "
                "wait until the reply is complete"
            )
        with nullcontext() if held else lock:
            self._writer.run(lambda db: db.execute("DELETE FROM chats WHERE id = ?", (chat_id,)))
            expire_backup(self.path)

    def add_turn(self, new: NewTurn) -> Turn:
        """Add a question with an empty reply, or that alone; both or nothing.

        The chat's unsent text is what `unsent_of` says from the same moment on, so that a question
        is never saved twice, whenever kvchat is killed.
        """
        if self.unsent_of is None:
            return self._writer.run(lambda db: sql.insert_turn(db, new))
        chat_id, index = None if new.chat is None else new.chat.id, self._new_index
        unsent = self.unsent_of(chat_id)

        def asked(db: sqlite3.Connection) -> Turn:
            turn = sql.insert_turn(db, new)
            sql.save_unsent(db, {chat_id: UnsentText(), turn.chat.id: unsent}, index)
            return turn

        return self._writer.run(asked)

    def add_message(self, new: NewMessage) -> StoredMessage:
        """Add a message, which becomes the chat's head."""
        return self._writer.run(lambda db: sql.insert_message(db, new))

    def set_head(self, chat_id: int, message_id: int | None) -> None:
        """Show the chat up to another message; None shows none."""
        self._writer.run(lambda db: sql.move_head(db, chat_id, message_id))

    def write_partial(self, message_id: int, content: str, token_ids: Sequence[int]) -> None:
        """Note the text so far of a reply; on disk within 0.5 s, and returns at once."""
        self._writer.write_partial(message_id, content, token_ids)

    def finish_message(self, ended: StoredMessage) -> StoredMessage | None:
        """Write a reply as it ended; later partial writes of it change nothing.

        Returns:
            The reply as stored; None where another program holds the database, which gets it as
            soon as it is free.
        """
        self._writer.drop_partial(ended.id)
        return self._writer.run_surely(lambda db: sql.finish_message(db, ended))

    def reopen_message(self, message_id: int) -> None:
        """Open an ended reply again: partial writes of it count until `finish_message` ends it."""
        self._writer.run(lambda db: sql.reopen_message(db, message_id))

    def unsent_texts(self) -> dict[int | None, UnsentText]:
        """The texts that were not sent, by chat; None is the new chat.

        Each open kvchat has a new chat of its own: the text of one that is closed goes to the next
        that calls this.

        Raises:
            StoreError: If they cannot be read, or no new chat can be locked.
        """
        rows = self._read("SELECT chat_id, content, edited_id, before_edit, place FROM drafts")
        if self._new_lock is None:
            left = sorted(row["place"] for row in rows if row["chat_id"] is None)
            self._lock_new_chat(left)
        return {
            row["chat_id"]: _unsent_of(row)
            for row in rows
            if row["chat_id"] is not None or row["place"] == self._new_index
        }

    def unsent_text(self, chat_id: int) -> UnsentText:
        """The text of a stored chat that was not sent; empty where there is none."""
        rows = self._read(
            "SELECT content, edited_id, before_edit FROM drafts WHERE chat_id = ?", chat_id
        )
        return _unsent_of(rows[0]) if rows else UnsentText()

    def _lock_new_chat(self, left: Sequence[int]) -> None:
        """Lock the first new chat that no kvchat has, those with a text before others."""
        for index in chain(left, count()):
            self._new_lock, self._new_index = self._lock(f"new-{index}"), index
            if self._new_lock is not None:
                return

    def save_unsent(
        self,
        texts: Mapping[int | None, UnsentText],
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Save the unsent texts of these chats, soon; returns at once.

        If that fails, the writer's thread calls `on_failed`.
        """
        index = self._new_index
        self._writer.later(lambda db: sql.save_unsent(db, texts, index), on_failed)

    def flush(self) -> None:
        """Wait until everything is written that was to be written before.

        Raises:
            StoreError: As of every write; nothing is lost by a busy database, it is written later.
        """
        self._writer.run_surely(lambda _: None)

    def lock_chat(self, chat_id: int) -> FileLock | None:
        """A lock to write a chat with; None while another kvchat process writes it."""
        return self._lock(f"chat-{chat_id}")

    def _lock(self, name: str) -> FileLock | None:
        return acquire_lock(self.path.with_name(self.path.name + ".locks") / name)

    def close(self) -> None:
        """Write what is kept back and close every connection."""
        if self._is_closed:
            return
        self._is_closed = True
        self._backup.close()
        try:
            self._writer.close()
        finally:
            self._readers.close()
            if self._new_lock is not None:
                self._new_lock.close()
            is_whole = not (self._readers.is_damaged or self._writer.is_damaged)
            release_database(self.path, self._holder, is_whole=is_whole)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, query: str, *values: int | str) -> list[sqlite3.Row]:
        with self._readers.connection() as connection:
            return connection.execute(query, values).fetchall()


def _variant_ids(group: Sequence[sqlite3.Row]) -> Iterator[tuple[int, list[int]]]:
    for row in group:
        yield row["id"], [each["id"] for each in group if each["has_text"] or each is row]


def _speed_of(steps: Sequence[float], newest: float) -> ModelSpeed:
    when = moment(newest)
    day = "" if when is None else when.astimezone(UTC).date().isoformat()
    tps = 1 / median(steps[:RECENT_REPLIES])
    n_replies = min(len(steps), RECENT_REPLIES)
    return ModelSpeed(tps, None, None, None, "", day, by="chats", n_replies=n_replies)


def _unsent_of(row: sqlite3.Row) -> UnsentText:
    return UnsentText(row["content"], row["edited_id"], row["before_edit"])


def _only(rows: Sequence[sqlite3.Row], kind: str, key: int) -> sqlite3.Row:
    if not rows:
        raise sql.missing(kind, key)
    return rows[0]
