"""`kvchat pairs`: which models can draft for another, and what each would bring."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from app import paths
from app.cli.console import SlowReading, print_json
from app.cli.options import json_option
from app.config import model_folders
from app.console import console, plain_table
from app.format import nbytes
from app.planning import user_planner
from app.sanitize import one_line
from engine.memory.hardware import usable_devices
from engine.model.library import (
    HeaderFacts,
    UnknownNameError,
    find_model,
    read_facts,
    read_headers,
)
from engine.planning.draft_advice import Advice, MachineKind, Worth
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
    with SlowReading() as reading:
        found = draft_options(model, folders, machine, reading)
    if as_json:
        print_json(_as_json(found))
    else:
        print_pairs(found)


def draft_options(
    model: str,
    folders: Sequence[Path],
    machine: MachineKind | None,
    reading: SlowReading,
) -> DraftOptions:
    """All that the folders hold, as drafts of a model."""
    planner, searched = user_planner(), list(folders) or model_folders()
    try:
        path = find_model(model, searched)
    except UnknownNameError:
        path = take_model(model, planner, reading.header)
    target = planner.model(path)
    models = read_headers(
        searched,
        cache_path=None if folders else paths.header_cache_path(),
        progress=reading.scanned,
    )
    own: HeaderFacts | None = next((each for each in models if each.path == path), None)
    if own is None and target.file.origin is None:
        own = read_facts(path)
    return options_of(target, models, own, machine or _machine())


def _machine() -> MachineKind:
    return "gpu" if any(device.kind == "gpu" for device in usable_devices()) else "cpu"


def _as_json(found: DraftOptions) -> dict[str, object]:
    best = found.best
    return {
        "target": found.target,
        "problem": found.problem,
        "best": None if best is None else best.name,
        "llama_server": None if best is None else server_options(best),
        "drafts": [_draft_as_json(each) for each in found.drafts],
        "unsuitable": [_draft_as_json(each) for each in found.unsuitable],
        "missing": [_draft_as_json(each) for each in found.missing],
        "lookup": _advice_as_json(found.look_up),
    }


def _draft_as_json(draft: DraftOption) -> dict[str, object]:
    return {
        "name": draft.name,
        "path": None if draft.path is None else str(draft.path),
        "bytes": draft.nbytes,
        "file_type": draft.file_type,
        "share_of_target": draft.share,
        "published_as": draft.published_as,
        **_advice_as_json(draft.advice),
    }


def _advice_as_json(advice: Advice) -> dict[str, object]:
    return {
        "verdict": str(advice.worth),
        "reason": advice.reason,
        "n_draft": advice.n_draft,
        "gain_low": None if advice.low is None else advice.low.factor,
        "gain_high": None if advice.high is None else advice.high.factor,
        "gain_ceiling": None if advice.ceiling is None else advice.ceiling.factor,
    }


N_DRAFTS = 20
N_MISFITS = 12
"""Models that are named of those that can draft, and of those that cannot; JSON names all."""
STYLES = {Worth.USE: "green", Worth.DEPENDS: "", Worth.HARDLY: "yellow", Worth.NEVER: "red"}


def print_pairs(found: DraftOptions) -> None:
    """Print the drafts on this machine, those that are missing, what cannot draft, and the best."""
    screen = console()
    if found.problem is not None:
        screen.print(Text(f"{found.target}: {found.problem}", style="red"))
        return
    if found.drafts:
        _print_drafts(screen, found.drafts)
    else:
        screen.print(Text(f"No model on this machine can draft for {found.target}."))
    if found.missing:
        screen.print(Text("\nDraft models to download (figures for Q4_K_M):", style="bold"))
        _print_drafts(screen, found.missing)
    _print_misfits(screen, found.unsuitable)
    screen.print(Text(f"\nLookup (needs no draft model): {found.look_up.reason}."))
    _print_best(screen, found)


def _print_drafts(screen: Console, drafts: Sequence[DraftOption]) -> None:
    are_here = drafts[0].path is not None
    place = () if are_here else ("published as",)
    titles = ("draft", "quant", "size", "reads", "verdict", "gain", "length", *place)
    table = plain_table(titles, numbers=("size", "reads", "length"))
    shown = drafts[:N_DRAFTS]
    for draft in shown:
        where = () if are_here else (draft.published_as or "-",)
        style = STYLES[draft.advice.worth]
        table.add_row(*(Text(one_line(cell)) for cell in (*_cells(draft), *where)), style=style)
    screen.print(table)
    for draft in shown:
        screen.print(Text(f"{draft.name}: {draft.advice.reason}"))
    _print_rest(screen, len(drafts) - N_DRAFTS)


def _print_rest(screen: Console, n_more: int) -> None:
    if n_more > 0:
        screen.print(Text(f"and {n_more} more (--json lists all)"))


def _cells(draft: DraftOption) -> tuple[str, ...]:
    return (
        draft.name,
        draft.file_type or "-",
        "-" if draft.nbytes is None else nbytes(draft.nbytes),
        "-" if draft.share is None else f"{draft.share:.0%}",
        str(draft.advice.worth),
        _gain(draft.advice),
        str(draft.advice.n_draft or "-"),
    )


def _gain(advice: Advice) -> str:
    if advice.low is None or advice.high is None:
        return "-"
    return f"{advice.low.factor:.2f}x to {advice.high.factor:.2f}x"


def _print_misfits(screen: Console, unsuitable: Sequence[DraftOption]) -> None:
    if unsuitable:
        screen.print(
            Text("\nThese models on this machine cannot draft for this target:", style="bold")
        )
    for draft in unsuitable[:N_MISFITS]:
        screen.print(Text(f"{draft.name}: {draft.advice.reason}"))
    _print_rest(screen, len(unsuitable) - N_MISFITS)


def _print_best(screen: Console, found: DraftOptions) -> None:
    best = found.best
    if best is None:
        return
    screen.print(Text(f"\nLoad {best.name}:", style="bold"))
    kvchat = ["kvchat", found.target, "--draft", best.name]
    server = ["llama-server", "-m", str(found.target_path), *server_options(best)]
    for words in (kvchat, server):
        screen.print(Text(f"  {shlex.join(words)}"), soft_wrap=True)
