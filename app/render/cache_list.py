"""The list of kept states, and all that is known of one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app import format as fmt
from app.cache import NOBODY, CachedChat
from app.chat.snapshot import CockpitSnapshot, Phase
from app.render.cache import TIERS, note_lines, tier_bar, tier_label
from app.render.charts import GraphSymbols
from app.render.lines import LABEL_WIDTH, Line, Run, clipped, field, padded
from app.sanitize import visible
from engine.cache.report import CacheEntry, CacheNote, TierName

Titles = Mapping[str, str]
"""Titles of chats by owner, such as `chat:12`."""

MIN_TITLE = 12
_COLUMNS = (
    ("uses", 5), ("saves", 9), ("last use", 10), ("bytes", 6), ("pinned", 8), ("where", 6),
    ("tokens", 12),
)  # fmt: skip
"""Columns after the title, those first that go first where there is no room."""
_ORDER = ("tokens", "bytes", "where", "pinned", "uses", "last use", "saves")
_MARKS = {"hot": "H", "warm": "W", "cold": "C"}
_ABSENT = "\N{MIDDLE DOT}"

_COUNT_WIDTH = 9
_STATE = re.compile(r"\bState ([0-9a-f]{16})\b")
Owners = Mapping[str, Sequence[str]]
"""Owners of a state by its key."""


def title_line(snapshot: CockpitSnapshot, n_chats: int, *, is_by_chat: bool) -> Line:
    """What is listed, and of which model."""
    runs = [Run(" saved states", "strong")]
    report = snapshot.tiers
    if report is None:
        return tuple(runs)
    n_states = len(report.entries)
    name = visible(snapshot.model_name.replace("\n", " "))
    how = "by chat" if is_by_chat else "one by one"
    said = f"  {how} · {fmt.counted(n_states, 'state')} of {fmt.counted(n_chats, 'chat')}"
    n_all = max((tier.n_entries for tier in report.tiers if tier.name != "hot"), default=0)
    if n_all > n_states:
        said += f", the most recently used of {fmt.count(n_all)} states"
    return (*runs, Run(said), Run(f" · {name}", "muted"))


def empty_text(snapshot: CockpitSnapshot) -> str:
    """Why the table is empty, and what fills it."""
    if snapshot.phase in (Phase.EMPTY, Phase.LOADING, Phase.STOPPED):
        return "No model is loaded: load a model to list its saved states."
    if snapshot.server:
        return "The server manages its own cache; the KV cache panel shows its figures."
    if snapshot.tiers is None:
        return "The cache has not reported its states yet."
    budgets = [tier.budget_bytes for tier in snapshot.tiers.tiers if tier.name != "hot"]
    if not any(budgets):
        return "No states are saved: the cache is turned off in the settings, or is still opening."
    return "No saved states of this model yet: kvchat saves a state after each reply."


def table_head(width: int) -> Line:
    """Names of the columns."""
    return _table_line(
        Run("chat", "muted"), {name: Run(name, "muted") for name, _ in _COLUMNS}, width
    )


def state_line(entry: CacheEntry, titles: Titles, width: int, now: float) -> Line:
    """One kept state: whose it is, which stretch it holds, where it lies.

    Args:
        entry: The state.
        titles: Titles of the chats.
        width: Cells of the line.
        now: Seconds since the epoch.
    """
    cells = {
        "tokens": Run(_span(entry)),
        "bytes": Run(fmt.short_nbytes(entry.nbytes)),
        "pinned": Run("pinned" if entry.is_pinned else "", "accent"),
        "uses": Run(fmt.tokens(entry.n_uses)),
        "last use": Run(_last_use(entry.n_uses, now - entry.used_at)),
        "saves": Run(spared_text(entry.recompute_s)),
    }
    where = [Run(_MARKS[t], f"tier-{t}") if t in entry.tiers else _absent() for t in TIERS]
    return _table_line(Run(owners_text(entry.owners, titles)), cells, width, where)


def chat_line(chat: CachedChat, titles: Titles, width: int, now: float) -> Line:
    """One chat: its longest kept line, and where all of it lies.

    A capital stands for a tier that holds all of it, a small letter for one that holds a part.
    """
    cells = {
        "tokens": Run(fmt.count(chat.n_tokens)),
        "bytes": Run(fmt.short_nbytes(chat.nbytes)),
        "pinned": Run(_pinned(chat), "accent"),
        "uses": Run(fmt.tokens(chat.n_uses)),
        "last use": Run(_last_use(chat.n_uses, now - chat.used_at)),
        "saves": Run(spared_text(chat.recompute_s)),
    }
    return _table_line(
        Run(title_of(chat.owner, titles)), cells, width, [_where(chat, tier) for tier in TIERS]
    )


def _pinned(chat: CachedChat) -> str:
    """`part` also where nothing but what it shares with another chat is pinned."""
    if not chat.n_pinned:
        return ""
    return "pinned" if chat.is_pinned and chat.own else "part"


def owners_text(owners: Sequence[str], titles: Titles) -> str:
    """Whose a state is: `The plan`, `3 chats: The plan`."""
    first = title_of(owners[0] if owners else NOBODY, titles)
    return first if len(owners) < 2 else f"{len(owners)} chats: {first}"


def title_of(owner: str, titles: Titles) -> str:
    """The title of a chat, on one line and harmless."""
    if owner == NOBODY:
        return "(no chat)"
    unknown = f"({owner.replace(':', ' ')})"
    return visible(titles.get(owner, unknown).replace("\n", " "))


def spared_text(recompute_s: float) -> str:
    """Time that a state spares; a dash where it was not measured."""
    return fmt.short_seconds(recompute_s) if recompute_s > 0 else fmt.NO_VALUE


def _span(entry: CacheEntry) -> str:
    """First token and end: `300-1,104`, `99.9k-131k`."""
    ends = (entry.start, entry.n_tokens)
    write = fmt.count if entry.n_tokens < 100_000 else fmt.tokens
    return "-".join(map(write, ends))


def _where(chat: CachedChat, tier: TierName) -> Run:
    holding = [tier in entry.tiers for entry in chat.entries]
    if not any(holding):
        return _absent()
    mark = _MARKS[tier]
    return Run(mark if all(holding) else mark.lower(), f"tier-{tier}")


def _absent() -> Run:
    return Run(_ABSENT, "muted")


def _table_line(
    title: Run, cells: Mapping[str, Run], width: int, where: Sequence[Run] | None = None
) -> Line:
    """The title, and columns at the right as far as there is room for them."""
    widths = dict(_COLUMNS)
    for name, _ in _COLUMNS:
        if width - sum(widths.values()) >= MIN_TITLE:
            break
        del widths[name]
    room = max(width - sum(widths.values()), 1)
    runs = list(padded(clipped((title,), room), room))
    for name in _ORDER:
        if name not in widths:
            continue
        if name == "where" and where is not None:
            runs += [Run(" " * (widths[name] - len(where))), *where]
        else:
            cell = cells[name]
            runs.append(Run(f"{cell.text:>{widths[name]}}", cell.style))
    return clipped(tuple(runs), width)


def state_detail(entry: CacheEntry, titles: Titles, width: int, now: float) -> list[Line]:
    """What is known of one kept state.

    Args:
        entry: The state.
        titles: Titles of the chats by owner.
        width: Cells of a line.
        now: Seconds since the epoch.
    """
    own = fmt.counted(entry.n_tokens - entry.start, "token")
    span = f"{fmt.count(entry.start)} to {fmt.count(entry.n_tokens)}, {own} new"
    lines = [
        *field("state", (Run(entry.key, "strong"),), width),
        *field("tokens", (Run(span),), width),
        *field("tier", _lies(entry), width),
        *field("used", (Run(_used(entry.n_uses, now - entry.used_at)),), width),
        *field("saves", (Run(_spares(entry.recompute_s)),), width),
    ]
    for index, owner in enumerate(entry.owners or (NOBODY,)):
        lines += field("" if index else "chats", (Run(title_of(owner, titles)),), width)
    return [clipped(line, width) for line in lines]


def chat_detail(
    chat: CachedChat, titles: Titles, width: int, now: float, symbols: GraphSymbols
) -> list[Line]:
    """Where one chat lies, tier by tier, and what that costs and spares.

    Args:
        chat: The chat.
        titles: Titles of the chats by owner.
        width: Cells of a line.
        now: Seconds since the epoch.
        symbols: Which characters to draw with.
    """
    states = fmt.counted(len(chat.entries), "state")
    shared = ""
    if chat.n_shared_bytes:
        is_all = chat.n_shared_bytes == chat.nbytes
        part = "all" if is_all else fmt.nbytes(chat.n_shared_bytes)
        shared = f", {part} shared with other chats"
    lines = [
        *field("chat", (Run(title_of(chat.owner, titles), "strong"),), width),
        *field("tokens", (Run(f"{fmt.count(chat.n_tokens)} in the longest branch"),), width),
        *(_tier(chat, index, width, symbols) for index in range(len(TIERS))),
        *field("bytes", (Run(f"{fmt.nbytes(chat.nbytes)}{shared}"),), width),
        *field("states", (Run(states),), width),
        *_pinned_with(chat, titles, width),
        *field("used", (Run(_used(chat.n_uses, now - chat.used_at)),), width),
        *field("saves", (Run(_spares(chat.recompute_s)),), width),
    ]
    return [clipped(line, width) for line in lines]


def log_lines(notes: Sequence[CacheNote], width: int, owners: Owners, titles: Titles) -> list[Line]:
    """The log, newest first.

    Args:
        notes: The log.
        width: Cells of a line.
        owners: The owners of states by key: a state is called by its chats where they are known.
        titles: Titles of the chats by owner.
    """
    if not notes:
        return [clipped((Run("nothing logged yet", "muted"),), width)]
    return [
        line
        for note in reversed(notes)
        for line in note_lines(replace(note, text=_named(note.text, owners, titles)), width)
    ]


def _named(text: str, owners: Owners, titles: Titles) -> str:
    """A line of the log with titles of chats instead of keys of states."""

    def named(match: re.Match[str]) -> str:
        of = owners.get(match[1])
        return f"A state of “{owners_text(of, titles)}”" if of else match[0]

    return _STATE.sub(named, text)


def _pinned_with(chat: CachedChat, titles: Titles, width: int) -> list[Line]:
    """What of a chat is pinned, and with which chats it shares that."""
    states = [entry for entry in chat.entries if entry.is_pinned]
    if not states:
        return []
    others = sorted({owner for state in states for owner in state.owners} - {chat.owner})
    said = "all of it" if chat.is_pinned else f"{len(states)} of {len(chat.entries)} states"
    if others:
        said += f", shared with “{owners_text(others, titles)}”"
    return field("pinned", (Run(said, "accent"),), width)


def _tier(chat: CachedChat, index: int, width: int, symbols: GraphSymbols) -> Line:
    tier = TIERS[index]
    n_tokens = chat.n_by_tier[tier]
    room = max(width - LABEL_WIDTH - _COUNT_WIDTH, 1)
    count = Run(f"{fmt.count(n_tokens):>{_COUNT_WIDTH}}")
    return (tier_label(tier), *tier_bar(tier, n_tokens / chat.n_tokens, room, symbols), count)


def _lies(entry: CacheEntry) -> Line:
    runs: list[Run] = []
    for tier in entry.tiers:
        runs += [Run(", ")] if runs else []
        runs.append(Run(tier, f"tier-{tier}"))
    pinned = Run(", pinned" if entry.is_pinned else "", "accent")
    return (*runs, Run(f": {fmt.nbytes(entry.nbytes)}"), pinned)


def _last_use(n_uses: int, elapsed_s: float) -> str:
    return fmt.ago(elapsed_s) if n_uses else fmt.NO_VALUE


def _used(n_uses: int, elapsed_s: float) -> str:
    ago = fmt.ago(elapsed_s)
    last = "just now" if ago == "now" else f"{ago} ago"
    return f"{fmt.counted(n_uses, 'time')}, last {last}" if n_uses else f"not yet, saved {last}"


def _spares(recompute_s: float) -> str:
    if recompute_s <= 0:
        return "not measured"
    return f"{spared_text(recompute_s)} of prefill (measured)"
