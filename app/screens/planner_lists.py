"""What the planner asks: models, files, cards, goals, changes worth a thought, a preset's name."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from app import format as fmt
from app import paths
from app.config import model_folders
from app.render.lines import Line, Run, clipped, spread
from app.render.plan_changes import change_line
from app.screens.dialogs import PickScreen, confirm, report
from app.screens.plan_session import preset_of_setup
from app.widgets.select_list import Row
from engine.configuration import Configuration
from engine.errors import PresetError
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


@dataclass(frozen=True, slots=True)
class FileKind:
    """A file that can stand beside a model."""

    name: str
    kind: ModelKind
    add: Callable[[Setup, Path], Setup]
    """The setup with such a file."""


FILES: dict[str, FileKind] = {
    "draft": FileKind("draft model", ModelKind.MODEL, with_draft),
    "projector": FileKind("projector", ModelKind.PROJECTOR, with_projector),
    "adapter": FileKind("LoRA adapter", ModelKind.ADAPTER, with_adapter),
}


def scan_models(
    folders: Sequence[Path] | None = None, kinds: Sequence[ModelKind] = (ModelKind.MODEL,)
) -> Sequence[ModelEntry]:
    """The models of these folders; None is those of the settings."""
    cache_path = paths.header_cache_path()
    return scan(folders or model_folders(), cache_path=cache_path, kinds=kinds)


def file_list(
    chooser: Chooser,
    now: Configuration,
    models: Callable[[], Sequence[ModelEntry]],
    planner: Planner,
) -> "FilesScreen":
    """The files of a kind: those beside the model, and those of the usual folders.

    Args:
        chooser: A key of `FILES`.
        now: What is planned; its files are marked.
        models: Finds models, which drafts are.
        planner: Knows the model that is planned.
    """
    from app.screens.models import FilesScreen  # with the first file that is asked for

    file = FILES[chooser]
    folders = tuple(dict.fromkeys((now.model_path.absolute().parent, *model_folders())))
    look: Callable[[], Sequence[ModelEntry]] = partial(scan_models, folders, (file.kind,))
    if chooser == "draft":
        look = lambda: drafts_for(planner.model(now.model_path), models)  # noqa: E731
    chosen = {
        "draft": () if now.draft is None else (now.draft.model_path,),
        "projector": () if now.mmproj_path is None else (now.mmproj_path,),
        "adapter": now.lora_paths,
    }
    return FilesScreen(file.name, look, folders, chosen[chooser])


def drafts_for(target: Model, models: Callable[[], Sequence[ModelEntry]]) -> list[ModelEntry]:
    """The models found: first those that may draft for a target, the smallest first.

    Those whose header shows another vocabulary have that as their problem.
    """
    own = vocabulary_facts(target.file)
    judged = [
        entry
        if misfit is None
        else replace(entry, problem=f"this model cannot be the draft model: {misfit}")
        for entry in models()
        for misfit in (entry.vocabulary and facts_difference(own, entry.vocabulary),)
    ]
    return sorted(judged, key=lambda entry: (entry.problem is not None, entry.nbytes))


def save_as_preset(screen: Screen[Any], setup: Setup, presets_dir: Path, name: str) -> None:
    """Write a setup as a preset, after a question where another one has the name."""

    def write(*, replace_existing: bool) -> None:
        try:
            preset = preset_of_setup(setup, name)
            path = save_preset(preset, presets_dir, replace_existing=replace_existing)
        except PresetError as error:
            report(screen, error)
        else:
            screen.notify(f"Saved {path}")

    there = named_preset(name, presets_dir)
    if there is not None and not there.is_builtin:
        over = partial(write, replace_existing=True)
        confirm(screen, f"The preset “{there.name}” already exists. Replace it?", over)
    else:
        write(replace_existing=False)


def goal_list() -> PickScreen[Goal]:
    """The goals to search for."""
    return PickScreen(
        "choose a search goal",
        [
            Row(
                goal,
                partial(clipped, (Run(f"{goal:<10}", "strong"), Run(GOAL_TEXTS[goal], "muted"))),
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
    """The changes to take one of, the best first."""
    return PickScreen(
        "changes",
        [
            Row(each.setup, partial(clipped, change_line(each)), words=each.label.lower())
            for each in changes
        ],
        note="effect on memory and on the largest context",
        classes="-short",
    )


Cards = tuple[str | int, ...]
"""GPUs by their cards' names, or by their bytes where any card of that size is meant."""
_SIZE = re.compile(r"(?<![\w.])(\d+)\s*g(?:i?b)?(?!\w)")


class CardsScreen(PickScreen[Cards]):
    """Cards to plan for; the result is none for the GPUs of this machine."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus", "add", "Add", id="plan-cards-add", priority=True,
                tooltip="Add one GPU of the highlighted type; press enter to plan for all added "
                        "GPUs"),
    ]  # fmt: skip

    def __init__(self, devices: Sequence[Device]) -> None:
        """List cards below the GPUs of this machine, which are among its devices."""
        found = ", ".join(each.name for each in devices if each.kind == "gpu")
        found = found or "no GPU: RAM only"
        here = (Run("this machine  ", "strong"), Run(found, "muted"))
        self._added: Counter[Cards] = Counter()
        rows: list[Row[Cards]] = [Row((), partial(clipped, here))]
        rows += [
            Row((card.name,), partial(self._card_line, card), words=_card_words(card))
            for card in all_cards()
        ]
        super().__init__(
            "plan for which GPUs?",
            rows,
            noun="card",
            hint="enter chooses · + adds a GPU · type a name or a size such as 8 GB · esc closes",
        )
        self._rows = rows

    def found(self, words: Sequence[str]) -> list[Row[Cards]]:
        """The cards found by name and by size, below a row for any card of that size."""
        text = " ".join(words)
        rows = super().found(_SIZE.sub(r"=\1gib", text).split())
        if size := _SIZE.fullmatch(text):
            line = partial(self._line, (int(size[1]) * GIB,), f"any {size[1]} GiB card", ())
            rows.insert(0, Row((int(size[1]) * GIB,), line))
        return rows

    def picked(self, key: Cards) -> None:
        """Close with what was added, or with the marked card where nothing was."""
        added = tuple(chain.from_iterable(self._added.elements()))
        self.dismiss((added or key) if key else ())

    def action_add(self) -> None:
        if self.marked:
            self._added[self.marked] += 1
            self.show_all(self._rows, note="press enter to plan for the added GPUs")

    def _card_line(self, card: Card, width: int) -> Line:
        kind = "shared" if card.is_unified else ""
        sizes = (
            Run(f"{kind:<8}", "muted"),
            Run(f"{fmt.nbytes(card.memory_bytes):>9}"),
            Run(f"{card.bandwidth_gbps:>7.0f} GB/s", "muted"),
        )
        return self._line((card.name,), card.name, sizes, width)

    def _line(self, key: Cards, name: str, sizes: Line, width: int) -> Line:
        n = self._added[key]
        return spread((Run(f"{n} x " if n else "", "accent"), Run(name, "strong")), sizes, width)


def _card_words(card: Card) -> str:
    size = f"={card.memory_bytes / GIB:g}gib"
    return " ".join((card.vendor, card.name, *card.aliases, size)).lower()
