"""The lists of the planner: models to plan, cards, goals of a search, changes worth a thought."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from app import format as fmt
from app.render.lines import Line, Run, clipped, spread
from app.render.plan_changes import effect_line
from app.render.plan_lists import LEGEND, model_option_line
from app.screens.dialogs import PickScreen
from app.screens.models import file_facts
from app.threads import call_if_open
from app.widgets.bars import TabStrip
from app.widgets.select_list import Row
from engine.memory.cards import Card, all_cards
from engine.model.architecture import Model
from engine.model.library import ModelEntry
from engine.planning.fit import GOAL_TEXTS
from engine.planning.goals import Goal
from engine.planning.models import (
    CATALOG_QUANTIZATIONS,
    FitContext,
    ModelOption,
    catalog_options,
    library_options,
)
from engine.planning.planner import Setup
from engine.planning.what_if import Effect

TABS = ("on this machine", "catalogue")
BATCH = 6
"""Models that are judged before they are painted."""


def goal_list() -> PickScreen[Goal]:
    """The goals to search for."""
    return PickScreen(
        "search for the best",
        [
            Row(
                goal,
                partial(clipped, (Run(f"{goal:<10}", "strong"), Run(GOAL_TEXTS[goal], "muted"))),
                words=str(goal),
            )
            for goal in Goal
        ],
        note="Chooses context, KV types, layers, experts and batches.\n"
        "Layers leave the GPU only where they must or hardly cost speed.",
        hint="enter searches · esc closes",
        classes="-short",
    )


def effect_list(effects: Sequence[Effect]) -> PickScreen[Setup]:
    """The changes to take one of, the best first."""
    return PickScreen(
        "change what?",
        [
            Row(each.setup, partial(clipped, effect_line(each)), words=each.label.lower())
            for each in effects
        ],
        note="what each does to the memory, and to the largest context",
        classes="-short",
    )


class CardsScreen(PickScreen[tuple[str, ...]]):
    """Cards to plan for; the result is their names, none for those of this machine."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus", "add", "Add", id="plan-cards-add", priority=True,
                tooltip="One more of the marked card"),
    ]  # fmt: skip

    def __init__(self, found: str) -> None:
        """List cards below the GPUs that were found here, whose names are `found`."""
        here = (Run("this machine  ", "strong"), Run(found, "muted"))
        rows: list[Row[tuple[str, ...]]] = [Row((), partial(clipped, here))]
        rows += [
            Row((card.name,), partial(_card_line, card), words=_card_words(card))
            for card in all_cards()
        ]
        super().__init__(
            "plan for which GPUs?",
            rows,
            noun="card",
            hint="enter takes it · + adds one more · type to search · esc closes",
        )
        self._rows = rows
        self._added: tuple[str, ...] = ()

    def picked(self, key: tuple[str, ...]) -> None:
        """Close with a card beside those that were added."""
        self.dismiss((*self._added, *key) if key else ())

    def action_add(self) -> None:
        """Add the marked card, and choose on."""
        name = self.marked
        if name:
            self._added = (*self._added, *name)
            self.show_all(self._rows, note=f"chosen: {' + '.join(self._added)}")


def _card_line(card: Card, width: int) -> Line:
    kind = "shared" if card.is_unified else ""
    sizes = (
        Run(f"{kind:<8}", "muted"),
        Run(f"{fmt.nbytes(card.memory_bytes):>9}"),
        Run(f"{card.bandwidth_gbps:>7.0f} GB/s", "muted"),
    )
    return spread((Run(card.name, "strong"),), sizes, width)


def _card_words(card: Card) -> str:
    return " ".join((card.vendor, card.name, *card.aliases)).lower()


class PlanModelsScreen(PickScreen[str]):
    """Models to plan with a verdict each; the result is a path or a name of the catalogue."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "next_tab", "List", id="plan-models-tab", priority=True,
                tooltip="The other list: this machine, the catalogue"),
        Binding("left", "quantize(-1)", "Smaller", id="plan-models-smaller", priority=True,
                tooltip="A smaller quantisation of the catalogue's models"),
        Binding("right", "quantize(1)", "Larger", id="plan-models-larger", priority=True,
                tooltip="A larger quantisation of the catalogue's models"),
    ]  # fmt: skip

    def __init__(
        self,
        scan: Callable[[], Sequence[ModelEntry]],
        folders: Sequence[Path],
        context: Callable[[], FitContext],
        now: Path | None,
    ) -> None:
        """List the models of this machine, or those of the catalogue where it has none.

        Args:
            scan: Finds those of this machine.
            folders: Where it looks, for the note.
            context: What each is judged by; called away from the screen.
            now: The model that is planned.
        """
        super().__init__(
            "plan which model?",
            noun="model",
            hint=f"{LEGEND}\nenter plans it · tab other list · type to search · esc closes",
            tabs=(TabStrip(TABS, "tab", id="plan-models-tabs"),),
        )
        self._scan = scan
        self._folders = folders
        self._fit_context = context
        self._now = now
        self._quantization = "Q4_K_M"
        self._has_turned = False
        """Whether another list was asked for: none is chosen for the user then."""

    def on_mount(self) -> None:
        super().on_mount()
        self._fill()

    def on_tab_strip_chosen(self) -> None:
        self._fill()

    def action_next_tab(self) -> None:
        """Show the other list."""
        self._has_turned = True
        self.query_one(TabStrip).next()

    def action_quantize(self, step: int) -> None:
        """Judge the catalogue's models in another quantisation."""
        if not self._is_catalog:
            return
        index = CATALOG_QUANTIZATIONS.index(self._quantization) + step
        if 0 <= index < len(CATALOG_QUANTIZATIONS):
            self._quantization = CATALOG_QUANTIZATIONS[index]
            self._fill()

    @property
    def _is_catalog(self) -> bool:
        return self.query_one(TabStrip).active == 1

    def _fill(self) -> None:
        if self._is_catalog:
            quantization = self._quantization
            note = f"as {quantization} (◂ ▸) · not on disk"
            self._judge(
                lambda: catalog_options(quantization, self._fit_context(), _catalog_facts), note
            )
        else:
            self._judge(self._library, f"in {fmt.counted(len(self._folders), 'folder')}")

    def _library(self) -> Iterator[ModelOption]:
        entries = self._scan()
        facts = [tuple(file_facts(entry)) for entry in entries]
        return library_options(entries, facts, self._fit_context())

    @work(thread=True, exclusive=True, group="judge")
    def _judge(self, options: Callable[[], Iterator[ModelOption]], note: str) -> None:
        """Judge one model after the other away from the screen."""
        worker = get_current_worker()
        found: list[ModelOption] = []
        for option in options():
            if worker.is_cancelled:
                return
            found.append(option)
            if len(found) % BATCH == 0:
                call_if_open(self, self._show, list(found), f"{note} · reading …")
        call_if_open(self, self._show if found else self._show_none, found, note)

    def _show_none(self, options: list[ModelOption], note: str) -> None:
        """Go on to the catalogue, once, where this machine has no model."""
        self._show(options, note)
        if not self._is_catalog and not self._has_turned:
            self.action_next_tab()

    def _show(self, options: list[ModelOption], note: str) -> None:
        now = str(self._now)
        rows = [
            Row(
                option.key,
                partial(model_option_line, option, is_now=option.key == now),
                words=f"{option.name} {' '.join(option.facts)}".lower(),
            )
            for option in options
        ]
        self.show_all(rows, note=note)


def _catalog_facts(model: Model) -> tuple[str, ...]:
    n_parameters = sum(prod(tensor.shape) for tensor in model.file.tensors)
    n_ctx_train = model.architecture.n_ctx_train
    return (f"{n_parameters / 1e9:.3g}B", f"ctx {fmt.context_size(n_ctx_train)}")
