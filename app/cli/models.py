"""`kvchat models`: the models on this machine, and the starter."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from app import locations
from engine.model.kinds import ModelKind
from engine.model.library import ModelEntry, scan


@click.group(name="models", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the models on this machine, by the names that every command takes."""
    if ctx.invoked_subcommand is not None:
        return
    from app.cli.slow_reading import SlowReading

    reading = SlowReading()
    entries = scan(
        locations.model_folders(),
        cache_path=locations.header_cache_path(),
        kinds=tuple(ModelKind),
        progress=reading.scanned,
    )
    reading.done()
    if as_json:
        click.echo(json.dumps([_as_json(entry) for entry in entries], indent=2))
    elif entries:
        _print_table(entries)
    else:
        _print_where_to_put_models()


@command.command(name="install-starter")
def install() -> None:
    """Fetch the starter model, SmolLM2-135M-Instruct, 98 MB, and verify its checksum."""
    from engine.model.starter import install_starter

    is_terminal = sys.stderr.isatty()
    install_starter(locations.models_dir(), lambda line: _tell(line, is_terminal=is_terminal))
    if is_terminal:
        click.echo(err=True)


def _tell(line: str, *, is_terminal: bool) -> None:
    if is_terminal:
        click.echo(f"\r\033[K{line}", nl=False, err=True)
    elif not line.startswith("downloaded"):
        click.echo(line, err=True)


def _print_table(entries: Sequence[ModelEntry]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "kind", "quant", "context", "size", "folder"):
        table.add_column(title, justify="right" if title in ("context", "size") else "left")
        table.columns[-1].overflow = "fold"
    for entry in entries:
        table.add_row(*(Text(cell) for cell in _cells(entry)))
    # A list that goes into a pipe is never cut to the width of a screen.
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    console.print(table)
    for copy, first in _copies(entries):
        console.print(Text(f"{copy.path}: the same model as {first.path}", style="yellow"))
    for entry in entries:
        if entry.problem is not None:
            console.print(Text(f"{entry.name}: {entry.problem}", style="red"))


def _copies(entries: Sequence[ModelEntry]) -> Iterator[tuple[ModelEntry, ModelEntry]]:
    """Give each model that was listed before, and where."""
    first: dict[str, ModelEntry] = {}
    for entry in entries:
        if entry.identity is not None:
            other = first.setdefault(entry.identity, entry)
            if other is not entry:
                yield entry, other


def _cells(entry: ModelEntry) -> tuple[str, str, str, str, str, str]:
    context = "-" if entry.n_ctx_train is None else f"{entry.n_ctx_train:,}"
    return (
        entry.name,
        "-" if entry.architecture is None and entry.problem else str(entry.kind),
        "broken" if entry.problem else entry.file_type or "-",
        context,
        f"{entry.nbytes / 2**20:,.0f} MiB",
        _short(entry.path.parent),
    )


def _short(folder: Path) -> str:
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _print_where_to_put_models() -> None:
    click.echo("No GGUF model was found in these folders:", err=True)
    for folder in locations.model_folders():
        click.echo(f"  {folder}", err=True)
    click.echo(
        "Put one into any of them, name another with KVCHAT_MODELS, or fetch a small one:\n"
        "  kvchat models install-starter",
        err=True,
    )


def _as_json(entry: ModelEntry) -> dict[str, object]:
    return {**asdict(entry), "path": str(entry.path)}
