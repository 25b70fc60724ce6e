"""What the store of chats promised, and whether the database keeps it."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat, StoredMessage, load_tokens
from engine.files import FileLock
from walker.journal import Journal, Reader
from walker.kills import STRUCK

STREAMED_S = 2.5
"""A shown text is saved within half a second, and within this on a busy machine."""


class PromisingStore(ChatStore):
    """A store that writes each of its promises to a journal once it is given."""

    def __init__(self, journal: Journal, path: Path, *, patience_s: float | None = None) -> None:
        super().__init__(path, patience_s=patience_s)
        self._journal = journal

    def add_messages(
        self, chat: Chat, messages: Sequence[StoredMessage]
    ) -> tuple[Chat, list[StoredMessage]]:
        stored, added = super().add_messages(chat, messages)
        for each in added:
            self._journal.write(
                "added", id=each.id, chat=each.chat_id, role=each.role, content=each.content
            )
        return stored, added

    def finish_message(self, ended: StoredMessage) -> StoredMessage | None:
        stored = super().finish_message(ended)
        if stored is not None:
            tokens = None if ended.token_ids is None else list(ended.token_ids)
            self._journal.write(
                "finished", id=ended.id, chat=stored.chat_id, content=ended.content, tokens=tokens
            )
        return stored

    def reopen_message(self, message_id: int) -> None:
        self._journal.write("reopening", id=message_id)
        super().reopen_message(message_id)

    def delete_chat(self, chat_id: int, held: FileLock | None = None) -> None:
        self._journal.write("deleting", chat=chat_id)
        super().delete_chat(chat_id, held)
        self._journal.write("deleted", chat=chat_id)


@dataclass(slots=True)
class Promise:
    """A message that the store reported as saved."""

    chat: int
    role: str
    content: str
    tokens: tuple[int, ...] | None = None
    is_finished: bool = False

    def broken(self, role: str, content: str, tokens: bytes | None) -> str | None:
        """How a row of the database breaks the promise; None if it does not."""
        if role != self.role:
            return f"has the role {role} instead of {self.role}"
        is_complete = self.role == "user" or self.is_finished
        if content != self.content and (is_complete or not content.startswith(self.content)):
            return f"is {content!r} instead of {self.content!r}"
        if self.is_finished and load_tokens(tokens) != self.tokens:
            return "has other tokens"
        return None


class Ledger:
    """The promises of all lives in one home, read from their journal."""

    def __init__(self, journal: Path, database: Path) -> None:
        self._journal, self._database = Reader(journal), database
        self._messages: dict[int, Promise] = {}
        self._streamed: dict[int, tuple[int, str]] = {}
        """Time and text that was last shown of each unfinished reply."""
        self._deleting: set[int] = set()
        """Chats whose deletion began; a kill may have prevented it."""
        self._deleted: set[int] = set()
        self.questions = ""
        """All saved questions."""
        self.is_struck = False
        """Whether the present life was killed at the moment of its aim."""

    def begin_life(self) -> None:
        """Skip what the journal holds of earlier lives."""
        self._journal.new_lines()
        self.is_struck = False

    def read(self) -> None:
        """Read the journal's new lines."""
        for line in self._journal.new_lines():
            match line:
                case {"kind": "added", "id": int(key), "chat": int(chat), "role": str(role),
                      "content": str(content)}:  # fmt: skip
                    self._messages[key] = Promise(chat, role, content)
                    self.questions += f"\n{content}" if role == "user" else ""
                case {"kind": "streamed", "id": int(key), "at": int(at), "text": str(text)}:
                    self._streamed[key] = at, text
                case {"kind": "finished", "id": int(key), "chat": int(chat),
                      "content": str(content), "tokens": ids}:  # fmt: skip
                    tokens = tuple(ids) if isinstance(ids, list) else None
                    self._messages[key] = Promise(chat, "assistant", content, tokens, True)
                    self._streamed.pop(key, None)
                case {"kind": "reopening", "id": int(key)} if key in self._messages:
                    self._messages[key].is_finished = False
                case {"kind": "deleting", "chat": int(chat)}:
                    self._deleting.add(chat)
                case {"kind": "deleted", "chat": int(chat)}:
                    self._deleted.add(chat)
                case {"kind": kind}:
                    self.is_struck |= kind == STRUCK

    def losses(self, ended_at: int) -> list[str]:
        """Broken promises after an end of kvchat, at this time in nanoseconds."""
        if not self._database.exists():
            return ["the database is gone"] if self._messages else []
        try:
            with ChatStore(self._database) as store:
                notices = list(store.notices)
        except StoreError as error:
            return [f"the database does not open: {error}"]
        with closing(sqlite3.connect(self._database)) as connection:
            problems = [*notices, *_damage(connection), *self._broken(connection, ended_at)]
        self._streamed.clear()
        return problems

    def _broken(self, connection: sqlite3.Connection, ended_at: int) -> Iterator[str]:
        columns = connection.execute("SELECT id, role, content, token_ids FROM messages")
        rows = {key: row for key, *row in columns}
        for (chat,) in connection.execute("SELECT id FROM chats"):
            if chat in self._deleted:
                yield f"chat {chat} was deleted and is there"
        for key, promise in self._messages.items():
            if promise.chat not in self._deleting:
                problem = promise.broken(*rows[key]) if key in rows else "is gone"
                if problem is not None:
                    yield f"message {key} of chat {promise.chat} {problem}"
        for key, (at, text) in self._streamed.items():
            saved = rows[key][1] if key in rows else text
            if at < ended_at - STREAMED_S * 1e9 and not saved.startswith(text):
                yield f"message {key} was shown as {text!r} and is saved as {saved!r}"


def _damage(connection: sqlite3.Connection) -> Iterator[str]:
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"integrity_check: {line}"
    for row in connection.execute("PRAGMA foreign_key_check"):
        yield f"foreign_key_check: {tuple(row)}"
