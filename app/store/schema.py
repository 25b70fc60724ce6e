"""The tables of the chat database."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from app.store.errors import StoreError
from app.store.records import Chat, StoredMessage

VERSION = 1
"""`PRAGMA user_version` of a database with these tables."""

# A message never cascades to its children: SQLite stops cascades at a depth of 1,000, which a long
# chat reaches. Deleting the chat removes all of its messages in one statement instead.
# Of a chat whose context was full the model sees `summary` and the messages from `context_start`.
CHATS_AND_MESSAGES = """
CREATE TABLE IF NOT EXISTS chats (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    title_locked INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    model_path TEXT,
    system_prompt TEXT NOT NULL,
    sampling TEXT NOT NULL,
    head_id INTEGER REFERENCES messages(id) ON DELETE SET NULL,
    archived_at REAL,
    context_start INTEGER REFERENCES messages(id) ON DELETE SET NULL,
    summary TEXT,
    folder TEXT NOT NULL DEFAULT '',
    is_pinned INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS chats_by_update ON chats(updated_at);
CREATE INDEX IF NOT EXISTS chats_by_head ON chats(head_id);
CREATE INDEX IF NOT EXISTS chats_by_context_start ON chats(context_start);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
    parent_id INTEGER REFERENCES messages(id),
    role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    content TEXT NOT NULL,
    token_ids BLOB,
    vocabulary_id TEXT,
    model_name TEXT,
    seed INTEGER,
    finish_reason TEXT,
    stats TEXT,
    created_at REAL NOT NULL,
    predictor TEXT,
    controller TEXT
);
CREATE INDEX IF NOT EXISTS messages_by_chat ON messages(chat_id);
CREATE INDEX IF NOT EXISTS messages_by_parent ON messages(parent_id);
"""

# A text without a chat is that of a new one; `place` numbers the new chats of several kvchats.
UNSENT_TEXTS = """
CREATE TABLE IF NOT EXISTS drafts (
    chat_id INTEGER UNIQUE REFERENCES chats(id) ON DELETE CASCADE,
    content TEXT NOT NULL,
    edited_id INTEGER,
    before_edit TEXT NOT NULL,
    place INTEGER NOT NULL DEFAULT 0
);
"""

COLUMNS: Mapping[str, Sequence[str]] = {
    "chats": [each.name for each in fields(Chat)],
    "messages": [each.name for each in fields(StoredMessage)],
    "drafts": ("chat_id", "content", "edited_id", "before_edit", "place"),
}


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of an empty database.

    Raises:
        StoreError: If the tables are those of another version.
    """
    check_version(connection, path)
    if _version_of(connection) != VERSION:
        # A second kvchat may create them at the same time.
        connection.executescript(
            f"BEGIN IMMEDIATE; {CHATS_AND_MESSAGES} {UNSENT_TEXTS} PRAGMA user_version = {VERSION};"
            "COMMIT;"
        )


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database with the tables of another version.

    Raises:
        StoreError: If it has them.
    """
    version = _version_of(connection)
    can_lack = version == 0
    if version not in (0, VERSION) or not _has_columns(connection, can_lack_tables=can_lack):
        raise StoreError(
            f"{path} has database version {version}, or damaged tables; this kvchat supports "
            f"version {VERSION}: run `kvchat chats export --all` with the kvchat that created the "
            "file, then `kvchat chats import` with this kvchat; or move the file away to start "
            "with an empty database"
        )


def _version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _has_columns(connection: sqlite3.Connection, *, can_lack_tables: bool) -> bool:
    for table, wanted in COLUMNS.items():
        there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if not there.issuperset(wanted) and (there or not can_lack_tables):
            return False
    return True
