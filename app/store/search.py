"""Search in all chats: what was typed as a query, and the messages that match."""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from engine.requests import Role

BLANKS = " \n\t\r\xa0\u3000"
"""What may stand between the words of a phrase, any number of times."""
# Scripts that put no space between words have no border that a phrase could be held to.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff"
_IN_WORD = re.compile(rf"[^\W{_UNSPACED}]")
_BETWEEN = f"[{BLANKS}]+"
_PIECE = re.compile(r'"([^"]*)"?|([^\s"]+)')


@dataclass(frozen=True)
class Wanted:
    """One thing that a message must hold."""

    words: tuple[str, ...]
    """One word, or those of a phrase, which follow one another with any blanks between."""
    is_phrase: bool = False
    """Whether it begins and ends where a word does; a plain word is found inside others too."""

    def is_in(self, lowered: str) -> bool:
        """Whether a text that is given in small letters holds it."""
        if not all(word in lowered for word in self._lowered):
            return False
        return not self.is_phrase or any(True for _ in self._spans(self._lowered_pattern, lowered))

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each occurrence in `text`."""
        return self._spans(self._pattern, text)

    def _spans(self, pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
        spans = (match.span() for match in pattern.finditer(text))
        return (span for span in spans if not self.is_phrase or _is_whole(text, *span))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(_BETWEEN.join(map(re.escape, self.words)), re.IGNORECASE)

    @cached_property
    def _lowered(self) -> tuple[str, ...]:
        return tuple(word.lower() for word in self.words)

    # With the case given, the search for the first word is that of a plain string: ten times as
    # fast, which counts over thousands of messages.
    @cached_property
    def _lowered_pattern(self) -> re.Pattern[str]:
        return re.compile(_BETWEEN.join(map(re.escape, self._lowered)))


@dataclass(frozen=True, slots=True)
class Query:
    """All that a message must hold."""

    wanted: tuple[Wanted, ...]

    def is_in(self, text: str) -> bool:
        """Whether `text` holds everything that is wanted."""
        lowered = text.lower()
        return all(each.is_in(lowered) for each in self.wanted)

    def first(self, text: str) -> int:
        """Where the first of the wanted things begins in `text`; 0 where none is in it."""
        found = (next(each.spans(text), None) for each in self.wanted)
        return min((span[0] for span in found if span is not None), default=0)

    def ranges(self, text: str) -> list[tuple[int, int]]:
        """Start and end of the wanted things in `text`, in order, none overlapping."""
        found = sorted(span for each in self.wanted for span in each.spans(text))
        ranges: list[tuple[int, int]] = []
        for start, end in found:
            if ranges and start <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return ranges


def parse_query(text: str) -> Query:
    r"""Read what a user typed; no text is an error.

    A word is also found inside other words. A phrase in double quotes is whole words in sequence;
    a quote that is not closed extends to the end.
    """
    wanted = []
    for match in _PIECE.finditer(text.replace("\0", " ")):
        phrase, word = match.groups()
        if word is not None:
            wanted.append(Wanted((word,)))
        elif words := phrase.split():
            wanted.append(Wanted(tuple(words), is_phrase=True))
    return Query(tuple(dict.fromkeys(wanted)))


def _is_whole(text: str, start: int, end: int) -> bool:
    """Whether a part of a text begins and ends where words do."""
    return not (_joins(text, start) or _joins(text, end))


def _joins(text: str, index: int) -> bool:
    """Whether the characters before and at an index belong to one word."""
    around = text[max(0, index - 1) : index + 1]
    return len(around) == 2 and all(map(_IN_WORD.match, around))


SNIPPET_LENGTH = 160
"""Characters of a hit's text that are shown."""
LEAD = 40
"""Characters of it before the first thing found."""


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
    """Where it was found in `snippet`: start and end of each occurrence, in characters."""
    created_at: float
    """Of the message, or of the chat; seconds since the epoch."""
    is_on_shown_path: bool
    """Whether opening the chat shows the message, without changing the branch."""
    is_archived: bool


_TITLES = "SELECT id, title, created_at, archived_at FROM chats ORDER BY updated_at DESC, id DESC"
_MESSAGES = "SELECT id, content FROM messages ORDER BY id DESC"
_HITS = """
SELECT messages.id, chat_id, role, content, messages.created_at, title, archived_at
FROM messages JOIN chats ON chats.id = chat_id WHERE messages.id IN ({ids})
ORDER BY messages.id DESC
"""
_SHOWN = """
WITH RECURSIVE shown(node) AS (
    SELECT head_id FROM chats WHERE id IN ({ids}) AND head_id IS NOT NULL
    UNION ALL
    SELECT parent_id FROM messages JOIN shown ON id = node WHERE parent_id >= {first}
)
SELECT node FROM shown
"""


def search(db: sqlite3.Connection, text: str, limit: int) -> list[SearchHit]:
    """Where everything in `text` is found: titles, then messages, the newest first.

    Args:
        db: A connection to the database.
        text: What the user typed; nothing in it is an error, and blanks alone find nothing.
        limit: Most hits.
    """
    query = parse_query(text)
    if not query.wanted:
        return []
    titles = list(islice(_titles(db, query), limit))
    found = list(islice(_messages(db, query), limit - len(titles)))
    messages = db.execute(_HITS.format(ids=_listed(found))).fetchall()
    shown = _shown(db, {row["chat_id"] for row in messages}, min(found, default=0))
    return titles + [_message_hit(row, query, shown) for row in messages]


def _titles(db: sqlite3.Connection, query: Query) -> Iterator[SearchHit]:
    # Titles are short and few: reading a thousand of them takes about two milliseconds.
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


def _messages(db: sqlite3.Connection, query: Query) -> Iterator[int]:
    """The messages that hold everything wanted, the newest first."""
    return (row["id"] for row in db.execute(_MESSAGES) if query.is_in(row["content"]))


def _shown(db: sqlite3.Connection, chat_ids: Iterable[int], first: int) -> set[int]:
    """The messages from `first` on that are on the shown paths of chats."""
    # A parent is older than what hangs below it, so older ones need not be walked up to.
    rows = db.execute(_SHOWN.format(ids=_listed(chat_ids), first=first))
    return {row["node"] for row in rows}


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


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
    """One line around what was found first, and where things were found in it."""
    start = max(0, query.first(text) - LEAD)
    cut = text[start : start + SNIPPET_LENGTH]
    line = re.sub(r"\s+", " ", cut).strip()
    line = f"{'…' if start else ''}{line}{'…' if start + SNIPPET_LENGTH < len(text) else ''}"
    return line, tuple(query.ranges(line))
