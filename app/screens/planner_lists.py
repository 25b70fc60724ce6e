"""The lists of the planner: models to plan, cards, goals of a search, changes worth a thought."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from app import format as fmt
from app.render.lines import Line, Run, clipped, spread
from app.render.plan_changes import effect_line
from app.screens.dialogs import PickScreen
from app.widgets.select_list import Row
from engine.memory.cards import Card, all_cards
from engine.planning.fit import GOAL_TEXTS
from engine.planning.goals import Goal
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
