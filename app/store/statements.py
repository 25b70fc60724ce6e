"""The SQL behind `ChatStore`: queries, and writes that run inside the writer's transaction."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.store.errors import StoreError
from app.store.records import (
    CHAT_COLUMNS,
    MESSAGE_COLUMNS,
    Chat,
    Draft,
    StoredMessage,
    chat_of,
    dump_sampling,
    dump_tokens,
    message_of,
)
from engine.configuration import SamplingSettings
from engine.requests import Role

PATH = f"""
WITH RECURSIVE path(node, above, depth) AS (
    SELECT id, parent_id, 0 FROM messages WHERE id = ?
    UNION ALL
    SELECT messages.id, messages.parent_id, depth + 1 FROM messages JOIN path ON messages.id = above
)
SELECT {MESSAGE_COLUMNS} FROM messages JOIN path ON id = node ORDER BY depth DESC
"""

VARIANTS = f"""
SELECT {", ".join(f"other.{name.strip()}" for name in MESSAGE_COLUMNS.split(","))}
FROM messages AS this JOIN messages AS other
ON other.chat_id = this.chat_id AND other.parent_id IS this.parent_id AND other.role = this.role
WHERE this.id = ? ORDER BY other.id
"""

VARIANT_OUTLINE = """
SELECT other.id, other.content <> '' AS has_text FROM messages AS this JOIN messages AS other
ON other.chat_id = this.chat_id AND other.parent_id IS this.parent_id AND other.role = this.role
WHERE this.id = ? ORDER BY other.id
"""

REPLIES = """
SELECT id, token_ids FROM messages
WHERE role = 'assistant' AND vocabulary_id = ? AND finish_reason IS NOT NULL
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


@dataclass(frozen=True, slots=True)
class ChatChanges:
    """What to change of a chat; None leaves it."""

    title: str | None
    title_locked: bool | None
    system_prompt: str | None
    sampling: SamplingSettings | None
    model_path: str | None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to add."""

    chat_id: int
    parent_id: int | None
    role: Role
    content: str
    token_ids: Sequence[int] | None
    vocabulary_id: str | None
    model_name: str | None
    seed: int | None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A question to add with the place of its reply."""

    chat: Chat | None
    """None begins one."""
    question: str | None
    """None adds a reply alone."""
    parent_id: int | None
    """What the question hangs below; of a reply alone, its question."""
    model_path: str | None
    """The model that the chat is used with."""
    model_name: str | None
    vocabulary_id: str | None
    """Known before the reply ends: one that a crash cuts can go on only if it is."""
    title: str = ""
    system_prompt: str = ""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """These three are of a chat that is begun."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What was added for one turn."""

    chat: Chat
    messages: tuple[StoredMessage, ...]
    """The question, if it is new, and the reply."""


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """How a reply ended."""

    content: str
    token_ids: Sequence[int] | None
    vocabulary_id: str | None
    seed: int | None
    finish_reason: str
    stats: dict[str, object] | None
    predictor: str | None
    controller: str | None


def insert_chat(
    db: sqlite3.Connection,
    title: str,
    model_path: str | None,
    system_prompt: str,
    sampling: SamplingSettings,
) -> Chat:
    """Add a chat and give it as stored."""
    now = time.time()
    row = db.execute(
        "INSERT INTO chats (title, created_at, updated_at, model_path, system_prompt, sampling)"
        f" VALUES (?, ?, ?, ?, ?, ?) RETURNING {CHAT_COLUMNS}",
        (title, now, now, model_path, system_prompt, dump_sampling(sampling)),
    ).fetchone()
    return chat_of(row)


def update_chat(db: sqlite3.Connection, chat_id: int, changes: ChatChanges) -> Chat:
    """Change a chat and give it as it is then."""
    row = db.execute(
        "UPDATE chats SET title = coalesce(?, title), title_locked = coalesce(?, title_locked),"
        " system_prompt = coalesce(?, system_prompt), sampling = coalesce(?, sampling),"
        f" model_path = coalesce(?, model_path) WHERE id = ? RETURNING {CHAT_COLUMNS}",
        (
            changes.title,
            changes.title_locked,
            changes.system_prompt,
            None if changes.sampling is None else dump_sampling(changes.sampling),
            changes.model_path,
            chat_id,
        ),
    ).fetchone()
    if row is None:
        raise no_chat(chat_id)
    return chat_of(row)


def insert_message(db: sqlite3.Connection, new: NewMessage) -> StoredMessage:
    """Add a message, move the chat's head to it and give it as stored."""
    if new.parent_id is not None:
        _require_message_of(db, new.chat_id, new.parent_id)
    now = time.time()
    _touch(db, new.chat_id, now)
    row = db.execute(
        "INSERT INTO messages (chat_id, parent_id, role, content, token_ids, vocabulary_id,"
        " model_name, seed, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        f" RETURNING {MESSAGE_COLUMNS}",
        (
            new.chat_id,
            new.parent_id,
            new.role,
            new.content,
            dump_tokens(new.token_ids),
            new.vocabulary_id,
            new.model_name,
            new.seed,
            now,
        ),
    ).fetchone()
    db.execute("UPDATE chats SET head_id = ? WHERE id = ?", (row["id"], new.chat_id))
    return message_of(row)


def insert_turn(db: sqlite3.Connection, new: NewTurn) -> Turn:
    """Add a question and the place of its reply, and give them as stored."""
    chat = new.chat or insert_chat(db, new.title, new.model_path, new.system_prompt, new.sampling)
    parent_id, added = new.parent_id, []
    if new.question is not None:
        question = NewMessage(chat.id, parent_id, "user", new.question, None, None, None, None)
        added.append(insert_message(db, question))
        parent_id = added[0].id
    reply = NewMessage(
        chat.id, parent_id, "assistant", "", None, new.vocabulary_id, new.model_name, None
    )
    added.append(insert_message(db, reply))
    chat = _changed(db, chat.id, "model_path = ?", new.model_path)
    return Turn(chat, tuple(added))


def move_head(db: sqlite3.Connection, chat_id: int, message_id: int | None) -> None:
    """Set the message up to which a chat is shown."""
    if message_id is not None:
        _require_message_of(db, chat_id, message_id)
    if db.execute("UPDATE chats SET head_id = ? WHERE id = ?", (message_id, chat_id)).rowcount == 0:
        raise no_chat(chat_id)


def show_message(db: sqlite3.Connection, message_id: int) -> Chat:
    """Show the branch of a message down to its newest leaf, unless it is shown; give its chat."""
    row = db.execute("SELECT chat_id FROM messages WHERE id = ?", (message_id,)).fetchone()
    if row is None:
        raise no_message(message_id)
    chat_id: int = row["chat_id"]
    if db.execute(IS_SHOWN, (chat_id, message_id)).fetchone() is None:
        leaf = db.execute(LEAF, (message_id,)).fetchone()["leaf"]
        move_head(db, chat_id, leaf)
    return _changed(db, chat_id, "head_id = head_id")


def archive_chat(db: sqlite3.Connection, chat_id: int, *, archived: bool) -> Chat:
    """Put a chat into the archive or take it out, and give it as it is then."""
    if not archived:
        return _changed(db, chat_id, "archived_at = NULL")
    return _changed(db, chat_id, "archived_at = coalesce(archived_at, ?)", time.time())


def keep_from(db: sqlite3.Connection, chat_id: int, message_id: int | None) -> Chat:
    """Set the first message that the model sees, and give the chat as it is then."""
    if message_id is None:
        return _changed(db, chat_id, "kept_from = NULL, summary = NULL")
    _require_message_of(db, chat_id, message_id)
    return _changed(db, chat_id, "kept_from = ?", message_id)


def summarise(db: sqlite3.Connection, chat_id: int, summary: str | None) -> Chat:
    """Set what stands for the messages before `kept_from`, and give the chat as it is then."""
    return _changed(db, chat_id, "summary = ?", summary)


def _changed(
    db: sqlite3.Connection, chat_id: int, assignment: str, *values: float | str | None
) -> Chat:
    row = db.execute(
        f"UPDATE chats SET {assignment} WHERE id = ? RETURNING {CHAT_COLUMNS}", (*values, chat_id)
    ).fetchone()
    if row is None:
        raise no_chat(chat_id)
    return chat_of(row)


def save_drafts(db: sqlite3.Connection, drafts: Mapping[int | None, Draft], new_place: int) -> None:
    """Keep the unsent texts of chats; an empty one, or one of a chat that is gone, is forgotten.

    Args:
        db: The database.
        drafts: The texts by chat; None is the new chat.
        new_place: Which of the new chats that several kvchats have is this one's.
    """
    for chat_id, draft in drafts.items():
        place = new_place if chat_id is None else 0
        db.execute("DELETE FROM drafts WHERE chat_id IS ? AND place = ?", (chat_id, place))
        if draft:
            db.execute(
                "INSERT INTO drafts (chat_id, content, edited_id, before_edit, place)"
                " SELECT ?, ?, ?, ?, ?"
                " WHERE ? IS NULL OR EXISTS (SELECT 1 FROM chats WHERE id = ?)",
                (chat_id, draft.text, draft.edited, draft.before, place, chat_id, chat_id),
            )


def finish_message(db: sqlite3.Connection, message_id: int, end: MessageEnd) -> StoredMessage:
    """Write the end of a reply and give it as stored."""
    row = db.execute(
        "UPDATE messages SET content = ?, token_ids = ?, vocabulary_id = ?, seed = ?,"
        " finish_reason = ?, stats = ?, predictor = ?, controller = ?"
        f" WHERE id = ? RETURNING {MESSAGE_COLUMNS}",
        (
            end.content,
            dump_tokens(end.token_ids),
            end.vocabulary_id,
            end.seed,
            end.finish_reason,
            None if end.stats is None else json.dumps(end.stats),
            end.predictor,
            end.controller,
            message_id,
        ),
    ).fetchone()
    if row is None:
        raise no_message(message_id)
    message = message_of(row)
    _touch(db, message.chat_id, time.time())
    return message


def reopen_message(db: sqlite3.Connection, message_id: int) -> None:
    """Take the end of a reply away, so that it can go on; its text and tokens stay."""
    changed = db.execute("UPDATE messages SET finish_reason = NULL WHERE id = ?", (message_id,))
    if changed.rowcount == 0:
        raise no_message(message_id)


def _touch(db: sqlite3.Connection, chat_id: int, now: float) -> None:
    if db.execute("UPDATE chats SET updated_at = ? WHERE id = ?", (now, chat_id)).rowcount == 0:
        raise no_chat(chat_id)


def _require_message_of(db: sqlite3.Connection, chat_id: int, message_id: int) -> None:
    row = db.execute(
        "SELECT 1 FROM messages WHERE id = ? AND chat_id = ?", (message_id, chat_id)
    ).fetchone()
    if row is None:
        raise StoreError(f"message {message_id} is not one of chat {chat_id}")


def no_chat(chat_id: int) -> StoreError:
    """Give the error that says that a chat is gone."""
    return StoreError(f"chat {chat_id} is not in the database: another kvchat may have deleted it")


def no_message(message_id: int) -> StoreError:
    """Give the error that says that a message is gone."""
    return StoreError(
        f"message {message_id} is not in the database: another kvchat may have deleted its chat"
    )
