"""The saved states as a table, by chat or one by one, and the facts of a row."""

from collections.abc import Mapping, Sequence

from app import format as fmt
from app.cache import NOBODY, CachedChat
from app.chat.snapshot import CockpitSnapshot, Phase
from app.render.lines import Line, Run, clipped, field, hanging, padded
from app.render.panels import TIERS, note_line
from app.sanitize import visible
from engine.cache.report import CacheEntry, CacheNote

Titles = Mapping[str, str]
"""Titles of chats by owner, such as `chat:12`."""
COLUMNS = (
    ("tokens", 12), ("bytes", 6), ("where", 6), ("pinned", 8), ("uses", 5), ("last use", 10)
)  # fmt: skip
TABLE_WIDTH = sum(width for _, width in COLUMNS)
MIN_TITLE = 12
MARKS = {"hot": "H", "warm": "W", "cold": "C"}


def title_line(snapshot: CockpitSnapshot, n_chats: int, *, is_by_chat: bool) -> Line:
    """Title line: the order of the list, the number of states, and the model."""
    title = Run(" saved states", "strong")
    report = snapshot.tiers
    if report is None:
        return (title,)
    n_states = len(report.entries)
    name = visible(snapshot.model_name.replace("\n", " "))
    how = "by chat" if is_by_chat else "one by one"
    text = f"  {how} · {fmt.counted(n_states, 'state')} of {fmt.counted(n_chats, 'chat')}"
    n_all = max((tier.n_entries for tier in report.tiers if tier.name != "hot"), default=0)
    if n_all > n_states:
        text += f", the most recently used of {fmt.count(n_all)} states"
    return (title, Run(text), Run(f" · {name}", "muted"))


def empty_text(snapshot: CockpitSnapshot) -> str:
    """Why the table is empty, and what fills it."""
    if snapshot.phase in (Phase.EMPTY, Phase.LOADING, Phase.STOPPED):
        return "No model is loaded: load a model to list its saved states."
    if snapshot.server:
        return "The server manages its own cache; the KV cache panel shows its figures."
    if snapshot.tiers is None:
        return "The cache has not reported its states yet."
    if not any(tier.budget_bytes for tier in snapshot.tiers.tiers if tier.name != "hot"):
        return "No states are saved: the cache is turned off in the settings, or is still opening."
    return "No saved states of this model yet: kvchat saves a state after each reply."


# --- the table ---


def table_head(width: int) -> Line:
    """Names of the columns."""
    return _table_line(Run("chat", "muted"), [(Run(name, "muted"),) for name, _ in COLUMNS], width)


def state_line(entry: CacheEntry, titles: Titles, now: float, width: int) -> Line:
    """A saved state; `now` is in seconds since the epoch."""
    write = fmt.count if entry.n_tokens < 100_000 else fmt.tokens
    cells: list[Line] = [
        (Run(f"{write(entry.start)}-{write(entry.n_tokens)}"),),
        (Run(fmt.short_nbytes(entry.nbytes)),),
        tuple(_mark(tier, [tier in entry.tiers]) for tier in TIERS),
        (Run("pinned" if entry.is_pinned else "", "accent"),),
        *_use(entry, now),
    ]
    return _table_line(Run(owners_text(entry.owners, titles)), cells, width)


def chat_line(chat: CachedChat, titles: Titles, now: float, width: int) -> Line:
    """The saved states of a chat; a small letter for a tier that holds only a part of them."""
    pinned = "pinned" if chat.is_pinned and chat.own else "part" if chat.n_pinned else ""
    cells: list[Line] = [
        (Run(fmt.count(chat.n_tokens)),),
        (Run(fmt.short_nbytes(chat.nbytes)),),
        tuple(_mark(tier, [tier in entry.tiers for entry in chat.entries]) for tier in TIERS),
        (Run(pinned, "accent"),),
        *_use(chat, now),
    ]
    return _table_line(Run(title_of(chat.owner, titles)), cells, width)


def _use(row: CacheEntry | CachedChat, now: float) -> list[Line]:
    last_use = fmt.ago(now - row.used_at) if row.n_uses else fmt.NO_VALUE
    return [(Run(fmt.tokens(row.n_uses)),), (Run(last_use),)]


def _mark(tier: str, holds: Sequence[bool]) -> Run:
    if not any(holds):
        return Run("\N{MIDDLE DOT}", "muted")
    return Run(MARKS[tier] if all(holds) else MARKS[tier].lower(), f"tier-{tier}")


def _table_line(title: Run, cells: Sequence[Line], width: int) -> Line:
    space = max(width - TABLE_WIDTH, MIN_TITLE)
    runs = [*padded(clipped((title,), space), space)]
    for (_, column), cell in zip(COLUMNS, cells, strict=True):
        runs += [Run(" " * (column - sum(len(run.text) for run in cell))), *cell]
    return clipped(tuple(runs), width)


def owners_text(owners: Sequence[str], titles: Titles) -> str:
    """The chat of a state, or how many chats share it: `3 chats: The plan`."""
    first = title_of(owners[0] if owners else NOBODY, titles)
    return first if len(owners) < 2 else f"{len(owners)} chats: {first}"


def title_of(owner: str, titles: Titles) -> str:
    """The title of a chat on one line, without control characters."""
    if owner == NOBODY:
        return "(no chat)"
    title = titles.get(owner) or f"({owner.replace(':', ' ')})"
    return visible(title.replace("\n", " "))


# --- a row in full ---


def detail_lines(
    row: CacheEntry | CachedChat, titles: Titles, now: float, width: int
) -> list[Line]:
    """The facts of a row; `now` is in seconds since the epoch."""
    facts = _state_facts(row, titles) if isinstance(row, CacheEntry) else _chat_facts(row, titles)
    ago = fmt.ago(now - row.used_at)
    last = "just now" if ago == "now" else f"{ago} ago"
    used = f"{fmt.counted(row.n_uses, 'time')}, last {last}" if row.n_uses else "not yet"
    saves = "not measured"
    if row.recompute_s > 0:
        saves = f"{fmt.short_seconds(row.recompute_s)} of prefill (measured)"
    facts += [("used", used), ("saves", saves)]
    lines = [line for label, text in facts for line in field(label, (Run(text),), width)]
    return [clipped(line, width) for line in lines]


def _state_facts(entry: CacheEntry, titles: Titles) -> list[tuple[str, str]]:
    n_own = fmt.count(entry.n_tokens - entry.start)
    pinned = ", pinned" if entry.is_pinned else ""
    owners = [title_of(owner, titles) for owner in entry.owners or (NOBODY,)]
    return [
        ("state", entry.key),
        (
            "tokens",
            f"{n_own} of its own, from {fmt.count(entry.start)} to {fmt.count(entry.n_tokens)}",
        ),
        ("tier", f"{', '.join(entry.tiers)}: {fmt.nbytes(entry.nbytes)}{pinned}"),
        *(("" if index else "chats", owner) for index, owner in enumerate(owners)),
    ]


def _chat_facts(chat: CachedChat, titles: Titles) -> list[tuple[str, str]]:
    tiers = fmt.listed(*((chat.n_by_tier[tier], tier) for tier in TIERS))
    shared = f", {fmt.nbytes(chat.n_shared_bytes)} shared" if chat.n_shared_bytes else ""
    pinned = f", {chat.n_pinned} pinned" if chat.n_pinned else ""
    return [
        ("chat", title_of(chat.owner, titles)),
        ("tokens", f"{fmt.count(chat.n_tokens)} in the longest branch"),
        ("tiers", tiers),
        ("bytes", f"{fmt.nbytes(chat.nbytes)}{shared}"),
        ("states", f"{len(chat.entries)}{pinned}"),
    ]


def log_lines(notes: Sequence[CacheNote], width: int) -> list[Line]:
    """The log, the newest line first."""
    if not notes:
        return [clipped((Run("no events of the cache yet", "muted"),), width)]
    return [
        line
        for clock, sign, text in map(note_line, reversed(notes))
        for line in hanging((clock, sign), (text,), width)
    ]
