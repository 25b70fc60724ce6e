"""Models to plan with: those on this machine and those of the catalogue, each with a verdict."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.worker import get_current_worker

from app import format as fmt
from app.render.lines import Line, Run
from app.render.plan_lists import LEGEND, model_option_line
from app.screens.hand_back import hand_back
from app.screens.plan_pick import PickScreen, Row
from app.widgets.tab_strip import TabStrip
from engine.model.architecture import Model
from engine.model.library import ModelEntry
from engine.planning.models import (
    CATALOG_QUANTIZATIONS,
    FitContext,
    ModelOption,
    catalog_options,
    library_options,
)

TABS = ("on this machine", "catalogue")
BATCH = 6
"""Offers that are judged before they are painted."""


class ListTabs(TabStrip):
    """The two lists side by side."""

    def _line(self) -> Line:
        return (*self._parts(), Run("  tab", "muted"))


class PlanModelsScreen(PickScreen[str]):
    """Gives the path or the catalogue's name of the model to plan, None to stay."""

    TITLE_TEXT: ClassVar[str] = "plan which model?"
    HINT: ClassVar[str] = f"{LEGEND}\nenter plans it · tab other list · type to search · esc closes"
    NOUN: ClassVar[str] = "model"
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
        bench: Callable[[], FitContext],
        now: Path | None,
    ) -> None:
        """List models; those of the catalogue where this machine has none.

        Args:
            scan: Finds those of this machine.
            folders: Where it looks, for the note.
            bench: Gives what each is judged by; called away from the screen.
            now: The model that is planned.
        """
        super().__init__()
        self._scan = scan
        self._folders = folders
        self._bench = bench
        self._now = now
        self._quantization = "Q4_K_M"
        self._has_turned = False
        """Whether another list was asked for: none is chosen for the user then."""

    def head(self) -> Sequence[Widget]:
        return (ListTabs(TABS, id="plan-models-tabs"),)

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
        place = CATALOG_QUANTIZATIONS.index(self._quantization) + step
        if 0 <= place < len(CATALOG_QUANTIZATIONS):
            self._quantization = CATALOG_QUANTIZATIONS[place]
            self._fill()

    @property
    def _is_catalog(self) -> bool:
        return self.query_one(TabStrip).active == 1

    def _fill(self) -> None:
        if self._is_catalog:
            quantization = self._quantization
            note = f"as {quantization} (◂ ▸) · not on disk"
            self._judge(lambda: catalog_options(quantization, self._bench(), _catalog_facts), note)
        else:
            self._judge(self._library, f"in {fmt.counted(len(self._folders), 'folder')}")

    def _library(self) -> Iterator[ModelOption]:
        entries = self._scan()
        return library_options(entries, [_facts(entry) for entry in entries], self._bench())

    @work(thread=True, exclusive=True, group="judge")
    def _judge(self, offers: Callable[[], Iterator[ModelOption]], note: str) -> None:
        """Judge one model after the other away from the screen."""
        worker = get_current_worker()
        found: list[ModelOption] = []
        for offer in offers():
            if worker.is_cancelled:
                return
            found.append(offer)
            if len(found) % BATCH == 0:
                hand_back(self, self._show, list(found), f"{note} · reading …")
        hand_back(self, self._show if found else self._show_none, found, note)

    def _show_none(self, offers: list[ModelOption], note: str) -> None:
        """Go on to the catalogue, once, where this machine has no model."""
        self._show(offers, note)
        if not self._is_catalog and not self._has_turned:
            self.action_next_tab()

    def _show(self, offers: list[ModelOption], note: str) -> None:
        now = str(self._now)
        rows = [
            Row(
                offer.key,
                f"{offer.name} {' '.join(offer.facts)}".lower(),
                partial(model_option_line, offer, is_now=offer.key == now),
            )
            for offer in offers
        ]
        self.show_all(rows, note=note)


def _facts(entry: ModelEntry) -> tuple[str, ...]:
    facts = [entry.file_type or "", fmt.nbytes(entry.nbytes)]
    if entry.n_ctx_train:
        facts.append(f"ctx {fmt.context_size(entry.n_ctx_train)}")
    return tuple(facts)


def _catalog_facts(model: Model) -> tuple[str, ...]:
    n_parameters = sum(prod(tensor.shape) for tensor in model.file.tensors)
    n_ctx_train = model.architecture.n_ctx_train
    return (f"{n_parameters / 1e9:.3g}B", f"ctx {fmt.context_size(n_ctx_train)}")
