"""Cards and machines to plan for."""

from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from app import format as fmt
from app.render.lines import Line, Run, spread
from app.screens.plan_pick import PickScreen, Row
from engine.memory.cards import Card, all_cards


class CardsScreen(PickScreen[tuple[str, ...]]):
    """Gives the names of the cards to plan for, none for those found, None to stay."""

    TITLE_TEXT: ClassVar[str] = "plan for which GPUs?"
    HINT: ClassVar[str] = "enter takes it · + adds one more · type to search · esc closes"
    NOUN: ClassVar[str] = "card"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus", "add", "Add", id="plan-cards-add", priority=True,
                tooltip="One more of the marked card"),
    ]  # fmt: skip

    def __init__(self, found: str) -> None:
        """Take the names of the GPUs that were found here."""
        super().__init__()
        self._found = found
        self._added: tuple[str, ...] = ()

    def on_mount(self) -> None:
        super().on_mount()
        self._show()

    def _show(self) -> None:
        rows: list[Row[tuple[str, ...]]] = [Row((), "", self._found_line)]
        rows += [
            Row((card.name,), _words(card), partial(_line, card)) for card in all_cards()
        ]  # fmt: skip
        chosen = " + ".join(self._added)
        self.show_all(rows, note=f"chosen: {chosen}" if chosen else "")

    def _found_line(self, width: int) -> Line:
        del width
        return (Run("this machine  ", "strong"), Run(self._found, "muted"))

    def picked(self, key: tuple[str, ...]) -> None:
        """Take a card beside those that were added."""
        self.dismiss((*self._added, *key) if key else ())

    def action_add(self) -> None:
        """Add the marked card, and choose on."""
        name = self.marked
        if name:
            self._added = (*self._added, *name)
            self._show()


def _line(card: Card, width: int) -> Line:
    kind = "shared" if card.is_unified else ""
    sizes = (
        Run(f"{kind:<8}", "muted"),
        Run(f"{fmt.nbytes(card.memory_bytes):>9}"),
        Run(f"{card.bandwidth_gbps:>7.0f} GB/s", "muted"),
    )
    return spread((Run(card.name, "strong"),), sizes, width)


def _words(card: Card) -> str:
    return " ".join((card.vendor, card.name, *card.aliases)).lower()
