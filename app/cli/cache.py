"""`kvchat cache`: what is kept on disk of chats, so that they go on without being read again."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from app import paths
from app.cli.amounts import Age, Size, spelled
from app.cli.console import print_json, say, tell, tell_over

if TYPE_CHECKING:
    from app.cache.snapshots import CachedModel
    from engine.cache.disk_index import ColdEntry
    from engine.cache.snapshot_folder import ColdFolder

SIZE = Size(can_be_zero=True)
NOTHING_KEPT = "Nothing is kept on disk yet."
KEY_HELP = "KEY is a key from `kvchat cache list`, or the beginning of one."


@click.group(name="cache", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, verify, prune and clear the states that chats go on from, and set their budget.

    KEY is a key from `kvchat cache list`, or the beginning of one. All of this works while kvchat
    is open: what is gone is computed again there.

    \b
    kvchat cache verify             read everything and check it
    kvchat cache prune --older 30d  what was not used for 30 days
    kvchat cache budget 4GiB        most bytes on disk, from the next start on
    """  # noqa: D301  click wants the backspace character itself
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(*, as_json: bool = False) -> None:
    """List what is kept, by model, those used last first."""
    from app.cli import cache_text

    with _folder() as folder:
        models = _models(folder)
    for line in folder.take_damaged():
        tell(line)
    if as_json:
        print_json(cache_text.list_values(models, _titles(), _disk_budget()))
    elif models:
        cache_text.print_models(models, _titles(), _disk_budget())
    else:
        tell(NOTHING_KEPT)


@command.command(name="verify", help=f"Read states whole and check them, all or some. {KEY_HELP}")
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(ctx: click.Context, keys: tuple[str, ...], *, as_json: bool) -> None:
    """Read states whole and check them; damaged ones are deleted, and the exit code is 1 then."""
    from app.cache.snapshots import verified
    from app.cli import cache_text

    with _folder() as folder:
        entries = _chosen(_models(folder), keys)
        verdicts = verified(folder, entries, tell=_progress)
    if as_json:
        print_json(cache_text.verdict_values(verdicts))
    elif verdicts:
        cache_text.print_verdicts(verdicts)
    else:
        tell(NOTHING_KEPT)
    ctx.exit(0 if all(verdict.problem is None for verdict in verdicts) else 1)


@command.command(name="prune")
@click.option("--older", type=Age(), help="What was not used for this long, such as 30d or 12h.")
@click.option(
    "--to",
    "limit",
    type=SIZE,
    help="Until no more is left than this, such as 2GiB.",
)
def prune(*, older: float | None, limit: int | None) -> None:
    """Delete what is worth least, to the budget of the settings or as far as the options say.

    The states of models that are gone leave first, then those that spare least time for their
    bytes and were not used for long; pinned ones stay.
    """
    from app.cli import cache_text
    from app.config import require_settings
    from engine.cache import snapshot_store

    now = time.time()
    budget_bytes = require_settings().cache.cold
    with _folder() as folder:
        if limit is None:
            limit = 0 if older is not None else budget_bytes
        nbytes = sum(entry.file_bytes for entry in folder.all_entries())
        gone = snapshot_store.prune(
            folder,
            max(nbytes - limit, 0),
            now=now,
            older_than=math.inf if older is None else now - older,
        )
        left = nbytes - sum(entry.file_bytes for entry in gone)
    tell(cache_text.removed_text(gone, left))
    if older is None and left > limit:
        tell("the rest is pinned: `kvchat cache unpin KEY` lets it go")


@command.command(name="budget")
@click.argument("disk", metavar="[SIZE]", type=SIZE, required=False)
@click.option("--warm", type=SIZE, help="Main memory for states, such as 1GiB.")
def budget(disk: int | None, warm: int | None) -> None:
    """Show the budgets, or set that of the disk to SIZE; 0 keeps nothing there."""
    from app.cli import cache_text
    from app.config import require_settings, save_setting

    require_settings()
    for key, nbytes in (("cold", disk), ("warm", warm)):
        if nbytes is not None:
            save_setting("cache", key, spelled(nbytes))
    settings = require_settings().cache
    with _folder() as folder:
        used = sum(entry.file_bytes for entry in folder.all_entries())
    for line in cache_text.budget_lines(settings, used):
        say(line)
    if (disk, warm) != (None, None):
        tell("a kvchat that is open takes this at its next start")


@command.command(name="clear")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def clear(ctx: click.Context, *, yes: bool) -> None:
    """Delete everything that is kept on disk, pinned states too; no chat is lost by it."""
    from app.cli import cache_text
    from app.config import require_settings

    require_settings()
    with _folder() as folder:
        entries = [entry for model in _models(folder) for entry in model.entries]
        if not entries:
            tell("Nothing is kept on disk.")
            return
        tell(cache_text.counted_text(entries))
        if not yes and not click.confirm("Delete all of it?", err=True):
            tell("Nothing was deleted.")
            ctx.exit(1)
        _delete(folder, entries)
    tell(cache_text.removed_text(entries, 0))


@command.command(name="pin", help=f"Keep states whatever the budget says. {KEY_HELP}")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def pin(keys: tuple[str, ...]) -> None:
    """Keep states whatever the budget says, with all that they continue."""
    _set_pinned(keys, is_pinned=True)


@command.command(name="unpin", help=f"Let pinned states go when room is needed. {KEY_HELP}")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def unpin(keys: tuple[str, ...]) -> None:
    """Let pinned states go when room is needed."""
    _set_pinned(keys, is_pinned=False)


@command.command(name="drop", help=f"Delete states with what continues them. {KEY_HELP}")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def drop(keys: tuple[str, ...]) -> None:
    """Delete states with what continues them."""
    from app.cache.snapshots import with_continuations
    from app.cli import cache_text

    with _folder() as folder:
        models = _models(folder)
        of = {model.namespace.key: model.entries for model in models}
        gone = {
            each.state.key: each
            for entry in _chosen(models, keys)
            for each in with_continuations(of[entry.namespace], entry)
        }
        _delete(folder, list(gone.values()))
        left = sum(entry.file_bytes for entry in folder.all_entries())
    tell(cache_text.removed_text(list(gone.values()), left))


def _set_pinned(keys: Sequence[str], *, is_pinned: bool) -> None:
    with _folder() as folder:
        for entry in _chosen(_models(folder), keys):
            folder.pin(entry.namespace, entry.state.key, is_pinned=is_pinned)
            tell(f"{entry.state.key} is {'pinned' if is_pinned else 'no longer pinned'}")


def _delete(folder: "ColdFolder", entries: "Sequence[ColdEntry]") -> None:
    for entry in entries:
        folder.delete(entry.namespace, entry.state.key)
    for namespace in {entry.namespace for entry in entries}:
        folder.forget_empty(namespace)


@contextmanager
def _folder() -> "Iterator[ColdFolder]":
    from engine.cache.snapshot_folder import ColdFolder

    with ColdFolder(paths.snapshots_dir()) as folder:
        yield folder


def _models(folder: "ColdFolder") -> "list[CachedModel]":
    from app.cache.snapshots import cached_models

    return cached_models(folder)


def _chosen(models: "Sequence[CachedModel]", keys: Sequence[str]) -> "list[ColdEntry]":
    """Give the states that are meant, each once; all where none is named."""
    from app.cache.snapshots import find_snapshot

    if not keys:
        return [entry for model in models for entry in model.entries]
    found = (find_snapshot(models, key) for key in keys)
    return list({entry.state.key: entry for entry in found}.values())


def _titles() -> dict[int, str]:
    """Give the titles of the chats, none where there is no database yet or it cannot be read."""
    from app.cache.cached_chats import chat_titles

    titles, problem = chat_titles(paths.database_path())
    if problem is not None:
        tell(problem)
    return titles


def _disk_budget() -> int:
    from app.config import load_settings

    return load_settings().settings.cache.cold


def _progress(n_done: int, n_all: int) -> None:
    if sys.stderr.isatty():
        tell_over("" if n_done == n_all else f"{n_done:,} of {n_all:,} states")
