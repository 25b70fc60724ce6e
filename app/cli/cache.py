"""`kvchat cache`: states of chats on disk, from which they continue without being read again."""

import math
import time
from collections.abc import Mapping, Sequence

import click
from rich.table import Table

from app import paths
from app.cache import (
    CachedModel,
    cached_models,
    chat_numbers,
    chat_titles,
    chats_of,
    find_snapshot,
    verified,
    with_continuations,
)
from app.cli.options import AGE, Size, json_option
from app.config import load_settings, require_settings
from app.console import Progress, confirm, log_line, print_json, print_line
from app.format import count, counted, local_time, nbytes, nbytes_of
from app.sanitize import one_line
from app.tables import console, plain_table
from engine.cache.segments import Segment
from engine.cache.store import SegmentStore

SIZE = Size(can_be_zero=True)
NO_STATES = "No saved states on disk yet."
MAX_TITLE = 30
N_TITLES = 3
"""Titles that one line names; the rest is counted."""
USUAL_FIELDS = {"LoRA hashes": "none", "rope": "of the model", "sliding window": "as trained"}
HIDDEN_FIELDS = ("format", "model hash")


@click.group(name="cache", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, verify and delete the saved states that chats continue from.

    KEY is a key from `kvchat cache list`, or the beginning of a key. These commands also work while
    kvchat runs; kvchat recomputes deleted states.

    \b
    kvchat cache verify             read and check every state
    kvchat cache prune --older 30d  delete states not used for 30 days
    """  # noqa: D301  click wants the backspace character itself
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command(name="list")
@json_option
def list_(*, as_json: bool = False) -> None:
    """List saved states by model, most recently used first."""
    with _store() as store:
        models = cached_models(store)
    for line in store.take_notes():
        log_line(line)
    titles, budget_bytes = _titles(), load_settings().settings.cache.cold
    if as_json:
        print_json({
            "bytes": sum(model.nbytes for model in models),
            "budget_bytes": budget_bytes,
            "models": [_model_values(model, titles) for model in models],
        })  # fmt: skip
    elif models:
        _print_models(models, titles, budget_bytes)
    else:
        log_line(NO_STATES)


@command.command(name="verify")
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@json_option
@click.pass_context
def verify(ctx: click.Context, keys: tuple[str, ...], *, as_json: bool) -> None:
    """Check states and delete damaged ones; the exit code is 1 if a state was damaged."""
    with _store() as store, Progress() as progress:
        checks = verified(store, _chosen(cached_models(store), keys), progress.show)
    damaged = [check for check in checks if check.problem is not None]
    if as_json:
        print_json({"n_checked": len(checks), "damaged": damaged})
    elif checks:
        for check in damaged:
            print_line((one_line(str(check.problem)), "red"))
        outcome = f"{count(len(damaged))} damaged" if damaged else "none damaged"
        print_line(f"{counted(len(checks), 'state')} checked, {outcome}")
    else:
        log_line(NO_STATES)
    ctx.exit(1 if damaged else 0)


@command.command(name="prune")
@click.option("--older", type=AGE, help="Delete states not used for this long, such as 30d or 12h.")
@click.option(
    "--to",
    "limit",
    type=SIZE,
    help="Delete states until the remaining ones take at most this size, such as 2GiB.",
)
def prune(*, older: float | None, limit: int | None) -> None:
    """Delete the least valuable states until the rest fits the disk budget or the options.

    States of deleted models are deleted first, then states that save little time for their size and
    have not been used for long. Pinned states stay.
    """
    now = time.time()
    budget_bytes = require_settings().cache.cold
    with _store() as store:
        if limit is None:
            limit = 0 if older is not None else budget_bytes
        used = store.nbytes
        used_before = math.inf if older is None else now - older
        gone = store.prune(max(used - limit, 0), now=now, used_before=used_before)
        left = used - sum(entry.nbytes for entry in gone)
    log_line(_removed_text(gone, left))
    if older is None and left > limit:
        log_line("the remaining states are pinned: unpin them with `kvchat cache unpin KEY`")


@command.command(name="clear")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(*, yes: bool) -> None:
    """Delete all saved states, pinned ones included. Chats are not deleted."""
    require_settings()
    with _store() as store:
        entries = [entry for model in cached_models(store) for entry in model.entries]
        if not entries:
            log_line(NO_STATES)
            return
        n_pinned = sum(entry.is_pinned for entry in entries)
        pinned = f", {count(n_pinned)} of them pinned" if n_pinned else ""
        size = nbytes(sum(entry.nbytes for entry in entries))
        log_line(f"{counted(len(entries), 'state')}, {size}{pinned}")
        confirm("Delete all states?", "--yes deletes them", is_sure=yes)
        store.delete([entry.key for entry in entries])
    log_line(_removed_text(entries, 0))


@command.command(name="pin")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def pin(keys: tuple[str, ...]) -> None:
    """Exempt states, and the states that they extend, from eviction."""
    _set_pinned(keys, is_pinned=True)


@command.command(name="unpin")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def unpin(keys: tuple[str, ...]) -> None:
    """Make pinned states subject to eviction again."""
    _set_pinned(keys, is_pinned=False)


@command.command(name="drop")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def drop(keys: tuple[str, ...]) -> None:
    """Delete states and the longer states that extend them."""
    with _store() as store:
        models = cached_models(store)
        of = {model.namespace.key: model.entries for model in models}
        gone = {
            each.key: each
            for entry in _chosen(models, keys)
            for each in with_continuations(of[entry.namespace], entry)
        }
        store.delete(list(gone))
        left = store.nbytes
    log_line(_removed_text(list(gone.values()), left))


def _set_pinned(keys: Sequence[str], *, is_pinned: bool) -> None:
    with _store() as store:
        for entry in _chosen(cached_models(store), keys):
            store.pin(entry.key, is_pinned=is_pinned)
            log_line(f"{entry.key} is {'pinned' if is_pinned else 'no longer pinned'}")


def _store() -> SegmentStore:
    return SegmentStore(paths.snapshots_dir())


def _chosen(models: Sequence[CachedModel], keys: Sequence[str]) -> list[Segment]:
    """The states that were named, each once; all where none is named."""
    if not keys:
        return [entry for model in models for entry in model.entries]
    found = (find_snapshot(models, key) for key in keys)
    return list({entry.key: entry for entry in found}.values())


def _titles() -> dict[int, str]:
    """Titles of the chats by id; empty if there is no readable database."""
    titles, problem = chat_titles(paths.database_path())
    if problem is not None:
        log_line(problem)
    return titles


def _model_values(model: CachedModel, titles: Mapping[int, str]) -> dict[str, object]:
    return {
        "namespace": model.namespace.key,
        "model": model.namespace.model,
        "is_gone": model.namespace.is_orphaned,
        "fields": dict(model.namespace.fields),
        "bytes": model.nbytes,
        "states": [_state_values(entry, titles) for entry in model.entries],
    }


def _print_models(models: Sequence[CachedModel], titles: Mapping[int, str], budget: int) -> None:
    for model in models:
        gone = "  the model file no longer exists, so its states are pruned first"
        warning = gone if model.namespace.is_orphaned else ""
        name, size = one_line(model.name), f"  {nbytes(model.nbytes)}"
        print_line((name, "bold"), size, (warning, "yellow"))
        print_line((_settings_text(model), "dim"))
        console().print(_table(model, titles))
        print_line()
    total = sum(model.nbytes for model in models)
    n_states = sum(len(model.entries) for model in models)
    print_line(f"{counted(n_states, 'state')}, {nbytes_of(total, budget)}")


def _removed_text(gone: Sequence[Segment], left: int) -> str:
    if not gone:
        return f"Nothing to delete; {nbytes(left)} on disk."
    size = nbytes(sum(entry.nbytes for entry in gone))
    return f"Deleted {counted(len(gone), 'state')}, {size}; {nbytes(left)} left on disk."


def _table(model: CachedModel, titles_of: Mapping[int, str]) -> Table:
    titles = ("key", "tokens", "size", "uses", "last used", "pinned", "chats")
    rows = (
        (
            entry.key,
            f"{count(entry.start)} to {count(entry.end)}" if entry.start else count(entry.end),
            nbytes(entry.nbytes),
            count(entry.n_uses),
            _time(entry.used_at),
            "yes" if entry.is_pinned else "",
            _chats_text(entry, titles_of),
        )
        for entry in model.entries
    )
    return plain_table(
        titles, rows, numbers=("tokens", "size", "uses"), folds=False, header_style="dim"
    )


def _chats_text(entry: Segment, titles: Mapping[int, str]) -> str:
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


def _state_values(state: Segment, titles: Mapping[int, str]) -> dict[str, object]:
    return {
        "key": state.key,
        "start": state.start,
        "n_tokens": state.end,
        "bytes": state.nbytes,
        "recompute_s": state.recompute_s,
        "n_uses": state.n_uses,
        "used_at": state.used_at,
        "is_pinned": state.is_pinned,
        "owners": sorted(state.owners),
        "chats": [{"id": number, "title": titles.get(number)} for number in chat_numbers(state)],
    }


def _time(seconds: float) -> str:
    today = local_time(time.time()).split()[0]
    return local_time(seconds).removeprefix(f"{today} ")
