"""`kvchat pairs`: which models can draft for another, and what each would bring."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.console import print_json

if TYPE_CHECKING:
    from app.cli.console import SlowReading
    from engine.planning.pairs import JudgedDraft, JudgedPairs
    from engine.speculation.pairs import Advice, MachineKind


@click.command(name="pairs")
@click.argument("model")
@click.option(
    "--folder",
    "folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Look here for drafts, and nowhere else; may be given again.",
)
@click.option(
    "--on",
    "machine",
    type=click.Choice(["cpu", "gpu"]),
    help="Where both would run; without it what this machine has.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str, folders: tuple[Path, ...], machine: "MachineKind | None", *, as_json: bool
) -> None:
    """Say which models can draft for MODEL, and what each would bring, without loading any.

    MODEL is a path, a name from `kvchat models`, or a name of the catalogue. Headers are read:
    whether the tokens are the same, and how much a step reads of each model. The gain is what
    that lets expect; `kvchat bench` measures it.
    """
    from app.cli.console import SlowReading

    reading = SlowReading()
    found = judged(model, folders, machine, reading)
    reading.done()
    if as_json:
        print_json(_as_json(found))
    else:
        from app.cli.pairs_text import print_pairs

        print_pairs(found)


def judged(
    model: str,
    folders: Sequence[Path],
    machine: "MachineKind | None",
    reading: "SlowReading",
) -> "JudgedPairs":
    """Judge all that the folders hold."""
    from app import paths
    from app.planning import user_planner
    from engine.model.header_cache import read_facts
    from engine.model.library import UnknownNameError, find_model, read_headers
    from engine.planning.pairs import Judge
    from engine.planning.request import take_model

    planner = user_planner()
    try:
        path = find_model(model, folders)
    except UnknownNameError:
        path = take_model(model, planner, reading.header)
    target = planner.model(path)
    read = read_headers(
        list(folders) or paths.model_folders(),
        cache_path=None if folders else paths.header_cache_path(),
        progress=reading.scanned,
    )
    own = next((facts for candidate, facts in read if candidate.path == path), None)
    if own is None and target.file.origin is None:
        own = read_facts(path)
    return Judge(target, machine or _machine()).pairs(read, own)


def _machine() -> "MachineKind":
    from engine.memory.hardware import usable_devices

    return "gpu" if any(device.kind == "gpu" for device in usable_devices()) else "cpu"


def _as_json(found: "JudgedPairs") -> dict[str, object]:
    from engine.planning.pairs import server_options

    best = found.best
    return {
        "target": found.target,
        "problem": found.problem,
        "best": None if best is None else best.name,
        "llama_server": None if best is None else server_options(best),
        "drafts": [_draft_as_json(each) for each in found.drafts],
        "misfits": [_draft_as_json(each) for each in found.misfits],
        "missing": [_draft_as_json(each) for each in found.missing],
        "look_up": _advice_as_json(found.look_up),
    }


def _draft_as_json(draft: "JudgedDraft") -> dict[str, object]:
    return {
        "name": draft.name,
        "path": None if draft.path is None else str(draft.path),
        "bytes": draft.nbytes,
        "file_type": draft.file_type,
        "share_of_target": draft.share,
        "published_as": draft.published_as,
        **_advice_as_json(draft.advice),
    }


def _advice_as_json(advice: "Advice") -> dict[str, object]:
    return {
        "verdict": str(advice.worth),
        "reason": advice.reason,
        "n_draft": advice.n_draft,
        "gain_low": None if advice.low is None else advice.low.factor,
        "gain_high": None if advice.high is None else advice.high.factor,
        "gain_ceiling": None if advice.ceiling is None else advice.ceiling.factor,
    }
