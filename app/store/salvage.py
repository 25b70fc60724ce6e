"""Takes over what a damaged database can still give."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from app.store.records import TEXT

TABLES = ("chats", "messages")

# A damaged page can also give rows that were never written: what could not be read back later is
# left out, and what can be done without is emptied.
_NO_TEXT = "typeof({0}) NOT IN ('text', 'null')"
_NO_OBJECT = "CASE WHEN json_valid({0}) THEN json_type({0}) <> 'object' ELSE {0} IS NOT NULL END"
_CLEANING = (
    "DELETE FROM chats WHERE typeof(title) <> 'text' OR typeof(system_prompt) <> 'text'"
    " OR typeof(created_at) <> 'real' OR typeof(updated_at) <> 'real'",
    "DELETE FROM messages WHERE chat_id NOT IN (SELECT id FROM chats)"
    " OR typeof(content) <> 'text' OR typeof(created_at) <> 'real'",
    "UPDATE messages SET token_ids = NULL"
    " WHERE typeof(token_ids) NOT IN ('blob', 'null') OR length(token_ids) % 4 <> 0",
    "UPDATE messages SET seed = NULL WHERE typeof(seed) NOT IN ('integer', 'null')",
    f"UPDATE messages SET stats = NULL WHERE {_NO_OBJECT.format('stats')}",
    f"UPDATE chats SET sampling = '{{}}' WHERE {_NO_OBJECT.format('sampling')}",
    "UPDATE chats SET archived_at = NULL WHERE typeof(archived_at) NOT IN ('real', 'null')",
    *(
        f"UPDATE {table} SET {column} = NULL WHERE {_NO_TEXT.format(column)}"
        for table, columns in (
            ("chats", ("model_path", "summary")),
            (
                "messages",
                ("vocabulary_id", "model_name", "finish_reason", "predictor", "controller"),
            ),
        )
        for column in columns
    ),
    "UPDATE messages SET parent_id = NULL WHERE parent_id >= id OR NOT EXISTS"
    " (SELECT 1 FROM messages AS above WHERE above.id = messages.parent_id"
    " AND above.chat_id = messages.chat_id)",
    "UPDATE chats SET kept_from = NULL, summary = NULL WHERE NOT EXISTS"
    " (SELECT 1 FROM messages WHERE messages.id = kept_from AND chat_id = chats.id)",
    "UPDATE chats SET head_id = (SELECT max(id) FROM messages WHERE chat_id = chats.id)"
    " WHERE NOT EXISTS"
    " (SELECT 1 FROM messages WHERE messages.id = head_id AND chat_id = chats.id)",
)


def salvage(broken: Path, into: sqlite3.Connection) -> tuple[int, int]:
    """Copy every chat and message that can still be read, under its id, in one transaction.

    A message whose parent is lost begins a tree of its own.

    Args:
        broken: The damaged database; it stays as it is.
        into: A new database of the newest version.

    Returns:
        How many chats and messages were taken over.

    Raises:
        sqlite3.Error: If the new database cannot be written; it is then as it was.
    """
    source = sqlite3.connect(f"{broken.absolute().as_uri()}?mode=ro", uri=True)
    source.text_factory = TEXT
    try:
        into.execute("BEGIN IMMEDIATE")
        try:
            into.execute("PRAGMA defer_foreign_keys = ON")
            for table in TABLES:
                _copy(source, into, table)
            for statement in _CLEANING:
                into.execute(statement)
        except BaseException:
            into.execute("ROLLBACK")
            raise
        into.execute("COMMIT")
    finally:
        source.close()
    n_chats, n_messages = (
        int(into.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in TABLES
    )
    return n_chats, n_messages


def _copy(source: sqlite3.Connection, into: sqlite3.Connection, table: str) -> None:
    wanted = [row[1] for row in into.execute(f"PRAGMA table_info({table})")]
    try:
        there = {row[1] for row in source.execute(f"PRAGMA table_info({table})")}
    except (sqlite3.Error, UnicodeDecodeError):
        return  # nothing of it can be read
    names = [name for name in wanted if name in there]
    if "id" not in names:
        return
    marks = ", ".join("?" * len(names))
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"
    for order in ("ASC", "DESC"):
        # Read from both ends, so that a damaged page in the middle hides only what lies on it.
        query = f"SELECT {', '.join(names)} FROM {table} NOT INDEXED ORDER BY id {order}"
        for row in _readable(source, query):
            into.execute(insert, row)


def _readable(source: sqlite3.Connection, query: str) -> Iterator[tuple[object, ...]]:
    """The rows up to the first that cannot be read."""
    try:
        yield from source.execute(query)
    except (sqlite3.Error, UnicodeDecodeError):
        return
