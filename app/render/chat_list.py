"""The list of chats: a chat, or a text that was found, as a row, and what is known of a chat."""

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
    """A chat and what is known of it beside its title."""

    chat: Chat
    size: ChatSize
    kept: CachedChat | None = None
    is_shown: bool = False
    is_answered: bool = False
    """A reply is being written in it."""
    is_cache_known: bool = True
    """The cache has said what it keeps; it has not before a model is loaded."""


def chat_row(row: ChatRow, now: datetime, width: int) -> Line:
    """When a chat was used, its title, how much it holds and which tiers keep it."""
    sign = Run("● " if row.is_answered else "• " if row.is_shown else "  ", "accent")
    when = Run(f"{when_text(row.chat.updated_at, now):<{WHEN_WIDTH}}", "muted")
    counts = _counts(row) if width >= MIN_WIDTH else ()
    room = width - 2 - WHEN_WIDTH - width_of(counts) - 1
    said = " answering" if row.is_answered else " pinned" if row.chat.is_pinned else ""
    folder = clipped((Run(f" {_one_line(row.chat.folder)}", "muted"),), max(room // 3, 8))
    notes = (*(folder if row.chat.folder else ()), Run(said, "accent"))
    title = clipped((Run(_one_line(row.chat.title)),), max(room - width_of(notes), 8))
    return (sign, when, *padded((*title, *notes), room + 1), *counts)


def hit_row(hit: SearchHit, now: datetime, width: int) -> Line:
    """The chat in which something was found, or the title that was found, and where it is."""
    when = Run(f"  {when_text(hit.created_at, now):<{WHEN_WIDTH}}", "muted")
    notes = [SPEAKERS[hit.role] if hit.role else "title"]
    if hit.is_archived:
        notes.append("archived")
    if not hit.is_on_shown_path:
        notes.append("other branch")
    where = Run(" · ".join(notes), "muted")
    room = max(width - 2 - WHEN_WIDTH - width_of((where,)) - 1, 8)
    title: Line = (Run(_one_line(hit.title)),)
    if hit.message_id is None:
        title = marked_text(hit.snippet, hit.marked)
    return (when, *padded(clipped(title, room), room + 1), where)


def snippet_row(hit: SearchHit, width: int) -> Line:
    """The text around what was found."""
    indent = Run(" " * (2 + WHEN_WIDTH))
    return clipped((indent, *marked_text(hit.snippet, hit.marked)), width)


def marked_text(text: str, marked: Sequence[tuple[int, int]]) -> Line:
    """A text with some of its stretches marked, harmful characters shown as signs."""
    runs: list[Run] = []
    at = 0
    for start, end in marked:
        runs += [Run(_one_line(text[at:start]), "muted"), Run(_one_line(text[start:end]), "accent")]
        at = end
    return (*runs, Run(_one_line(text[at:]), "muted"))


def chat_facts(row: ChatRow) -> Line:
    """What is known of a chat beyond its row."""
    chat, size = row.chat, row.size
    model = chat.model_path.replace("\\", "/").rsplit("/", 1)[-1] if chat.model_path else ""
    n_tokens = size.n_tokens
    parts = [
        visible(model).removesuffix(".gguf"),
        fmt.counted(size.n_messages, "message"),
        f"{fmt.tokens(n_tokens)} {fmt.plural(n_tokens, 'token')} generated" if n_tokens else "",
        "archived" if chat.archived_at is not None else "",
        "the oldest turns are hidden from the model" if chat.kept_from is not None else "",
    ]
    return (Run(" · ".join(part for part in parts if part), "muted"),)


def kept_text(row: ChatRow) -> Line:
    """Where the cache keeps a chat, in words."""
    kept = row.kept
    if not row.is_cache_known:
        text = "load the model to see the cached tokens"
    elif not kept:
        text = "nothing cached for this model"
    else:
        lies = [f"{fmt.tokens(n)} {tier}" for tier in TIERS if (n := kept.n_by_tier[tier])]
        text = f"cached tokens: {', '.join(lies)} · {fmt.nbytes(kept.nbytes)}"
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
        if row.kept is not None and row.kept.n_by_tier[tier]
        else Run("·", "muted")
        for tier in TIERS
    ]
    return (Run(size, "muted"), *letters)


def _one_line(text: str) -> str:
    return visible(text.replace("\n", " "))
