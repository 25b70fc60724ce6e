"""`kvchat models`: models on this machine and in the catalogue, cards, and the starter."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app import paths
from app.cli.console import SlowReading, note, print_json, say, tell, tell_over
from app.cli.downloads import favourite, get, remove, where
from app.format import context_size, nbytes
from app.planning import user_speeds
from app.sanitize import one_line
from engine.model.identity import ModelKind
from engine.model.library import MAX_VISITED, ModelEntry, scan

if TYPE_CHECKING:
    from engine.memory.cards import Card
    from engine.model.catalog import CatalogEntry
    from engine.planning.models import ModelOption

JUDGED = ("verdict", "spills", "needed_bytes", "free_bytes", "n_ctx", "speed_bound")
"""What JSON has of a verdict, beside the file's own facts."""
PART_HELP = "PART lists only those whose name, or an alias, contains it."


@click.group(name="models", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the models on this machine, by the names that every command takes.

    \b
    kvchat models get qwen3-8b      download one, after saying whether it fits
    kvchat models rm NAME           delete one; so where, favourite
    kvchat models catalogue qwen3   models that need no file to be planned with
    kvchat models cards "RTX 40"    GPUs and machines that can be planned for
    kvchat models install-starter   fetch a small model to begin with
    """  # noqa: D301  click wants the backspace character itself
    if ctx.invoked_subcommand is None:
        _list(as_json=as_json)


@command.command(name="list", help="List the models on this machine, favourites first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(*, as_json: bool) -> None:
    """List the models on this machine."""
    _list(as_json=as_json)


def _list(*, as_json: bool) -> None:
    from app.config import model_folders
    from app.library import Favourites

    reading = SlowReading()
    cut: list[Path] = []
    entries = scan(
        model_folders(),
        cache_path=paths.header_cache_path(),
        kinds=tuple(ModelKind),
        progress=reading.scanned,
        speeds=user_speeds(),
        cut=cut.append,
    )
    reading.done()
    favourites = Favourites().all()
    entries.sort(key=lambda entry: entry.identity not in favourites)
    for folder in cut:
        note(f"{folder} holds more than the {MAX_VISITED:,} entries that are looked at")
    options = _judged(entries)
    if as_json:
        print_json([_as_json(entry, options.get(entry.path)) for entry in entries])
    elif entries:
        _print_models(entries, options)
    else:
        _print_where_to_put_models()


def _judged(entries: Sequence[ModelEntry]) -> "dict[Path, ModelOption]":
    """The verdict on each model that can be loaded, with the usual context on this machine."""
    from app.planning import user_planner
    from engine.planning.models import fit_context, library_options

    models = [each for each in entries if each.kind is ModelKind.MODEL and not each.problem]
    if not models:
        return {}
    options = library_options(models, [()] * len(models), fit_context(None, user_planner()))
    return {entry.path: option for entry, option in zip(models, options, strict=True)}


@command.command(name="catalogue", help=f"List models that need no file to be planned. {PART_HELP}")
@click.argument("part", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def catalogue(part: str, *, as_json: bool) -> None:
    """List the models that `kvchat plan`, `fit`, `pairs` and `export` know without a file."""
    from engine.model.catalog import DEFAULT_QUANTIZATION, entries
    from engine.model.quantization import QUANTIZATIONS

    found = [entry for entry in entries() if _holds(part, entry.name, entry.aliases)]
    found.sort(key=lambda entry: entry.name)
    if as_json:
        print_json([_catalogue_json(entry) for entry in found])
    elif found:
        _print_table(
            ("name", "parameters", "context", "also known as"),
            [_catalogue_cells(entry) for entry in found],
        )
        quantizations = ", ".join(QUANTIZATIONS)
        tell(
            f"{found[0].name} is {DEFAULT_QUANTIZATION}; after a colon, it can be {quantizations}."
        )
    else:
        tell(f"The catalogue has no model whose name holds {part!r}.")


@command.command(name="cards", help=f"List GPUs and machines that can be planned for. {PART_HELP}")
@click.argument("part", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cards(part: str, *, as_json: bool) -> None:
    """List the names that --card takes."""
    from engine.memory.cards import all_cards

    found = [card for card in all_cards() if _holds(part, card.name, card.aliases)]
    if as_json:
        print_json([asdict(card) for card in found])
    elif found:
        _print_table(
            ("card", "maker", "memory", "GB/s", "also known as"),
            [_card_cells(card) for card in found],
        )
    else:
        tell(f"No card's name holds {part!r}: write its size instead, as `--vram 24GiB`.")


@command.command(name="install-starter")
def install() -> None:
    """Fetch the starter model, SmolLM2-135M-Instruct, 98 MB, and verify its checksum."""
    from engine.model.starter import install_starter

    is_terminal = sys.stderr.isatty()
    install_starter(paths.models_dir(), lambda line: _tell(line, is_terminal=is_terminal))
    if is_terminal:
        tell()


for each in (get, remove, where, favourite):
    command.add_command(each)


def _tell(line: str, *, is_terminal: bool) -> None:
    if is_terminal:
        tell_over(line)
    elif not line.startswith("downloaded"):
        tell(line)


def _print_models(entries: Sequence[ModelEntry], options: "Mapping[Path, ModelOption]") -> None:
    titles = ("name", "kind", "quant", "context", "size", "fits", "tok/s", "folder")
    _print_table(titles, [_cells(entry, options.get(entry.path)) for entry in entries])
    for entry in entries:
        for copy in entry.copies:
            say((f"{copy}: the same model as {entry.path}", "yellow"))
    for entry in entries:
        if entry.problem is not None:
            say((f"{entry.name}: {entry.problem}", "red"))


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from app.console import console, plain_table

    numbers = ("context", "size", "parameters", "memory", "GB/s", "tok/s")
    cells = ([one_line(cell) for cell in row] for row in rows)
    console().print(plain_table(titles, cells, numbers=numbers))


def _holds(part: str, name: str, aliases: Sequence[str]) -> bool:
    wanted = part.casefold()
    return any(wanted in known.casefold() for known in (name, *aliases))


def _catalogue_cells(entry: "CatalogEntry") -> tuple[str, str, str, str]:
    return (
        entry.name,
        f"{entry.n_parameters / 1e9:.3g} B",
        context_size(entry.n_ctx_train),
        ", ".join(entry.aliases) or "-",
    )


def _catalogue_json(entry: "CatalogEntry") -> dict[str, object]:
    return {
        "name": entry.name,
        "aliases": entry.aliases,
        "architecture": entry.architecture,
        "n_parameters": entry.n_parameters,
        "n_ctx_train": entry.n_ctx_train,
        "source": entry.source,
        "checked": entry.checked,
    }


def _card_cells(card: "Card") -> tuple[str, str, str, str, str]:
    return (
        card.name,
        card.vendor,
        nbytes(card.memory_bytes),
        f"{card.bandwidth_gbps:g}",
        ", ".join(card.aliases) or "-",
    )


def _cells(entry: ModelEntry, option: "ModelOption | None") -> tuple[str, ...]:
    from app.cli.plan_output import symbols_for
    from app.render.plan import speed_text
    from app.render.plan_lists import WORDS

    context = "-" if entry.n_ctx_train is None else f"{entry.n_ctx_train:,}"
    verdict = None if option is None else option.verdict
    bound = None if option is None else option.bound
    speed = speed_text(entry.speed, bound).replace(" tok/s", "") or "-"
    if symbols_for(sys.stdout.encoding) != "block":
        speed = speed.replace("\N{LESS-THAN OR EQUAL TO}", "<")
    return (
        entry.name,
        "-" if entry.architecture is None and entry.problem else str(entry.kind),
        "broken" if entry.problem else entry.file_type or "-",
        context,
        f"{entry.nbytes / 2**20:,.0f} MiB",
        "-" if verdict is None else "partly" if option and option.spills else WORDS[verdict],
        speed,
        _short(entry.path.parent),
    )


def _short(folder: Path) -> str:
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _print_where_to_put_models() -> None:
    from app.config import model_folders

    tell("No GGUF model was found in these folders:")
    for folder in model_folders():
        tell(f"  {folder}")
    tell(
        "Put one into any of them, name another with KVCHAT_MODELS, or fetch one:\n"
        "  kvchat models get qwen3-1.7b\n"
        "  kvchat models install-starter"
    )


def _as_json(entry: ModelEntry, option: "ModelOption | None") -> dict[str, object]:
    from engine.planning.as_json import option_json

    of_pairs = ("vocabulary", "reads")
    shown = {name: value for name, value in asdict(entry).items() if name not in of_pairs}
    judged = {} if option is None else option_json(option)
    return {
        **{name: judged.get(name) for name in JUDGED},
        **shown,
        "path": str(entry.path),
        "copies": [str(path) for path in entry.copies],
    }
