"""The SQL of `ChatStore`: queries, and writes inside a transaction of the writer."""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields

from app.store.errors import ChatGoneError, StoreError
from app.store.records import (
    CHAT_COLUMNS,
    MESSAGE_COLUMNS,
    Chat,
    ChatChanges,
    ChatTree,
    Column,
    StoredMessage,
    UnsentText,
    chat_of,
    message_of,
    packed,
)

CHAT = f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = ?"
MESSAGE = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id = ?"
MESSAGES = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE chat_id = ? ORDER BY id"

PATH = f"""
WITH RECURSIVE path(node, above, depth) AS (
    SELECT id, parent_id, 0 FROM messages WHERE id = ?
    UNION ALL
    SELECT messages.id, messages.parent_id, depth + 1 FROM messages JOIN path ON messages.id = above
)
SELECT {MESSAGE_COLUMNS} FROM messages JOIN path ON id = node ORDER BY depth DESC
"""

LEAF = """
WITH RECURSIVE below(node) AS (
    SELECT id FROM messages WHERE id = ?
    UNION ALL
    SELECT messages.id FROM messages JOIN below ON messages.parent_id = node
)
SELECT max(node) AS leaf FROM below
"""

VARIANTS = """
SELECT id, parent_id, role, content <> '' AS has_text FROM messages WHERE chat_id = ? {beside}
ORDER BY id
"""

SIZES = """
SELECT chat_id, count(*), coalesce(sum(length(token_ids) / 4), 0) FROM messages GROUP BY chat_id
"""

SPEEDS = """
SELECT model_name, created_at,
    CASE WHEN json_valid(stats) THEN json_extract(stats, '$.plain_step_s') END AS step_s
FROM messages
WHERE role = 'assistant' AND model_name IS NOT NULL AND step_s > 0 AND step_s < 1000
ORDER BY id DESC LIMIT ?
"""

UNSENT = "SELECT chat_id, content, edited_id, before_edit, place FROM drafts"

OF_ENDED_REPLIES = (
    "content", "token_ids", "vocabulary_id", "seed", "finish_reason", "stats", "predictor",
    "controller",
)  # fmt: skip
"""The columns of a message that are written when a reply ends."""
_NO_MESSAGES: dict[str, object] = {"head_id": None, "context_start": None}
"""Columns of a chat that refer to its messages, while it has none."""


def update_chat(db: sqlite3.Connection, chat_id: int, changes: ChatChanges) -> Chat:
    """Change a chat, and return it."""
    _require_message_of(db, chat_id, changes.get("head_id"))
    _require_message_of(db, chat_id, changes.get("context_start"))
    assignments = ", ".join(f"{name} = ?" for name in changes) or "id = id"
    row = db.execute(
        f"UPDATE chats SET {assignments} WHERE id = ? RETURNING {CHAT_COLUMNS}",
        (*map(packed, changes.values()), chat_id),
    ).fetchone()
    if row is None:
        raise missing("chat", chat_id)
    return chat_of(row)


def add_messages(
    db: sqlite3.Connection, chat: Chat, messages: Iterable[StoredMessage]
) -> tuple[Chat, list[StoredMessage]]:
    """Add messages as a chain: the first below its own parent, each other below the one before.

    The last becomes the chat's head. A chat without an id is added first. Returns chat and messages
    as stored.
    """
    now = time.time()
    model_path = _as_text(chat.model_path)
    new = _NO_MESSAGES | {"created_at": now, "model_path": model_path}
    chat_id = chat.id or _insert(db, "chats", chat, new, "id")["id"]
    update_chat(db, chat_id, {"model_path": model_path, "updated_at": now})
    added: list[StoredMessage] = []
    for message in messages:
        parent_id = added[-1].id if added else message.parent_id
        _require_message_of(db, chat_id, parent_id)
        places = {"chat_id": chat_id, "parent_id": parent_id, "created_at": now}
        values = places | {"model_name": _as_text(message.model_name)}
        added.append(message_of(_insert(db, "messages", message, values, MESSAGE_COLUMNS)))
    return update_chat(db, chat_id, {"head_id": added[-1].id}), added


def _as_text(name: str | None) -> str | None:
    """File name with bytes that are not UTF-8 written as a backslash and their code."""
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
    update_chat(db, row["chat_id"], {"updated_at": time.time()})
    return message_of(row)


def reopen_message(db: sqlite3.Connection, message_id: int) -> None:
    """Remove the end and the figures of a reply that goes on; its text and tokens stay.

    A reply that is never ended, because kvchat is killed, has no figures rather than those of its
    first part.
    """
    changed = db.execute(
        "UPDATE messages SET finish_reason = NULL, stats = NULL, predictor = NULL,"
        " controller = NULL WHERE id = ?",
        (message_id,),
    )
    if changed.rowcount == 0:
        raise missing("message", message_id)


def save_unsent(
    db: sqlite3.Connection, texts: Mapping[int | None, UnsentText], new_index: int
) -> None:
    """Save the unsent texts of chats; an empty one, or one of a deleted chat, is removed.

    None is the new chat; `new_index` is its number among the new chats of all open kvchats.
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


def insert_tree(db: sqlite3.Connection, tree: ChatTree) -> Chat:
    """Add a chat with its messages under new ids, and return it as stored.

    Raises:
        StoreError: If a parent, head or first message in the context is not a message of the tree.
    """
    chat_id: int = _insert(db, "chats", tree.chat, _NO_MESSAGES, "id")["id"]
    ids: dict[int, int] = {}
    for message in tree.messages:
        places = {"chat_id": chat_id, "parent_id": _new_id(ids, message.parent_id, "parent")}
        ids[message.id] = _insert(db, "messages", message, places, "id")["id"]
    head_id = _new_id(ids, tree.chat.head_id, "head")
    context_start = _new_id(ids, tree.chat.context_start, "first message in the context")
    return update_chat(db, chat_id, {"head_id": head_id, "context_start": context_start})


def missing(kind: str, key: int) -> ChatGoneError:
    """The error for a chat or message that was deleted."""
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


def _insert(
    db: sqlite3.Connection,
    table: str,
    record: Chat | StoredMessage,
    changes: Mapping[str, object],
    returning: str,
) -> sqlite3.Row:
    """Insert a record under a new id, with other values in some columns."""
    values: dict[str, Column] = {
        each.name: packed(changes.get(each.name, getattr(record, each.name)))
        for each in fields(record)
        if each.name != "id"
    }
    marks = ", ".join("?" * len(values))
    row: sqlite3.Row = db.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks}) RETURNING {returning}",
        (*values.values(),),
    ).fetchone()
    return row


def _require_message_of(db: sqlite3.Connection, chat_id: int, message_id: int | None) -> None:
    if message_id is None:
        return
    row = db.execute(
        "SELECT 1 FROM messages WHERE id = ? AND chat_id = ?", (message_id, chat_id)
    ).fetchone()
    if row is None:
        raise StoreError(f"message {message_id} does not belong to chat {chat_id}")
