"""The SQL of `ChatStore`: queries, and writes that run inside the writer's transaction."""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import fields

from app.store.errors import ChatGoneError, StoreError
from app.store.records import (
    CHAT_COLUMNS,
    MESSAGE_COLUMNS,
    Chat,
    ChatChanges,
    ChatTree,
    Column,
    NewChat,
    NewMessage,
    NewTurn,
    StoredMessage,
    Turn,
    UnsentText,
    chat_of,
    message_of,
    packed,
)

PATH = f"""
WITH RECURSIVE path(node, above, depth) AS (
    SELECT id, parent_id, 0 FROM messages WHERE id = ?
    UNION ALL
    SELECT messages.id, messages.parent_id, depth + 1 FROM messages JOIN path ON messages.id = above
)
SELECT {MESSAGE_COLUMNS} FROM messages JOIN path ON id = node ORDER BY depth DESC
"""

_VARIANTS_OF = """
FROM messages AS this JOIN messages AS other
ON other.chat_id = this.chat_id AND other.parent_id IS this.parent_id AND other.role = this.role
WHERE this.id = ? ORDER BY other.id
"""

VARIANTS = f"""
SELECT {", ".join(f"other.{each.name}" for each in fields(StoredMessage))} {_VARIANTS_OF}
"""

VARIANT_OUTLINE = f"SELECT other.id, other.content <> '' AS has_text {_VARIANTS_OF}"


SPEEDS = """
SELECT model_name, stats, created_at FROM messages
WHERE role = 'assistant' AND stats IS NOT NULL AND model_name IS NOT NULL
ORDER BY id DESC LIMIT ?
"""

LEAF = """
WITH RECURSIVE below(node) AS (
    SELECT id FROM messages WHERE id = ?
    UNION ALL
    SELECT messages.id FROM messages JOIN below ON messages.parent_id = node
)
SELECT max(node) AS leaf FROM below
"""

SIZES = """
SELECT chat_id, count(*) AS m, coalesce(sum(length(token_ids) / 4), 0) AS t
FROM messages GROUP BY chat_id
"""

OUTLINE = """
SELECT id, parent_id, role, content <> '' AS has_text FROM messages WHERE chat_id = ? ORDER BY id
"""

IS_SHOWN = """
WITH RECURSIVE shown(node) AS (
    SELECT head_id FROM chats WHERE id = ?
    UNION ALL
    SELECT parent_id FROM messages JOIN shown ON id = node WHERE parent_id IS NOT NULL
)
SELECT 1 FROM shown WHERE node = ?
"""

CHAT = f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = ?"
MESSAGES = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE chat_id = ? ORDER BY id"

OF_ENDED_REPLIES = (
    "content", "token_ids", "vocabulary_id", "seed", "finish_reason", "stats", "predictor",
    "controller",
)  # fmt: skip
"""The columns of a message that are written when a reply ends."""


def insert_chat(db: sqlite3.Connection, new: NewChat) -> Chat:
    """Add a chat, and return it as stored."""
    now = time.time()
    values = _fields_of(new) | {"created_at": now, "updated_at": now}
    return chat_of(_insert(db, "chats", values, CHAT_COLUMNS))


def update_chat(db: sqlite3.Connection, chat_id: int, changes: ChatChanges) -> Chat:
    """Change a chat, and return it as it is then."""
    values = {name: value for name, value in _fields_of(changes).items() if value is not None}
    if not values:
        return _changed(db, chat_id, "id = id")
    assignments = ", ".join(f"{name} = ?" for name in values)
    return _changed(db, chat_id, assignments, *map(packed, values.values()))


def insert_message(db: sqlite3.Connection, new: NewMessage) -> StoredMessage:
    """Add a message, move the chat's head to it, and return it as stored."""
    if new.parent_id is not None:
        _require_message_of(db, new.chat_id, new.parent_id)
    now = time.time()
    _touch(db, new.chat_id, now)
    row = _insert(db, "messages", _fields_of(new) | {"created_at": now}, MESSAGE_COLUMNS)
    db.execute("UPDATE chats SET head_id = ? WHERE id = ?", (row["id"], new.chat_id))
    return message_of(row)


def insert_turn(db: sqlite3.Connection, new: NewTurn) -> Turn:
    """Add a question and an empty reply, and return them as stored."""
    model_path, model_name = _as_text(new.model_path), _as_text(new.model_name)
    chat = new.chat or insert_chat(
        db, NewChat(new.title, model_path, new.system_prompt, new.sampling)
    )
    parent_id, added = new.parent_id, []
    if new.question is not None:
        added.append(insert_message(db, NewMessage(chat.id, parent_id, "user", new.question)))
        parent_id = added[0].id
    reply = NewMessage(
        chat.id,
        parent_id,
        "assistant",
        "",
        vocabulary_id=new.vocabulary_id,
        model_name=model_name,
    )
    added.append(insert_message(db, reply))
    return Turn(_changed(db, chat.id, "model_path = ?", model_path), tuple(added))


def _as_text(name: str | None) -> str | None:
    """The name of a file, what is no UTF-8 in it as a backslash and its code."""
    return None if name is None else name.encode(errors="backslashreplace").decode()


def finish_message(db: sqlite3.Connection, ended: StoredMessage) -> StoredMessage:
    """Write the end of a reply, and return it as stored."""
    assignments = ", ".join(f"{name} = ?" for name in OF_ENDED_REPLIES)
    values = [packed(getattr(ended, name)) for name in OF_ENDED_REPLIES]
    row = db.execute(
        f"UPDATE messages SET {assignments} WHERE id = ? RETURNING {MESSAGE_COLUMNS}",
        (*values, ended.id),
    ).fetchone()
    if row is None:
        raise missing("message", ended.id)
    _touch(db, row["chat_id"], time.time())
    return message_of(row)


def reopen_message(db: sqlite3.Connection, message_id: int) -> None:
    """Remove the end of a reply, so that it can be continued; its text and tokens stay."""
    changed = db.execute("UPDATE messages SET finish_reason = NULL WHERE id = ?", (message_id,))
    if changed.rowcount == 0:
        raise missing("message", message_id)


def move_head(db: sqlite3.Connection, chat_id: int, message_id: int | None) -> None:
    """Set the message up to which a chat is shown."""
    if message_id is not None:
        _require_message_of(db, chat_id, message_id)
    _changed(db, chat_id, "head_id = ?", message_id)


def show_message(db: sqlite3.Connection, message_id: int) -> Chat:
    """Show the branch of a message down to its newest leaf, unless it is shown; its chat then."""
    row = db.execute("SELECT chat_id FROM messages WHERE id = ?", (message_id,)).fetchone()
    if row is None:
        raise missing("message", message_id)
    chat_id: int = row["chat_id"]
    if db.execute(IS_SHOWN, (chat_id, message_id)).fetchone() is None:
        leaf = db.execute(LEAF, (message_id,)).fetchone()["leaf"]
        move_head(db, chat_id, leaf)
    return _changed(db, chat_id, "id = id")


def archive_chat(db: sqlite3.Connection, chat_id: int, *, archived: bool) -> Chat:
    """Put a chat into the archive or take it out, and return it as it is then."""
    if not archived:
        return _changed(db, chat_id, "archived_at = NULL")
    return _changed(db, chat_id, "archived_at = coalesce(archived_at, ?)", time.time())


def keep_from(
    db: sqlite3.Connection, chat_id: int, message_id: int | None, summary: str | None
) -> Chat:
    """Set the first message that the model sees, and what it sees in place of those before."""
    if message_id is not None:
        _require_message_of(db, chat_id, message_id)
    return _changed(db, chat_id, "kept_from = ?, summary = ?", message_id, summary)


def save_unsent(
    db: sqlite3.Connection, texts: Mapping[int | None, UnsentText], new_index: int
) -> None:
    """Keep the unsent texts of chats; an empty one, or one of a chat that is gone, is forgotten.

    Args:
        db: The database.
        texts: The texts by chat; None is the new chat.
        new_index: Which of the new chats that several kvchats have is this one's.
    """
    for chat_id, unsent in texts.items():
        index = new_index if chat_id is None else 0
        db.execute("DELETE FROM drafts WHERE chat_id IS ? AND place = ?", (chat_id, index))
        if unsent:
            db.execute(
                "INSERT INTO drafts (chat_id, content, edited_id, before_edit, place)"
                " SELECT ?, ?, ?, ?, ?"
                " WHERE ? IS NULL OR EXISTS (SELECT 1 FROM chats WHERE id = ?)",
                (chat_id, unsent.text, unsent.edited, unsent.before, index, chat_id, chat_id),
            )


def read_tree(db: sqlite3.Connection, chat_id: int) -> ChatTree:
    """A chat with all of its messages, in the order in which they were added."""
    row = db.execute(CHAT, (chat_id,)).fetchone()
    if row is None:
        raise missing("chat", chat_id)
    return ChatTree(chat_of(row), tuple(map(message_of, db.execute(MESSAGES, (chat_id,)))))


def insert_tree(db: sqlite3.Connection, tree: ChatTree) -> Chat:
    """Add a chat with its messages under new ids, and return it as stored.

    Raises:
        StoreError: If a parent, head or first message in the context is not a message of the tree.
    """
    chat = _fields_of(tree.chat) | {"head_id": None, "kept_from": None}
    del chat["id"]
    chat_id: int = _insert(db, "chats", chat, "id")["id"]
    ids: dict[int, int] = {}
    for message in tree.messages:
        parent_id = _new_id(ids, message.parent_id, "parent")
        values = _fields_of(message) | {"chat_id": chat_id, "parent_id": parent_id}
        del values["id"]
        ids[message.id] = _insert(db, "messages", values, "id")["id"]
    head_id = _new_id(ids, tree.chat.head_id, "head")
    kept_from = _new_id(ids, tree.chat.kept_from, "first message in the context")
    return _changed(db, chat_id, "head_id = ?, kept_from = ?", head_id, kept_from)


def missing(kind: str, key: int) -> ChatGoneError:
    """The error that says that a chat or message is gone."""
    deleted = "it" if kind == "chat" else "its chat"
    return ChatGoneError(
        f"{kind} {key} no longer exists: another kvchat process may have deleted {deleted}"
    )


def _new_id(ids: Mapping[int, int], old: int | None, what: str) -> int | None:
    if old is None:
        return None
    if old not in ids:
        raise StoreError(f"message {old} ({what}) does not belong to the chat")
    return ids[old]


def _fields_of(
    record: Chat | StoredMessage | NewChat | NewMessage | ChatChanges,
) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _insert(
    db: sqlite3.Connection, table: str, values: Mapping[str, object], returning: str
) -> sqlite3.Row:
    marks = ", ".join("?" * len(values))
    row: sqlite3.Row = db.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks}) RETURNING {returning}",
        [packed(value) for value in values.values()],
    ).fetchone()
    return row


def _changed(db: sqlite3.Connection, chat_id: int, assignment: str, *values: Column) -> Chat:
    row = db.execute(
        f"UPDATE chats SET {assignment} WHERE id = ? RETURNING {CHAT_COLUMNS}", (*values, chat_id)
    ).fetchone()
    if row is None:
        raise missing("chat", chat_id)
    return chat_of(row)


def _touch(db: sqlite3.Connection, chat_id: int, now: float) -> None:
    _changed(db, chat_id, "updated_at = ?", now)


def _require_message_of(db: sqlite3.Connection, chat_id: int, message_id: int) -> None:
    row = db.execute(
        "SELECT 1 FROM messages WHERE id = ? AND chat_id = ?", (message_id, chat_id)
    ).fetchone()
    if row is None:
        raise StoreError(f"message {message_id} does not belong to chat {chat_id}")
