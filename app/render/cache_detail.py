"""One kept state or chat in full, and the cache's log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.chat.kept_chats import NOBODY, KeptChat
from app.render import format as fmt
from app.render.cache_bars import LABEL_WIDTH, TIERS
from app.render.cache_counts import hanging, note_lines
from app.render.cache_screen import Titles, owners_text, spared_text, title_of
from app.render.gauges import GraphSymbols, bar
from app.render.lines import Line, Run, clipped
from engine.cache.report import CacheEntry, CacheNote

_COUNT_WIDTH = 9
_STATE = re.compile(r"\bState ([0-9a-f]{16})\b")

Owners = Mapping[str, Sequence[str]]
"""Owners of a state by its key."""


def state_detail(entry: CacheEntry, titles: Titles, width: int, now: float) -> list[Line]:
    """What is known of one kept state.

    Args:
        entry: The state.
        titles: Titles of the chats by owner.
        width: Cells of a line.
        now: Seconds since the epoch.
    """
    own = fmt.counted(entry.n_tokens - entry.start, "token")
    span = f"{fmt.count(entry.start)} to {fmt.count(entry.n_tokens)}, {own} of its own"
    lines = [
        *hanging("state", (Run(entry.key, "strong"),), width),
        *hanging("tokens", (Run(span),), width),
        *hanging("lies", _lies(entry), width),
        *hanging("used", (Run(_used(entry.n_uses, now - entry.used_at)),), width),
        *hanging("spares", (Run(_spares(entry.recompute_s)),), width),
    ]
    for place, owner in enumerate(entry.owners or (NOBODY,)):
        lines += hanging("" if place else "chats", (Run(title_of(owner, titles)),), width)
    return [clipped(line, width) for line in lines]


def chat_detail(
    chat: KeptChat, titles: Titles, width: int, now: float, symbols: GraphSymbols
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
    shared = f", {fmt.nbytes(chat.n_shared_bytes)} of them shared" if chat.n_shared_bytes else ""
    lines = [
        *hanging("chat", (Run(title_of(chat.owner, titles), "strong"),), width),
        *hanging("tokens", (Run(f"{fmt.count(chat.n_tokens)} in its longest line"),), width),
        *(_tier(chat, place, width, symbols) for place in range(len(TIERS))),
        *hanging("bytes", (Run(f"{fmt.nbytes(chat.nbytes)}{shared}"),), width),
        *hanging("states", (Run(states),), width),
        *_pinned(chat, titles, width),
        *hanging("used", (Run(_used(chat.n_uses, now - chat.used_at)),), width),
        *hanging("spares", (Run(_spares(chat.recompute_s)),), width),
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
        return [clipped((Run("nothing happened yet", "muted"),), width)]
    return [
        line
        for note in reversed(notes)
        for line in note_lines(replace(note, text=_named(note.text, owners, titles)), width)
    ]


def _named(text: str, owners: Owners, titles: Titles) -> str:
    """A line of the log with the titles of chats in the place of the keys of states."""

    def named(match: re.Match[str]) -> str:
        of = owners.get(match[1])
        return f"A state of “{owners_text(of, titles)}”" if of else match[0]

    return _STATE.sub(named, text)


def _pinned(chat: KeptChat, titles: Titles, width: int) -> list[Line]:
    """What of a chat is pinned, and with which chats it shares that."""
    states = [entry for entry in chat.entries if entry.is_pinned]
    if not states:
        return []
    others = sorted({owner for state in states for owner in state.owners} - {chat.owner})
    said = "all of it" if chat.is_pinned else f"{len(states)} of {len(chat.entries)} states"
    if others:
        said += f", together with “{owners_text(others, titles)}”"
    return hanging("pinned", (Run(said, "accent"),), width)


def _tier(chat: KeptChat, place: int, width: int, symbols: GraphSymbols) -> Line:
    tier = TIERS[place]
    n_tokens = chat.n_by_tier[tier]
    drawn = bar(n_tokens / chat.n_tokens, max(width - LABEL_WIDTH - _COUNT_WIDTH, 1), symbols)
    coloured = (
        Run(run.text, f"tier-{tier}" if run.style == "bar-used" else run.style) for run in drawn
    )
    count = Run(f"{fmt.count(n_tokens):>{_COUNT_WIDTH}}")
    return (Run(f"{tier:<{LABEL_WIDTH}}", f"tier-{tier}"), *coloured, count)


def _lies(entry: CacheEntry) -> Line:
    runs: list[Run] = []
    for tier in entry.tiers:
        runs += [Run(", ")] if runs else []
        runs.append(Run(tier, f"tier-{tier}"))
    pinned = Run(", pinned" if entry.is_pinned else "", "accent")
    return (*runs, Run(f": {fmt.nbytes(entry.nbytes)}"), pinned)


def _used(n_uses: int, elapsed_s: float) -> str:
    ago = fmt.ago(elapsed_s)
    last = "just now" if ago == "now" else f"{ago} ago"
    return f"{fmt.counted(n_uses, 'time')}, last {last}" if n_uses else f"not yet, saved {last}"


def _spares(recompute_s: float) -> str:
    return f"{spared_text(recompute_s)} of computing" if recompute_s > 0 else "not measured"
