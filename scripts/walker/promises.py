"""What the store promised, and whether it was kept."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import NewTurn, StoredMessage, Turn, load_tokens
from engine.files import FileLock
from walker.journal import Journal, Line


class PromisingStore(ChatStore):
    """Writes down each promise of the store, after it was given."""

    def __init__(self, path: Path, journal: Journal, *, patience_s: float | None = None) -> None:
        super().__init__(path, patience_s=patience_s)
        self._journal = journal

    def add_turn(self, new: NewTurn) -> Turn:
        """Add a question and the place of its reply as the store does."""
        turn = super().add_turn(new)
        for added in turn.messages:
            self._tell_added(added)
        return turn

    def _tell_added(self, added: StoredMessage) -> None:
        self._journal.tell(
            "added", id=added.id, chat=added.chat_id, role=added.role, content=added.content
        )

    def finish_message(self, ended: StoredMessage) -> StoredMessage | None:
        """End a reply as the store does."""
        stored = super().finish_message(ended)
        if stored is not None:
            tokens = None if ended.token_ids is None else list(ended.token_ids)
            self._journal.tell(
                "finished", id=ended.id, chat=stored.chat_id, content=ended.content, tokens=tokens
            )
        return stored

    def reopen_message(self, message_id: int) -> None:
        """Let a reply go on as the store does."""
        self._journal.tell("reopening", id=message_id)
        super().reopen_message(message_id)

    def delete_chat(self, chat_id: int, held: FileLock | None = None) -> None:
        """Delete a chat as the store does."""
        self._journal.tell("deleting", chat=chat_id)
        super().delete_chat(chat_id, held)
        self._journal.tell("deleted", chat=chat_id)


@dataclass(slots=True)
class Promise:
    """One message that was said to be saved."""

    chat: int
    role: str
    content: str
    tokens: tuple[int, ...] | None = None
    is_ended: bool = False


@dataclass(slots=True)
class Ledger:
    """Every promise of every life in one home."""

    messages: dict[int, Promise] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    """Chats whose deletion was begun; who was asked may be dead."""

    def take(self, lines: Iterable[Line]) -> None:
        """Take in what lives were promised, the oldest promise first."""
        for line in lines:
            match line:
                case {"kind": "added", "id": int(key), "chat": int(chat), "role": str(role),
                      "content": str(content)}:  # fmt: skip
                    self.messages[key] = Promise(chat, role, content)
                case {"kind": "finished", "id": int(key), "chat": int(chat),
                      "content": str(content), "tokens": tokens}:  # fmt: skip
                    known = tuple(tokens) if isinstance(tokens, list) else None
                    self.messages[key] = Promise(chat, "assistant", content, known, is_ended=True)
                case {"kind": "reopening", "id": int(key)}:
                    if key in self.messages:
                        self.messages[key].is_ended = False
                case {"kind": "deleting", "chat": int(chat)}:
                    self.doubtful.add(chat)
                case {"kind": "deleted", "chat": int(chat)}:
                    self.deleted.add(chat)
                case _:
                    pass

    def broken_promises(self, path: Path) -> list[str]:
        """Open the database as kvchat does and give what is not as it was said to be."""
        try:
            with ChatStore(path) as store:
                notices = list(store.notices)
        except StoreError as error:
            return [f"the database does not open: {error}"]
        connection = sqlite3.connect(path)
        try:
            return [*notices, *_damage(connection), *self._missing(connection)]
        finally:
            connection.close()

    def _missing(self, connection: sqlite3.Connection) -> list[str]:
        rows = connection.execute("SELECT id, role, content, token_ids FROM messages").fetchall()
        stored = {row[0]: row for row in rows}
        chats = {row[0] for row in connection.execute("SELECT id FROM chats")}
        problems = [f"chat {chat} was deleted and is there" for chat in chats & self.deleted]
        for key, promise in self.messages.items():
            if promise.chat in self.deleted | self.doubtful:
                continue
            if key not in stored:
                problems.append(f"message {key} of chat {promise.chat} is gone")
            else:
                problems += _differences(key, promise, stored[key])
        return problems


def _differences(key: int, promise: Promise, row: Sequence[object]) -> list[str]:
    _, role, content, tokens = row
    assert isinstance(content, str)
    if role != promise.role:
        return [f"message {key} is of {role} and was of {promise.role}"]
    is_whole = promise.role == "user" or promise.is_ended
    if content != promise.content and (is_whole or not content.startswith(promise.content)):
        return [f"message {key} is {content!r} and was {promise.content!r}"]
    assert tokens is None or isinstance(tokens, bytes)
    if promise.is_ended and load_tokens(tokens) != promise.tokens:
        return [f"message {key} has other tokens than it had"]
    return []


def _damage(connection: sqlite3.Connection) -> list[str]:
    said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    problems = [] if said == ["ok"] else [f"integrity_check: {line}" for line in said]
    orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
    return problems + [f"foreign_key_check: {tuple(orphan)}" for orphan in orphans]
