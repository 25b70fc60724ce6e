"""Chats and search hits as rows, and the facts of a chat."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app import format as fmt
from app.cache import CachedChat
from app.render.lines import Line, Run, clipped, padded, width_of
from app.render.panels import TIERS
from app.sanitize import visible
from app.store.records import Chat, ChatSize
from app.store.search import SearchHit

WHEN_WIDTH = 8
MIN_WIDTH = 60
"""Below this width a row has no counts."""
SPEAKERS = {"user": "you", "assistant": "model", "system": "system"}


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat with its size and its cached states."""

    chat: Chat
    size: ChatSize
    cached: CachedChat | None = None
    is_shown: bool = False
    is_answered: bool = False
    """A reply is being written in it."""
    is_cache_known: bool = True
    """Whether the cache has reported its states; False before a model is loaded."""


def chat_row(row: ChatRow, now: datetime, width: int) -> Line:
    """Last use, title, size and tiers of a chat."""
    sign = Run("● " if row.is_answered else "• " if row.is_shown else "  ", "accent")
    when = Run(f"{when_text(row.chat.updated_at, now):<{WHEN_WIDTH}}", "muted")
    counts = _counts(row) if width >= MIN_WIDTH else ()
    space = width - 2 - WHEN_WIDTH - width_of(counts) - 1
    note = " answering" if row.is_answered else " pinned" if row.chat.is_pinned else ""
    folder = clipped((Run(f" {_one_line(row.chat.folder)}", "muted"),), max(space // 3, 8))
    notes = (*(folder if row.chat.folder else ()), Run(note, "accent"))
    title = clipped((Run(_one_line(row.chat.title)),), max(space - width_of(notes), 8))
    return (sign, when, *padded((*title, *notes), space + 1), *counts)


def hit_row(hit: SearchHit, now: datetime, width: int) -> Line:
    """The chat of a hit, or the matching title, and where the hit is."""
    when = Run(f"  {when_text(hit.created_at, now):<{WHEN_WIDTH}}", "muted")
    notes = [SPEAKERS[hit.role] if hit.role else "title"]
    if hit.is_archived:
        notes.append("archived")
    if not hit.is_on_shown_path:
        notes.append("other branch")
    where = Run(" · ".join(notes), "muted")
    space = max(width - 2 - WHEN_WIDTH - width_of((where,)) - 1, 8)
    title: Line = (Run(_one_line(hit.title)),)
    if hit.message_id is None:
        title = marked_text(hit.snippet, hit.marked)
    return (when, *padded(clipped(title, space), space + 1), where)


def snippet_row(hit: SearchHit, width: int) -> Line:
    """The text around a hit."""
    indent = Run(" " * (2 + WHEN_WIDTH))
    return clipped((indent, *marked_text(hit.snippet, hit.marked)), width)


def marked_text(text: str, marked: Sequence[tuple[int, int]]) -> Line:
    """A text with highlighted ranges; control characters become visible signs."""
    runs: list[Run] = []
    at = 0
    for start, end in marked:
        runs += [Run(_one_line(text[at:start]), "muted"), Run(_one_line(text[start:end]), "accent")]
        at = end
    return (*runs, Run(_one_line(text[at:]), "muted"))


def chat_facts(row: ChatRow) -> Line:
    """Model, messages and tokens of a chat."""
    chat, size = row.chat, row.size
    model = chat.model_path.replace("\\", "/").rsplit("/", 1)[-1] if chat.model_path else ""
    n_tokens = size.n_tokens
    parts = [
        visible(model).removesuffix(".gguf"),
        fmt.counted(size.n_messages, "message"),
        f"{fmt.tokens(n_tokens)} {fmt.plural(n_tokens, 'token')} generated" if n_tokens else "",
        "archived" if chat.archived_at is not None else "",
        "the oldest turns are hidden from the model" if chat.context_start is not None else "",
    ]
    return (Run(" · ".join(part for part in parts if part), "muted"),)


def context_text(row: ChatRow) -> Line:
    """The cached tokens of a chat by tier."""
    cached = row.cached
    if not row.is_cache_known:
        text = "load the model to see the cached tokens"
    elif not cached:
        text = "nothing cached for this model"
    else:
        tiers = [f"{fmt.tokens(n)} {tier}" for tier in TIERS if (n := cached.n_by_tier[tier])]
        text = f"cached tokens: {', '.join(tiers)} · {fmt.nbytes(cached.nbytes)}"
    return (Run(text, "muted"),)


def when_text(seconds: float, now: datetime) -> str:
    """A time in short: the hour today, the day this year, else the month."""
    when = fmt.moment(seconds)
    if when is None:
        return fmt.NO_VALUE
    if when.date() == now.date():
        return f"{when:%H:%M}"
    return f"{when:%d %b}" if when.year == now.year else f"{when:%Y-%m}"


def _counts(row: ChatRow) -> Line:
    n = row.size.n_tokens
    n_tokens = fmt.tokens(n) if n or not row.size.n_messages else fmt.NO_VALUE
    size = f"{row.size.n_messages:>5} msg {n_tokens:>6} tokens "
    if not row.is_cache_known:
        return (Run(f"{size}  {fmt.NO_VALUE}", "muted"),)
    letters = [
        Run(tier[0], f"strong tier-{tier}")
        if row.cached is not None and row.cached.n_by_tier[tier]
        else Run("·", "muted")
        for tier in TIERS
    ]
    return (Run(size, "muted"), *letters)


def _one_line(text: str) -> str:
    return visible(text.replace("\n", " "))
