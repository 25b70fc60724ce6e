"""Full-text search over all chats: the index proposes messages, their text decides."""

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from app.store.query import TERM_LENGTH, Query, after, parse_query, quoted
from engine.requests import Role

SNIPPET_LENGTH = 160
"""Characters of a hit's text that are shown."""
LEAD = 40
"""Characters of it before the first thing found."""
MAX_VARIANTS = 500
"""Terms that a short word may begin; one that begins more is in so many messages that reading the
newest ones through finds enough of them at once."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One message, or the title of a chat, in which everything was found."""

    chat_id: int
    title: str
    message_id: int | None
    """None where the title was found."""
    role: Role | None
    snippet: str
    """One line of the text around what was found."""
    marked: tuple[tuple[int, int], ...]
    """Where it was found in `snippet`: start and end of each place, in characters."""
    created_at: float
    """Of the message, or of the chat; seconds since the epoch."""
    is_on_shown_path: bool
    """Whether opening the chat shows the message, without changing the branch."""
    is_archived: bool


def search(db: sqlite3.Connection, text: str, limit: int) -> list[SearchHit]:
    """Give where everything in `text` is found: titles, then messages, the newest first.

    Args:
        db: A connection to the database.
        text: What the user typed; nothing in it is an error, and blanks alone find nothing.
        limit: Most hits.
    """
    query = parse_query(text)
    if not query.wanted:
        return []
    titles = list(islice(_titles(db, query), limit))
    messages = list(islice(_messages(db, query), limit - len(titles)))
    shown = _shown(db, {row["chat_id"] for row in messages})
    return titles + [_message_hit(row, query, shown) for row in messages]


def rebuild(db: sqlite3.Connection) -> None:
    """Make the index anew from the messages."""
    db.execute("INSERT INTO message_index (message_index) VALUES ('rebuild')")


_TITLES = "SELECT id, title, created_at, archived_at FROM chats ORDER BY updated_at DESC, id DESC"
_COLUMNS = "messages.id, chat_id, role, messages.content, messages.created_at, title, archived_at"
_INDEXED = f"""
SELECT {_COLUMNS} FROM message_index
JOIN messages ON messages.id = message_index.rowid JOIN chats ON chats.id = chat_id
WHERE message_index MATCH ? ORDER BY message_index.rowid DESC
"""
_READ_THROUGH = f"""
SELECT {_COLUMNS} FROM messages JOIN chats ON chats.id = chat_id ORDER BY messages.id DESC
"""
_WITHOUT_END = f"""
SELECT {_COLUMNS} FROM messages JOIN chats ON chats.id = chat_id
WHERE role = 'assistant' AND finish_reason IS NULL
"""
_VARIANTS = "SELECT term FROM message_terms WHERE term >= ? AND term < ? LIMIT ?"
_SHOWN = """
WITH RECURSIVE shown(node) AS (
    SELECT head_id FROM chats WHERE id IN ({ids}) AND head_id IS NOT NULL
    UNION ALL
    SELECT parent_id FROM messages JOIN shown ON id = node WHERE parent_id IS NOT NULL
)
SELECT node FROM shown
"""


def _titles(db: sqlite3.Connection, query: Query) -> Iterator[SearchHit]:
    # Titles are short and few: reading them all takes a millisecond for a thousand chats.
    for row in db.execute(_TITLES):
        if query.is_in(row["title"]):
            snippet, marked = _snippet(row["title"], query)
            yield SearchHit(
                chat_id=row["id"],
                title=row["title"],
                message_id=None,
                role=None,
                snippet=snippet,
                marked=marked,
                created_at=row["created_at"],
                is_on_shown_path=True,
                is_archived=row["archived_at"] is not None,
            )


def _messages(db: sqlite3.Connection, query: Query) -> Iterator[sqlite3.Row]:
    expression = _expression(db, query)
    if expression is None:
        rows = db.execute(_READ_THROUGH)
        yield from (row for row in rows if query.is_in(row["content"]))
        return
    unended = [row for row in db.execute(_WITHOUT_END) if query.is_in(row["content"])]
    unended.sort(key=lambda row: row["id"])
    for row in db.execute(_INDEXED, (expression,)):
        if not query.is_in(row["content"]):
            continue
        while unended and unended[-1]["id"] > row["id"]:
            yield unended.pop()
        yield row
    yield from reversed(unended)


def _expression(db: sqlite3.Connection, query: Query) -> str | None:
    """Give the query of the index that finds every message wanted, None where there is none."""
    parts = [quoted(term) for term in query.terms()]
    if not parts:
        parts = [part for word in query.short_words if (part := _variants(db, word)) is not None]
    return " AND ".join(parts) if parts else None


def _variants(db: sqlite3.Connection, word: str) -> str | None:
    """Spell a word of one or two characters as the terms that begin with it."""
    begins = word.lower()
    rows = db.execute(_VARIANTS, (begins, after(begins), MAX_VARIANTS + 1)).fetchall()
    if len(rows) > MAX_VARIANTS:
        return None
    # Without a term the index has no such message, and is asked for a term that it does not have.
    terms = [row["term"] for row in rows] or [f"{begins}\n\n"[:TERM_LENGTH]]
    return "(" + " OR ".join(map(quoted, terms)) + ")"


def _shown(db: sqlite3.Connection, chat_ids: set[int]) -> set[int]:
    """Give the messages that lie on the shown paths of chats."""
    marks = ", ".join("?" * len(chat_ids))
    return {row["node"] for row in db.execute(_SHOWN.format(ids=marks), tuple(chat_ids))}


def _message_hit(row: sqlite3.Row, query: Query, shown: set[int]) -> SearchHit:
    snippet, marked = _snippet(row["content"], query)
    return SearchHit(
        chat_id=row["chat_id"],
        title=row["title"],
        message_id=row["id"],
        role=row["role"],
        snippet=snippet,
        marked=marked,
        created_at=row["created_at"],
        is_on_shown_path=row["id"] in shown,
        is_archived=row["archived_at"] is not None,
    )


def _snippet(text: str, query: Query) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Give one line around what was found first, and where things were found in it."""
    start = max(0, query.first(text) - LEAD)
    cut = text[start : start + SNIPPET_LENGTH]
    line = re.sub(r"\s+", " ", cut).strip()
    line = f"{'…' if start else ''}{line}{'…' if start + SNIPPET_LENGTH < len(text) else ''}"
    return line, tuple(query.ranges(line))
