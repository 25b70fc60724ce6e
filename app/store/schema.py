"""The shape of the chat database: numbered steps from one version to the next.

`PRAGMA user_version` holds how many steps a file has seen. A step that was released is never
changed; a new one is appended.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.store.errors import StoreError

# A message never cascades to its children: SQLite stops cascades at a depth of 1,000, which a long
# chat reaches. Deleting the chat removes all of its messages in one statement instead.
CHATS_AND_MESSAGES = """
CREATE TABLE chats (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    title_locked INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    model_path TEXT,
    system_prompt TEXT NOT NULL,
    sampling TEXT NOT NULL,
    head_id INTEGER REFERENCES messages(id) ON DELETE SET NULL
);
CREATE INDEX chats_by_update ON chats(updated_at);
CREATE TABLE messages (
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
    created_at REAL NOT NULL
);
CREATE INDEX messages_by_chat ON messages(chat_id);
CREATE INDEX messages_by_parent ON messages(parent_id);
"""

# Everything else that a reply's statistics hold is one JSON object in `stats`; these two are what
# replies are compared by, and a reply of an older kvchat has neither.
WHO_DRAFTED = """
ALTER TABLE messages ADD COLUMN predictor TEXT;
ALTER TABLE messages ADD COLUMN controller TEXT
"""

# A chat in the archive is left out of the list; of a chat whose context was full the model sees
# `summary` and the messages from `kept_from` on.
ARCHIVE_AND_CONTEXT = """
ALTER TABLE chats ADD COLUMN archived_at REAL;
ALTER TABLE chats ADD COLUMN kept_from INTEGER REFERENCES messages(id) ON DELETE SET NULL;
ALTER TABLE chats ADD COLUMN summary TEXT;
CREATE INDEX chats_by_head ON chats(head_id);
CREATE INDEX chats_by_kept_from ON chats(kept_from)
"""

# Three characters are what unspaced scripts, identifiers and operators have in common: `n_ctx`,
# `!= 0` and a word in the middle of a Chinese sentence are all found, which an index of words does
# not do. It only proposes messages and their text decides, so it keeps neither places nor lengths.
# The two line feeds end every text, so that its last two characters begin terms too.
# A reply that is being written is not in it, so four writes a second leave it alone; a search
# reads those few (`replies_without_end`) through.
SEARCH = """
CREATE VIEW searchable_messages AS
    SELECT id, content || char(10, 10) AS content FROM messages
    WHERE role <> 'assistant' OR finish_reason IS NOT NULL;
CREATE INDEX replies_without_end ON messages(id)
    WHERE role = 'assistant' AND finish_reason IS NULL;
CREATE VIRTUAL TABLE message_index USING fts5(
    content, content = 'searchable_messages', content_rowid = 'id', tokenize = 'trigram',
    detail = 'none', columnsize = 0
);
CREATE VIRTUAL TABLE message_terms USING fts5vocab('message_index', 'row');
CREATE TRIGGER message_added AFTER INSERT ON messages
WHEN new.role <> 'assistant' OR new.finish_reason IS NOT NULL
BEGIN
    INSERT INTO message_index (rowid, content) VALUES (new.id, new.content || char(10, 10));
END;
CREATE TRIGGER message_deleted AFTER DELETE ON messages
WHEN old.role <> 'assistant' OR old.finish_reason IS NOT NULL
BEGIN
    INSERT INTO message_index (message_index, rowid, content)
    VALUES ('delete', old.id, old.content || char(10, 10));
END;
CREATE TRIGGER message_changed AFTER UPDATE OF content, role, finish_reason ON messages
WHEN old.role <> 'assistant' OR old.finish_reason IS NOT NULL OR new.finish_reason IS NOT NULL
BEGIN
    INSERT INTO message_index (message_index, rowid, content)
    SELECT 'delete', old.id, old.content || char(10, 10)
    WHERE old.role <> 'assistant' OR old.finish_reason IS NOT NULL;
    INSERT INTO message_index (rowid, content)
    SELECT new.id, new.content || char(10, 10)
    WHERE new.role <> 'assistant' OR new.finish_reason IS NOT NULL;
END;
INSERT INTO message_index (message_index) VALUES ('rebuild')
"""

# A chat without a number is the new one, which has none before its first question is saved.
DRAFTS = """
CREATE TABLE drafts (
    chat_id INTEGER UNIQUE REFERENCES chats(id) ON DELETE CASCADE,
    content TEXT NOT NULL,
    edited_id INTEGER,
    before_edit TEXT NOT NULL
)
"""

# Each kvchat that is open has a new chat of its own, whose number it locks.
NUMBERS_OF_NEW_CHATS = "ALTER TABLE drafts ADD COLUMN place INTEGER NOT NULL DEFAULT 0"

# A chat is in one folder at most; an empty name is none.
FOLDERS_AND_PINS = """
ALTER TABLE chats ADD COLUMN folder TEXT NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0
"""

STEPS: tuple[str, ...] = (
    CHATS_AND_MESSAGES,
    WHO_DRAFTED,
    ARCHIVE_AND_CONTEXT,
    SEARCH,
    DRAFTS,
    NUMBERS_OF_NEW_CHATS,
    FOLDERS_AND_PINS,
)
"""Step i takes a database from version i to version i + 1."""


def upgrade(connection: sqlite3.Connection, path: Path, steps: Sequence[str] = STEPS) -> None:
    """Bring the database to the newest version, in one transaction.

    Raises:
        StoreError: If a newer kvchat made the file.
        sqlite3.Error: If a step fails; the file is then as it was.
    """
    if version_of(connection) == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _take_steps(connection, path, steps)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def version_of(connection: sqlite3.Connection) -> int:
    """The number of steps that the database has seen."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def check_version(connection: sqlite3.Connection, path: Path, n_known: int = len(STEPS)) -> int:
    """The version of the database.

    Raises:
        StoreError: A newer kvchat made the file.
    """
    version = version_of(connection)
    if version > n_known:
        raise StoreError(
            f"{path} was made by a newer kvchat (database version {version}, this one knows "
            f"{n_known}): update kvchat, or move the file away to start with an empty list"
        )
    return version


def _take_steps(connection: sqlite3.Connection, path: Path, steps: Sequence[str]) -> None:
    # Read again under the lock: a second kvchat may have done the upgrade meanwhile.
    version = check_version(connection, path, len(steps))
    for step in steps[version:]:
        for statement in statements_of(step):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(steps)}")


def statements_of(step: str) -> Iterator[str]:
    """The statements of a step one by one; a trigger, semicolons and all, is one of them.

    `executescript` would end the transaction that an upgrade is.
    """
    statement = ""
    for part in step.split(";"):
        statement += f"{part};"
        if not sqlite3.complete_statement(statement):
            continue
        if statement.strip(" \n;"):
            yield statement
        statement = ""
    if statement:
        yield statement
