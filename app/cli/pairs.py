"""`kvchat pairs`: which models can draft for another, and the gain that each promises."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from app import paths
from app.cli.options import json_option
from app.config import model_folders
from app.console import Progress, print_json, print_line
from app.format import nbytes
from app.planning import user_planner
from app.sanitize import one_line
from app.tables import console, plain_table
from engine.memory.hardware import usable_devices
from engine.model.library import (
    HeaderFacts,
    UnknownNameError,
    find_model,
    read_facts,
    read_headers,
)
from engine.planning.draft_advice import MachineKind, Worth
from engine.planning.pairs import DraftOption, DraftOptions, options_of, server_options
from engine.planning.request import take_model


@click.command(name="pairs")
@click.argument("model")
@click.option(
    "--folder",
    "folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Search this folder only; repeatable.",
)
@click.option(
    "--on",
    "machine",
    type=click.Choice(["cpu", "gpu"]),
    help="Device that runs both models. [the GPU, if there is one]",
)
@json_option
def command(
    model: str, folders: tuple[Path, ...], machine: MachineKind | None, *, as_json: bool
) -> None:
    """List the models that can draft for MODEL, with the expected gain of each.

    MODEL is a path, a name from `kvchat models`, or a catalogue name. kvchat reads only the headers
    of the files and estimates the gain from the bytes that each model reads per step.
    `kvchat bench` measures the gain.
    """
    if machine is None:
        machine = "gpu" if any(each.kind == "gpu" for each in usable_devices()) else "cpu"
    with Progress() as progress:
        found = _draft_options(model, folders, machine, progress)
    if as_json:
        print_json(_as_json(found))
    else:
        _print_pairs(found)


def _draft_options(
    model: str, folders: Sequence[Path], machine: MachineKind, progress: Progress
) -> DraftOptions:
    planner, searched = user_planner(), list(folders) or model_folders()
    try:
        path = find_model(model, searched)
    except UnknownNameError:
        path = take_model(model, planner, progress.header)
    target = planner.model(path)
    models = read_headers(
        searched,
        cache_path=None if folders else paths.header_cache_path(),
        progress=progress.scanned,
    )
    own: HeaderFacts | None = next((each for each in models if each.path == path), None)
    if own is None and target.file.origin is None:
        own = read_facts(path)
    return options_of(target, models, own, machine)


def _as_json(found: DraftOptions) -> dict[str, object]:
    best = found.best
    return {
        **asdict(found),
        "best": None if best is None else best.name,
        "llama_server": None if best is None else server_options(best),
    }


N_DRAFTS, N_UNSUITABLE = 20, 12
"""Models that are printed of those that can draft, and of those that cannot; JSON has all."""
STYLES = {Worth.USE: "green", Worth.DEPENDS: "", Worth.NEVER: "red"}


def _print_pairs(found: DraftOptions) -> None:
    """Print the drafts here, drafts to download, models that cannot draft, and the best."""
    if found.problem is not None:
        print_line((f"{found.target}: {found.problem}", "red"))
        return
    if found.drafts:
        _print_drafts(found.drafts)
    else:
        print_line(f"No model on this machine can draft for {found.target}.")
    if found.missing:
        print_line(("\nDraft models to download (figures for Q4_K_M):", "bold"))
        _print_drafts(found.missing)
    if found.unsuitable:
        print_line(("\nThese models on this machine cannot draft for this target:", "bold"))
        _print_reasons(found.unsuitable, N_UNSUITABLE)
    print_line(f"\nLookup (needs no draft model): {found.look_up.reason}.")
    best = found.best
    if best is not None:
        print_line((f"\nLoad {best.name}:", "bold"))
        own = ["kvchat", found.target, "--draft", best.name]
        server = ["llama-server", "-m", str(found.target_path), *server_options(best)]
        for words in (own, server):
            print_line(f"  {shlex.join(words)}")


def _print_drafts(drafts: Sequence[DraftOption]) -> None:
    are_here = drafts[0].path is not None
    titles = ("draft", "quant", "size", "reads", "verdict", "gain", "length")
    table = plain_table(
        titles if are_here else (*titles, "published as"), numbers=("size", "reads", "length")
    )
    for draft in drafts[:N_DRAFTS]:
        cells = _cells(draft) if are_here else (*_cells(draft), draft.published_as or "-")
        table.add_row(*(Text(one_line(cell)) for cell in cells), style=STYLES[draft.advice.worth])
    console().print(table)
    _print_reasons(drafts, N_DRAFTS)


def _print_reasons(drafts: Sequence[DraftOption], n: int) -> None:
    for draft in drafts[:n]:
        print_line(f"{draft.name}: {draft.advice.reason}")
    if len(drafts) > n:
        print_line(f"and {len(drafts) - n} more (--json lists all)")


def _cells(draft: DraftOption) -> tuple[str, ...]:
    low, high = draft.advice.low, draft.advice.high
    return (
        draft.name,
        draft.file_type or "-",
        "-" if draft.nbytes is None else nbytes(draft.nbytes),
        "-" if draft.share is None else f"{draft.share:.0%}",
        str(draft.advice.worth),
        "-" if low is None or high is None else f"{low.factor:.2f}x to {high.factor:.2f}x",
        str(draft.advice.n_draft or "-"),
    )
