"""Search in all chats: what was typed as a query, and the messages that match."""

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from engine.requests import Role

BLANKS = " \n\t\r\xa0\u3000"
"""White space that may separate the words of a phrase."""
SNIPPET_LENGTH = 160
"""Characters of a hit's text that are shown."""
LEAD = 40
"""Characters of it before the first match."""
_TERM = re.compile(r'"([^"]*)"?|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One message, or the title of a chat, that matches the query."""

    chat_id: int
    title: str
    message_id: int | None
    """None where the title matches."""
    role: Role | None
    snippet: str
    """One line of the text around the first match."""
    marked: tuple[tuple[int, int], ...]
    """Start and end of each match in `snippet`, in characters."""
    created_at: float
    """Time of the message, or of the chat, in seconds since the epoch."""
    is_on_shown_path: bool
    """Whether opening the chat shows the message, without changing the branch."""
    is_archived: bool


_TITLES = """
SELECT id AS chat_id, title, NULL AS message_id, NULL AS role, title AS content, created_at,
    archived_at
FROM chats ORDER BY updated_at DESC, id DESC
"""
_MESSAGES = "SELECT id, content FROM messages ORDER BY id DESC"
_HITS = """
SELECT chat_id, title, messages.id AS message_id, role, content, messages.created_at, archived_at
FROM messages JOIN chats ON chats.id = chat_id WHERE messages.id IN ({ids})
ORDER BY messages.id DESC
"""
# A parent is older than its children: the walk up ends at the oldest hit.
_SHOWN = """
WITH RECURSIVE shown(node) AS (
    SELECT head_id FROM chats WHERE id IN ({ids}) AND head_id IS NOT NULL
    UNION ALL
    SELECT parent_id FROM messages JOIN shown ON id = node WHERE parent_id >= {first}
)
SELECT node FROM shown
"""


class _Query:
    """Words and phrases that a text must hold, in any case."""

    def __init__(self, text: str) -> None:
        terms = [phrase.split() or [word] for phrase, word in _TERM.findall(text)]
        self._words = [word.lower() for term in terms for word in term if word]
        joined = [f"[{BLANKS}]+".join(map(re.escape, term)) for term in terms if term[0]]
        self._patterns = [re.compile(each, re.IGNORECASE) for each in dict.fromkeys(joined)]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, text: str) -> bool:
        # Looking for plain words first is ten times as fast as the patterns alone.
        lowered = text.lower()
        return all(word in lowered for word in self._words) and all(
            pattern.search(lowered) for pattern in self._patterns
        )

    def ranges(self, text: str) -> list[tuple[int, int]]:
        """Start and end of the matches in `text`, in order, none overlapping."""
        ranges: list[tuple[int, int]] = []
        for start, end in sorted(m.span() for each in self._patterns for m in each.finditer(text)):
            if ranges and start <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return ranges

    def hit(self, row: sqlite3.Row, *, is_shown: bool) -> SearchHit:
        text = row["content"]
        start = max(0, next((each[0] for each in self.ranges(text)), 0) - LEAD)
        line = re.sub(r"\s+", " ", text[start : start + SNIPPET_LENGTH]).strip()
        line = f"{'…' * (start > 0)}{line}{'…' * (start + SNIPPET_LENGTH < len(text))}"
        return SearchHit(
            chat_id=row["chat_id"],
            title=row["title"],
            message_id=row["message_id"],
            role=row["role"],
            snippet=line,
            marked=tuple(self.ranges(line)),
            created_at=row["created_at"],
            is_on_shown_path=is_shown,
            is_archived=row["archived_at"] is not None,
        )


def search(db: sqlite3.Connection, text: str, limit: int) -> list[SearchHit]:
    """At most `limit` matching titles and messages: titles first, then the newest messages.

    A match holds every word of `text`, inside words too, and every phrase in double quotes. A quote
    that is not closed extends to the end. No text is an error, and blanks alone match nothing.
    """
    query = _Query(text.replace("\0", " "))
    if not query:
        return []
    titles = (row for row in db.execute(_TITLES) if query.matches(row["content"]))
    hits = [query.hit(row, is_shown=True) for row in islice(titles, limit)]
    matching = (row["id"] for row in db.execute(_MESSAGES) if query.matches(row["content"]))
    found = list(islice(matching, limit - len(hits)))
    rows = db.execute(_HITS.format(ids=_listed(found))).fetchall()
    chat_ids = _listed({row["chat_id"] for row in rows})
    shown = {
        row["node"] for row in db.execute(_SHOWN.format(ids=chat_ids, first=min(found, default=0)))
    }
    return hits + [query.hit(row, is_shown=row["message_id"] in shown) for row in rows]


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
