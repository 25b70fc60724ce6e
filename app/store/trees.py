"""Whole chats: read and added."""

import json
import sqlite3
from collections.abc import Mapping

from app.store.errors import StoreError
from app.store.records import (
    CHAT_COLUMNS,
    MESSAGE_COLUMNS,
    Chat,
    ChatTree,
    StoredMessage,
    chat_of,
    dump_sampling,
    dump_tokens,
    message_of,
)
from app.store.statements import no_chat

_INSERT_CHAT = f"""
INSERT INTO chats (title, title_locked, created_at, updated_at, model_path, system_prompt, sampling,
    archived_at, summary) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {CHAT_COLUMNS}
"""
_INSERT_MESSAGE = """
INSERT INTO messages (chat_id, parent_id, role, content, token_ids, vocabulary_id, model_name, seed,
    finish_reason, stats, created_at, predictor, controller)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id
"""
_PLACE_CHAT = f"UPDATE chats SET head_id = ?, kept_from = ? WHERE id = ? RETURNING {CHAT_COLUMNS}"
_MESSAGES = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE chat_id = ? ORDER BY id"


def read_tree(db: sqlite3.Connection, chat_id: int) -> ChatTree:
    """Give a chat with all of its messages, in the order in which they were added."""
    row = db.execute(f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = ?", (chat_id,)).fetchone()
    if row is None:
        raise no_chat(chat_id)
    return ChatTree(chat_of(row), tuple(map(message_of, db.execute(_MESSAGES, (chat_id,)))))


def insert_tree(db: sqlite3.Connection, tree: ChatTree) -> Chat:
    """Add a chat with its messages under new ids, and give it as stored.

    Raises:
        StoreError: If a parent, head or first kept message is not a message of the tree.
    """
    chat = tree.chat
    row = db.execute(
        _INSERT_CHAT,
        (
            chat.title,
            chat.title_locked,
            chat.created_at,
            chat.updated_at,
            chat.model_path,
            chat.system_prompt,
            dump_sampling(chat.sampling),
            chat.archived_at,
            chat.summary,
        ),
    ).fetchone()
    ids: dict[int, int] = {}
    for message in tree.messages:
        parent_id = _new_id(ids, message.parent_id, "parent")
        ids[message.id] = _insert_message(db, row["id"], parent_id, message)
    head_id = _new_id(ids, chat.head_id, "head")
    kept_from = _new_id(ids, chat.kept_from, "first kept message")
    return chat_of(db.execute(_PLACE_CHAT, (head_id, kept_from, row["id"])).fetchone())


def _insert_message(
    db: sqlite3.Connection, chat_id: int, parent_id: int | None, message: StoredMessage
) -> int:
    row = db.execute(
        _INSERT_MESSAGE,
        (
            chat_id,
            parent_id,
            message.role,
            message.content,
            dump_tokens(message.token_ids),
            message.vocabulary_id,
            message.model_name,
            message.seed,
            message.finish_reason,
            None if message.stats is None else json.dumps(message.stats),
            message.created_at,
            message.predictor,
            message.controller,
        ),
    ).fetchone()
    added_id: int = row["id"]
    return added_id


def _new_id(ids: Mapping[int, int], old: int | None, what: str) -> int | None:
    if old is None:
        return None
    if old not in ids:
        raise StoreError(f"the {what} {old} is not a message of the chat")
    return ids[old]
