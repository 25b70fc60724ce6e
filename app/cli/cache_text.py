"""What `kvchat cache` prints."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from app.cache.snapshots import CachedModel, SnapshotCheck, chat_numbers, chats_of
from app.cli.console import say
from app.config import CacheDefaults
from app.format import count, counted, nbytes, nbytes_of
from app.sanitize import one_line
from engine.cache.disk_index import ColdEntry

if TYPE_CHECKING:
    from rich.table import Table

MAX_TITLE = 30
N_TITLES = 3
"""Titles that one line names; the rest is counted."""
USUAL_FIELDS = {"LoRA hashes": "none", "rope": "of the model", "sliding window": "as trained"}
HIDDEN_FIELDS = ("format", "model hash")


def list_values(
    models: Sequence[CachedModel], titles: Mapping[int, str], budget: int
) -> dict[str, object]:
    """Give all that is kept as plain values."""
    return {
        "bytes": sum(model.nbytes for model in models),
        "budget_bytes": budget,
        "models": [
            {
                "namespace": model.namespace.key,
                "model": model.namespace.model,
                "is_gone": model.namespace.is_orphaned,
                "fields": dict(model.namespace.fields),
                "bytes": model.nbytes,
                "states": [_state_values(entry, titles) for entry in model.entries],
            }
            for model in models
        ],
    }


def verdict_values(verdicts: Sequence[SnapshotCheck]) -> dict[str, object]:
    """Give the outcome of a check as plain values."""
    return {
        "n_checked": len(verdicts),
        "damaged": [
            {"key": verdict.key or None, "problem": verdict.problem}
            for verdict in verdicts
            if verdict.problem is not None
        ],
    }


def print_models(models: Sequence[CachedModel], titles: Mapping[int, str], budget: int) -> None:
    """Print a table for each model and its settings."""
    from rich.text import Text

    from app.render.console import console

    screen = console()
    for model in models:
        head = Text(one_line(model.name), style="bold")
        head.append(f"  {nbytes(model.nbytes)}", style="not bold")
        if model.namespace.is_orphaned:
            head.append("  its file is gone, so this is pruned first", style="not bold yellow")
        screen.print(head)
        screen.print(Text(_settings_text(model), style="dim"))
        screen.print(_table(model, titles))
        screen.print()
    total = sum(model.nbytes for model in models)
    n_states = sum(len(model.entries) for model in models)
    screen.print(f"{counted(n_states, 'state')}, {nbytes_of(total, budget)}")


def print_verdicts(verdicts: Sequence[SnapshotCheck]) -> None:
    """Print how many states were checked, and each that was damaged."""
    problems = [verdict.problem for verdict in verdicts if verdict.problem is not None]
    for problem in problems:
        say((one_line(problem), "red"))
    outcome = f"{count(len(problems))} damaged" if problems else "all whole"
    say(f"{counted(len(verdicts), 'state')} checked, {outcome}")


def budget_lines(settings: CacheDefaults, used: int) -> Iterator[str]:
    """Give the budgets and what is used of that of the disk."""
    if not settings.enabled:
        yield "nothing is kept: enabled = false under [cache] in the settings"
    yield f"disk    {nbytes_of(used, settings.cold)}"
    yield f"memory  {nbytes(settings.warm)}, and {nbytes(settings.reserve)} stay free for others"
    if used > settings.cold:
        yield "over the budget: `kvchat cache prune` makes it fit"


def counted_text(entries: Sequence[ColdEntry]) -> str:
    """Say how many states there are and what they take."""
    size = nbytes(sum(entry.file_bytes for entry in entries))
    n_pinned = sum(entry.state.is_pinned for entry in entries)
    pinned = f", {count(n_pinned)} of them pinned" if n_pinned else ""
    return f"{counted(len(entries), 'state')}, {size}{pinned}"


def removed_text(gone: Sequence[ColdEntry], left: int) -> str:
    """Say what was deleted and how much is left."""
    if not gone:
        return f"Nothing was deleted: {nbytes(left)} are kept."
    size = nbytes(sum(entry.file_bytes for entry in gone))
    return f"Deleted {counted(len(gone), 'state')}, {size}: {nbytes(left)} are kept."


def _table(model: CachedModel, titles: Mapping[int, str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("key", "tokens", "size", "uses", "last used", "pinned", "chats"):
        is_number = title in ("tokens", "size", "uses")
        table.add_column(title, justify="right" if is_number else "left", no_wrap=True)
    table.columns[-1].overflow = "ellipsis"
    for entry in model.entries:
        state = entry.state
        cells = (
            state.key, _tokens(entry), nbytes(entry.file_bytes), count(state.n_uses),
            _time(state.used_at), "yes" if state.is_pinned else "", _chats_text(entry, titles),
        )  # fmt: skip
        table.add_row(*map(Text, cells))
    return table


def _tokens(entry: ColdEntry) -> str:
    start, end = entry.state.start, entry.state.end
    return f"{count(start)} to {count(end)}" if start else count(end)


def _chats_text(entry: ColdEntry, titles: Mapping[int, str]) -> str:
    chats = [one_line(title)[:MAX_TITLE] for title in chats_of(entry, titles)]
    if len(chats) > N_TITLES:
        return f"{', '.join(chats[:N_TITLES])} and {count(len(chats) - N_TITLES)} more"
    return ", ".join(chats) or "-"


def _settings_text(model: CachedModel) -> str:
    shown = (
        f"{name} {value}"
        for name, value in model.namespace.fields
        if name not in HIDDEN_FIELDS and USUAL_FIELDS.get(name) != value
    )
    return ", ".join(map(one_line, shown))


def _state_values(entry: ColdEntry, titles: Mapping[int, str]) -> dict[str, object]:
    state = entry.state
    return {
        "key": state.key,
        "start": state.start,
        "n_tokens": state.end,
        "bytes": entry.file_bytes,
        "state_bytes": state.nbytes,
        "recompute_s": state.recompute_s,
        "n_uses": state.n_uses,
        "used_at": state.used_at,
        "is_pinned": state.is_pinned,
        "owners": sorted(state.owners),
        "chats": [{"id": number, "title": titles.get(number)} for number in chat_numbers(entry)],
    }


def _time(seconds: float) -> str:
    now = datetime.fromtimestamp(time.time()).astimezone()
    at = datetime.fromtimestamp(seconds).astimezone()
    return at.strftime("%H:%M" if at.date() == now.date() else "%Y-%m-%d %H:%M")
