"""Whole chats: read, copied up to a message, added and deleted."""

import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace

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
from app.store.statements import PATH, no_chat, no_message

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
    tree = find_tree(db, chat_id)
    if tree is None:
        raise no_chat(chat_id)
    return tree


def find_tree(db: sqlite3.Connection, chat_id: int) -> ChatTree | None:
    """Give a chat with all of its messages, None where there is none with this id."""
    row = db.execute(f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = ?", (chat_id,)).fetchone()
    if row is None:
        return None
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


def branch(db: sqlite3.Connection, message_id: int, title: str | None) -> Chat:
    """Begin a chat that holds the path to a message, and give it as stored."""
    path = tuple(map(message_of, db.execute(PATH, (message_id,))))
    if not path:
        raise no_message(message_id)
    chat = _chat(db, path[-1].chat_id)
    is_kept = chat.kept_from in {message.id for message in path}
    now = time.time()
    copy = replace(
        chat,
        title=chat.title if title is None else title,
        created_at=now,
        updated_at=now,
        head_id=message_id,
        archived_at=None,
        kept_from=chat.kept_from if is_kept else None,
        summary=chat.summary if is_kept else None,
    )
    return insert_tree(db, ChatTree(copy, path))


def delete_tree(db: sqlite3.Connection, chat_id: int) -> ChatTree | None:
    """Delete a chat with its messages and give what it was, None if it was gone."""
    tree = find_tree(db, chat_id)
    db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))
    return tree


def _chat(db: sqlite3.Connection, chat_id: int) -> Chat:
    row = db.execute(f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = ?", (chat_id,)).fetchone()
    if row is None:
        raise no_chat(chat_id)
    return chat_of(row)


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
