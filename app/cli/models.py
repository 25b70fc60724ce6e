"""`kvchat models`: models of this machine, the hub, the catalogue, cards, and the starter."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from app import format as fmt
from app import paths
from app.cli.options import json_option
from app.cli.printing import output_symbols
from app.config import model_folders
from app.console import Progress, confirm, log_line, note, print_json, print_line
from app.library import (
    HubOffer,
    favourites,
    mark_favourite,
    read_offer,
    removal_of,
    repository_of,
    verdict_text,
)
from app.planning import user_planner, user_speeds
from app.render.charts import GraphSymbols
from app.render.plan import speed_text
from app.render.plan_lists import SPILLS, WORDS
from app.sanitize import one_line
from app.tables import console, plain_table
from engine.errors import ModelFileError
from engine.memory.cards import all_cards
from engine.model.catalog import DEFAULT_QUANTIZATION, QUANTIZATIONS, entries
from engine.model.hub import HubModel, download, parse_hub_name, repository_projectors
from engine.model.identity import ModelKind, is_projector_name, model_identity
from engine.model.library import MAX_VISITED, ModelEntry, find_model, scan
from engine.model.starter import install_starter
from engine.planning.models import ModelOption, fit_context, library_options
from engine.planning.report import option_json

VERDICT = ("verdict", "spills", "needed_bytes", "free_bytes", "n_ctx", "speed_bound")
"""Fields of a verdict in the JSON output."""


@click.group(name="models", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the models on this machine; other commands accept the listed names.

    \b
    kvchat models get qwen3-8b      report whether a model fits, and download it
    kvchat models rm NAME           delete a model
    kvchat models catalogue qwen3   models that can be planned without a file
    kvchat models cards "RTX 40"    GPUs and machines for plans
    kvchat models install-starter   download the starter model
    """  # noqa: D301  click wants the backspace character itself
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models, as_json=as_json)


@command.command(name="list")
@json_option
def list_models(*, as_json: bool) -> None:
    """List the models on this machine, favourites first."""
    cut: list[Path] = []
    with Progress() as reading:
        entries = scan(
            model_folders(),
            cache_path=paths.header_cache_path(),
            kinds=tuple(ModelKind),
            progress=reading.scanned,
            speeds=user_speeds(),
            cut=cut.append,
        )
    marked = favourites()
    entries.sort(key=lambda entry: entry.identity not in marked)
    for folder in cut:
        note(f"only the first {MAX_VISITED:,} entries of {folder} were searched")
    options = _options(entries)
    if as_json:
        print_json([_as_json(entry, options.get(entry.path)) for entry in entries])
    elif entries:
        _print_models(entries, options)
    else:
        _print_where_to_put_models()


def _options(entries: Sequence[ModelEntry]) -> dict[Path, ModelOption]:
    """The verdict for each model that can be loaded, with the usual context on this machine."""
    models = [each for each in entries if each.kind is ModelKind.MODEL and not each.problem]
    if not models:
        return {}
    options = library_options(models, [()] * len(models), fit_context(None, user_planner()))
    return {entry.path: option for entry, option in zip(models, options, strict=True)}


@command.command(name="catalogue")
@click.argument("part", required=False, default="")
@json_option
def catalogue(part: str, *, as_json: bool) -> None:
    """List models that kvchat can plan without downloading a file.

    With PART, list only entries whose name or alias contains PART.
    """
    found = [entry for entry in entries() if _holds(part, entry.name, entry.aliases)]
    found.sort(key=lambda entry: entry.name)
    if as_json:
        names = (
            "name", "aliases", "architecture", "n_parameters", "n_ctx_train", "source", "checked",
        )  # fmt: skip
        print_json([{name: getattr(entry, name) for name in names} for entry in found])
    elif found:
        _print_table(
            ("name", "parameters", "context", "also known as"),
            [
                (
                    entry.name,
                    f"{entry.n_parameters / 1e9:.3g} B",
                    fmt.context_size(entry.n_ctx_train),
                    ", ".join(entry.aliases) or "-",
                )
                for entry in found
            ],
        )
        quantizations = ", ".join(QUANTIZATIONS)
        log_line(
            f"Plans use {DEFAULT_QUANTIZATION}; for another quantisation, append a colon and one "
            f"of {quantizations} to the name."
        )
    else:
        log_line(f"No model name in the catalogue contains {part!r}.")


@command.command(name="cards")
@click.argument("part", required=False, default="")
@json_option
def cards(part: str, *, as_json: bool) -> None:
    """List GPUs and machines for plans, which --card accepts.

    With PART, list only entries whose name or alias contains PART.
    """
    found = [card for card in all_cards() if _holds(part, card.name, card.aliases)]
    if as_json:
        print_json(found)
    elif found:
        _print_table(
            ("card", "maker", "memory", "GB/s", "also known as"),
            [
                (
                    card.name,
                    card.vendor,
                    fmt.nbytes(card.memory_bytes),
                    f"{card.bandwidth_gbps:g}",
                    ", ".join(card.aliases) or "-",
                )
                for card in found
            ],
        )
    else:
        log_line(
            f"No GPU or machine name contains {part!r}: use a memory size instead, such as "
            "`--vram 24GiB`."
        )


@command.command(name="install-starter")
def install() -> None:
    """Download the starter model, SmolLM2-135M-Instruct (98 MB), and verify its checksum."""
    with Progress() as progress:
        path = install_starter(paths.models_dir(), progress.show)
    print_line(str(path))


@command.command(name="get")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Target folder. [kvchat's models folder]",
)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
def get(name: str, *, folder: Path | None, is_sure: bool) -> None:
    """Report whether a model fits, then download it from the Hugging Face hub.

    NAME is a catalogue name or hf:owner/repository, optionally with a quantisation such as :Q5_K_M,
    or hf:owner/repository/file.gguf. Default quantisation: Q4_K_M, else the largest that fits. An
    interrupted download resumes.

    \b
    kvchat models get qwen3-8b
    kvchat models get hf:owner/repository:Q5_K_M
    """  # noqa: D301  click wants the backspace character itself
    with Progress().hub():
        projector = _projector(name)
    if projector is not None:
        _download(projector, folder, is_sure=is_sure)
        return
    with Progress().hub() as reading:
        asked = repository_of(name)
        offer = read_offer(asked, user_planner(), reading.header)
    model = offer.best if asked.wanted is None else offer.named(asked.wanted)
    if model is None:
        print_offer(offer)
        raise ModelFileError(
            f"no file of {offer.repo} fits on this machine: to download one anyway, specify its "
            "name"
        )
    option = offer.option_of(model)
    _download(model, folder, f"{model.name} {verdict_text(option)}", is_sure=is_sure)
    with Progress().hub():
        projectors = repository_projectors(offer.repo, model.revision)
    for each in projectors:
        size = fmt.nbytes(each.nbytes)
        log_line(f"`kvchat models get {each.address}` ({size}) adds image input.")


@command.command(name="rm")
@click.argument("name")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
def remove(name: str, *, is_sure: bool) -> None:
    """Delete the files of a model, after confirmation."""
    found = removal_of(_path(name))
    confirm(found.question, "--yes deletes it", is_sure=is_sure)
    found.run()
    print_line(f"deleted {found.name}, {fmt.nbytes(found.nbytes)}")


@command.command(name="where")
@click.argument("name")
def where(name: str) -> None:
    """Print the folder of a model."""
    print_line(str(_path(name).parent))


@command.command(name="favourite")
@click.argument("name")
@click.option("--off", is_flag=True, help="Remove the favourite mark.")
def favourite(name: str, *, off: bool) -> None:
    """Mark a model as a favourite, so that lists show the model first."""
    path = _path(name)
    mark_favourite(model_identity(path), is_favourite=not off)
    print_line(f"{path.stem} is {'no longer a favourite' if off else 'a favourite'}")


def _print_models(entries: Sequence[ModelEntry], options: Mapping[Path, ModelOption]) -> None:
    titles = ("name", "kind", "quant", "context", "size", "fits", "tok/s", "folder")
    symbols = output_symbols()
    _print_table(titles, [_cells(entry, options.get(entry.path), symbols) for entry in entries])
    for entry in entries:
        for copy in entry.copies:
            print_line((one_line(f"{copy} is a copy of {entry.path}"), "yellow"))
    for entry in entries:
        if entry.problem is not None:
            print_line((one_line(f"{entry.name}: {entry.problem}"), "red"))


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    numbers = (
        "context", "size", "parameters", "memory", "GB/s", "tok/s", "needs", "largest context",
    )  # fmt: skip
    console().print(plain_table(titles, rows, numbers=numbers))


def _holds(part: str, name: str, aliases: Sequence[str]) -> bool:
    wanted = part.casefold()
    return any(wanted in known.casefold() for known in (name, *aliases))


def _cells(entry: ModelEntry, option: ModelOption | None, symbols: GraphSymbols) -> tuple[str, ...]:
    context = "-" if entry.n_ctx_train is None else f"{entry.n_ctx_train:,}"
    folder, home = entry.path.parent, Path.home()
    bound = None if option is None else option.bound
    speed = speed_text(entry.speed, bound).replace(" tok/s", "") or "-"
    if symbols != "block":
        speed = speed.replace("\N{LESS-THAN OR EQUAL TO}", "<")
    return (
        entry.name,
        "-" if entry.architecture is None and entry.problem else str(entry.kind),
        "broken" if entry.problem else entry.file_type or "-",
        context,
        f"{entry.nbytes / 2**20:,.0f} MiB",
        "-" if option is None else _verdict(option),
        speed,
        f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder),
    )


def _verdict(option: ModelOption) -> str:
    if option.verdict is None:
        return "-"
    return SPILLS if option.spills else WORDS[option.verdict]


def _print_where_to_put_models() -> None:
    log_line("No GGUF model was found in these folders:")
    for folder in model_folders():
        log_line(f"  {folder}")
    log_line(
        "Put a model into one of these folders, add a folder to the environment variable "
        "KVCHAT_MODELS, or download a model:\n  kvchat models get qwen3-1.7b\n"
        "  kvchat models install-starter"
    )


def _as_json(entry: ModelEntry, option: ModelOption | None) -> dict[str, object]:
    facts = asdict(entry)
    del facts["vocabulary"], facts["reads"]  # of pairs
    verdict = {} if option is None else option_json(option)
    return {name: verdict.get(name) for name in VERDICT} | facts


def print_offer(offer: HubOffer, *, as_json: bool = False) -> None:
    """Print the models of a repository with size, verdict, largest context and speed."""
    if as_json:
        print_json([option_json(option) for option in offer.options])
        return
    rows = [
        (
            option.name,
            *option.facts,
            _verdict(option),
            f"{fmt.nbytes(option.needed_bytes)} of {fmt.nbytes(option.free_bytes)}",
            "-" if option.max_n_ctx is None else fmt.count(option.max_n_ctx),
            speed_text(option.speed, option.bound) or "-",
        )
        for option in offer.options
    ]
    _print_table(("name", "size", "here", "needs", "largest context", "speed"), rows)
    best = offer.best
    if best is not None:
        log_line(f"Recommended: `kvchat models get {best.address}`")


def _projector(name: str) -> HubModel | None:
    asked = parse_hub_name(name)
    if asked is None or asked.file is None or not is_projector_name(asked.file):
        return None
    found = repository_projectors(asked.repo, asked.revision)
    return next((each for each in found if each.name == asked.wanted), None)


def _download(model: HubModel, folder: Path | None, verdict: str = "", *, is_sure: bool) -> None:
    print_line((model.name, "bold"), f"  {fmt.nbytes(model.nbytes)} from {model.repo}")
    if verdict:
        print_line(verdict)
    if not model.is_checked:
        log_line("the hub has no checksum for this file: the download cannot be verified")
    place = folder or paths.models_dir()
    question = f"Download it into {model.place(place).parent}?"
    confirm(question, "--yes downloads it", is_sure=is_sure)
    with Progress() as progress:

        def show(n_done: int, n_all: int) -> None:
            share = n_done / max(n_all, 1)
            text = f"{model.name}: {fmt.nbytes_of(n_done, n_all)}, {fmt.percent(share)}"
            progress.show(text, share)

        path = download(model, place, show)
    print_line(str(path))


def _path(name: str) -> Path:
    return find_model(name, model_folders())
