"""Lists to choose from in the planner: files, GPUs, goals, changes; the save of a preset."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from app import format as fmt
from app import paths
from app.config import model_folders
from app.render.lines import Line, Run, spread
from app.render.plan_changes import change_line
from app.screens.dialogs import PickScreen, confirm
from app.screens.plan_session import preset_of_setup
from app.widgets.select_list import Row
from engine.configuration import Configuration
from engine.memory.cards import Card, all_cards
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import Model
from engine.model.identity import ModelKind
from engine.model.library import ModelEntry, scan
from engine.model.vocabulary import facts_difference, vocabulary_facts
from engine.planning.changes import Change
from engine.planning.fit import GOAL_TEXTS
from engine.planning.options import Chooser, with_adapter, with_draft, with_projector
from engine.planning.planner import Planner, Setup
from engine.planning.search import Goal
from engine.presets.library import named_preset, save_preset

if TYPE_CHECKING:
    from app.screens.models import FilesScreen


def scan_models(
    folders: Sequence[Path] | None = None, kinds: Sequence[ModelKind] = (ModelKind.MODEL,)
) -> Sequence[ModelEntry]:
    """The models of these folders; None is those of the settings."""
    cache_path = paths.header_cache_path()
    return scan(folders or model_folders(), cache_path=cache_path, kinds=kinds)


# --- files next to the model ---


def file_list(
    chooser: Chooser,
    now: Configuration,
    models: Callable[[], Sequence[ModelEntry]],
    planner: Planner,
) -> "FilesScreen":
    """The files of a kind in the folder of the model and in the usual folders.

    Args:
        chooser: The kind.
        now: The planned configuration; its files are marked.
        models: Finds the models that may draft.
        planner: Has the header of the planned model.
    """
    from app.screens.models import FilesScreen  # with the first file that is chosen

    folders = tuple(dict.fromkeys((now.model_path.absolute().parent, *model_folders())))
    used = [path for path in (now.draft and now.draft.model_path, now.mmproj_path) if path]
    if chooser == "draft":
        look = partial(_drafts, now.model_path, models, planner)
        return FilesScreen("draft model", look, folders, used)
    is_projector = chooser == "projector"
    kind = ModelKind.PROJECTOR if is_projector else ModelKind.ADAPTER
    noun = "projector" if is_projector else "LoRA adapter"
    return FilesScreen(
        noun, partial(scan_models, folders, (kind,)), folders, (*used, *now.lora_paths)
    )


def with_file(chooser: Chooser, setup: Setup, path: Path) -> Setup:
    """The setup with a file of a kind."""
    match chooser:
        case "draft":
            return with_draft(setup, path)
        case "projector":
            return with_projector(setup, path)
        case _:
            return with_adapter(setup, path)


def _drafts(
    target: Path, models: Callable[[], Sequence[ModelEntry]], planner: Planner
) -> list[ModelEntry]:
    return drafts_for(planner.model(target), models)


def drafts_for(target: Model, models: Callable[[], Sequence[ModelEntry]]) -> list[ModelEntry]:
    """Draft models for a target, the smallest first; last, models with another vocabulary."""
    own = vocabulary_facts(target.file)

    def checked(entry: ModelEntry) -> ModelEntry:
        difference = entry.vocabulary and facts_difference(own, entry.vocabulary)
        if not difference:
            return entry
        return replace(entry, problem=f"this model cannot be the draft model: {difference}")

    entries = map(checked, models())
    return sorted(entries, key=lambda entry: (entry.problem is not None, entry.nbytes))


# --- presets, goals, changes ---


def save_as_preset(screen: Screen[Any], setup: Setup, presets_dir: Path, name: str) -> None:
    """Write a setup as a preset; ask before another one is replaced."""

    def save() -> None:
        path = save_preset(preset_of_setup(setup, name), presets_dir, replace_existing=True)
        screen.notify(f"Saved {path}")

    existing = named_preset(name, presets_dir)
    if existing is None or existing.is_builtin:
        save()
    else:
        confirm(screen, f"The preset “{existing.name}” already exists. Replace it?", save)


def goal_list() -> PickScreen[Goal]:
    """The goals to search for."""
    return PickScreen(
        "choose a search goal",
        [
            Row.of(
                goal,
                Run(f"{goal:<10}", "strong"),
                Run(GOAL_TEXTS[goal], "muted"),
                words=str(goal),
            )
            for goal in Goal
        ],
        note="The search chooses context, K/V types, GPU layers, experts and batches.\n"
        "It places layers in RAM only if necessary, or if this costs little speed.",
        hint="enter searches · esc closes",
        classes="-short",
    )


def change_list(changes: Sequence[Change]) -> PickScreen[Setup]:
    """The suggested changes, the best first."""
    return PickScreen(
        "changes",
        [Row.of(each.setup, *change_line(each), words=each.label.lower()) for each in changes],
        note="effect on memory and on the largest context",
        classes="-short",
    )


# --- GPUs ---

_SIZE = re.compile(r"(?<![\w.])(\d+)\s*g(?:i?b)?(?!\w)")


class CardsScreen(PickScreen[str]):
    """GPUs to plan for, as they can be typed: a card, a size, or "" for this machine's GPUs."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """List cards below the GPUs among the devices of this machine."""
        found = ", ".join(each.name for each in devices if each.kind == "gpu")
        here = Run("this machine  ", "strong"), Run(found or "no GPU: RAM only", "muted")
        rows: list[Row[str]] = [Row.of("", *here)]
        rows += [Row(c.name, partial(_card_line, c), words=_card_words(c)) for c in all_cards()]
        super().__init__(
            "plan for which GPU?",
            rows,
            noun="card",
            hint="enter chooses · type a name or a size such as 8 GB · esc closes\n"
            "several GPUs: type 2x24GiB or RTX 3060 + 12GiB in the GPUs setting",
        )

    def found(self, words: Sequence[str]) -> list[Row[str]]:
        """The cards found by name and by size, below a row for any card of that size."""
        text = " ".join(words)
        rows = super().found(_SIZE.sub(r"=\1gib", text).split())
        if size := _SIZE.fullmatch(text):
            rows.insert(0, Row.of(f"{size[1]}GiB", Run(f"any {size[1]} GiB card", "strong")))
        return rows


def _card_line(card: Card, width: int) -> Line:
    sizes = (
        Run(f"{'unified' if card.is_unified else '':<8}", "muted"),
        Run(f"{fmt.nbytes(card.memory_bytes):>9}"),
        Run(f"{card.bandwidth_gbps:>7.0f} GB/s", "muted"),
    )
    return spread((Run(card.name, "strong"),), sizes, width)


def _card_words(card: Card) -> str:
    size = f"={card.memory_bytes / GIB:g}gib"
    return " ".join((card.vendor, card.name, *card.aliases, size)).lower()
