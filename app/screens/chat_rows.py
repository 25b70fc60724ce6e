"""One chat, or one place where something was found, as a row of the list of chats."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from textual.content import Content

from app import format as fmt
from app.cache.cached_chats import CachedChat
from app.sanitize import visible
from app.store.records import Chat, ChatSize
from app.store.search import SearchHit
from engine.cache.report import TierName

TIERS: tuple[TierName, ...] = ("hot", "warm", "cold")
MUTED = "$foreground 60%"
WHEN_WIDTH = 8
MIN_WIDTH = 60
"""Below this width a row has no counts."""
SPEAKERS = {"user": "you", "assistant": "model", "system": "system"}


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat and what is said beside its title."""

    chat: Chat
    size: ChatSize
    kept: CachedChat | None = None
    is_shown: bool = False
    is_answered: bool = False
    """A reply is being written in it."""
    is_cache_known: bool = True
    """The cache has said what it keeps; it has not before a model is loaded."""


def chat_row(row: ChatRow, width: int, now: datetime) -> Content:
    """Give one line: when it was used, its title, how much it holds and which tiers keep it."""
    chat = row.chat
    marker = ("● ", "$text-accent") if row.is_answered else ("▸ " if row.is_shown else "  ", "")
    when = (f"{when_text(chat.updated_at, now):<{WHEN_WIDTH}}", MUTED)
    counts = _counts(row) if width >= MIN_WIDTH else Content("")
    room = width - 2 - WHEN_WIDTH - counts.cell_length - 1
    title = Content(_line(chat.title))
    note = Content.styled(" answering", "$text-accent") if row.is_answered else Content("")
    title = title.truncate(max(room - note.cell_length, 8), ellipsis=True) + note
    filled = title.pad_right(max(room - title.cell_length, 0) + 1)
    return Content.assemble(marker, when, filled, counts)


def hit_row(hit: SearchHit, width: int, now: datetime) -> Content:
    """Give the chat that holds it, and below the text; what was found is marked.

    A title that was found is one line.
    """
    when = (f"  {when_text(hit.created_at, now):<{WHEN_WIDTH}}", MUTED)
    notes = [SPEAKERS[hit.role] if hit.role else "title"]
    if hit.is_archived:
        notes.append("archived")
    if not hit.is_on_shown_path:
        notes.append("other branch")
    said = Content.styled(" · ".join(notes), MUTED)
    room = max(width - 2 - WHEN_WIDTH - said.cell_length - 1, 8)
    snippet = marked_text(hit.snippet, hit.marked)
    title = snippet if hit.message_id is None else Content(_line(hit.title))
    title = title.truncate(room, ellipsis=True)
    above = Content.assemble(when, title.pad_right(max(room - title.cell_length, 0) + 1), said)
    if hit.message_id is None:
        return above
    below = Content(" " * (2 + WHEN_WIDTH)) + snippet
    return Content.assemble(above, "\n", below.truncate(width, ellipsis=True))


def marked_text(text: str, marked: Sequence[tuple[int, int]]) -> Content:
    """Give a text with some of its stretches marked; what could harm the terminal is spelled."""
    parts: list[str | tuple[str, str]] = []
    at = 0
    for start, end in marked:
        parts += [(_line(text[at:start]), MUTED), (_line(text[start:end]), "bold $accent")]
        at = end
    return Content.assemble(*parts, (_line(text[at:]), MUTED))


def detail(row: ChatRow) -> Content:
    """Give what is known of a chat beyond its row."""
    chat, size = row.chat, row.size
    model = (
        visible(chat.model_path.replace("\\", "/").rsplit("/", 1)[-1]) if chat.model_path else ""
    )
    parts = [
        model.removesuffix(".gguf"),
        fmt.counted(size.n_messages, "message"),
        _answered(size.n_tokens),
        "in the archive" if chat.archived_at is not None else "",
        "seen by the model from a later turn on" if chat.kept_from is not None else "",
    ]
    return Content.assemble(
        (" · ".join(part for part in parts if part), MUTED), "\n", kept_text(row)
    )


def kept_text(row: ChatRow) -> Content:
    """Where the cache keeps a chat, in words."""
    kept = row.kept
    if not row.is_cache_known:
        return Content.styled("what the cache keeps is known when the model is loaded", MUTED)
    if not kept:
        return Content.styled("the cache keeps nothing of it for this model", MUTED)
    told = [f"{fmt.tokens(n)} {tier}" for tier in TIERS if (n := kept.n_by_tier[tier])]
    return Content.styled(f"kept, in tokens: {', '.join(told)} · {fmt.nbytes(kept.nbytes)}", MUTED)


def _answered(n_tokens: int) -> str:
    return f"{fmt.tokens(n_tokens)} {fmt.plural(n_tokens, 'token')} answered" if n_tokens else ""


def when_text(seconds: float, now: datetime) -> str:
    """Give a time short: the hour today, the day this year, else the month."""
    when = datetime.fromtimestamp(seconds)
    if when.date() == now.date():
        return f"{when:%H:%M}"
    return f"{when:%d %b}" if when.year == now.year else f"{when:%Y-%m}"


def _counts(row: ChatRow) -> Content:
    size = f"{row.size.n_messages:>5} msg {fmt.tokens(row.size.n_tokens):>6} tok "
    if not row.is_cache_known:
        return Content.styled(f"{size}  {fmt.NO_VALUE}", MUTED)
    letters: list[str | tuple[str, str]] = []
    for tier in TIERS:
        is_there = row.kept is not None and bool(row.kept.n_by_tier[tier])
        letters.append((tier[0], f"bold $kv-{tier}") if is_there else ("·", MUTED))
    return Content.assemble((size, MUTED), *letters)


def _line(text: str) -> str:
    return visible(text.replace("\n", " "))
