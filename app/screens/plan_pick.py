"""A dialog that lets one row of a list be picked; typing narrows the list down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from app import format as fmt
from app.render.lines import Line
from app.widgets.plan_list import PlanList

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Row(Generic[Key]):
    """A row: what it gives, what it is found by, and its line for a width."""

    key: Key
    words: str
    """Empty where no search finds it and no count has it."""
    line: Callable[[int], Line]


class PickScreen(ModalScreen[Key | None]):
    """Gives the key of the row that was picked, None to stay."""

    CSS_PATH = "../styles/planner.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear_or_close", "Close", id="plan-pick-close",
                tooltip="Show every row again, then close"),
    ]  # fmt: skip

    TITLE_TEXT: ClassVar[str] = ""
    HINT: ClassVar[str] = "enter takes it · type to search · esc closes"
    NOUN: ClassVar[str] = ""
    """What a row is, in the singular, for the count; empty counts only what a search finds."""

    def __init__(self) -> None:
        super().__init__()
        self._all: Sequence[Row[Key]] = ()
        self._shown: list[Row[Key]] = []
        self._search = ""
        self._note = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide", id="plan-pick"):
            yield Static(self.title_text, classes="title", markup=False)
            yield from self.head()
            yield PlanList(id="plan-rows")
            yield Static("", id="plan-pick-note", classes="hint", markup=False)
            yield Static(self.HINT, classes="hint", markup=False)

    @property
    def title_text(self) -> str:
        """What stands over the rows."""
        return self.TITLE_TEXT

    @property
    def noun(self) -> str:
        """What a row is, in the singular."""
        return self.NOUN

    def head(self) -> Sequence[Widget]:
        """Give what stands between title and rows."""
        return ()

    def on_mount(self) -> None:
        self.query_one(PlanList).focus()

    def show_all(self, rows: Sequence[Row[Key]], *, note: str, place: int | None = None) -> None:
        """Show other rows, as far as they match what was typed."""
        self._all, self._note = rows, note
        self._narrow(place)

    def show_note(self, note: str) -> None:
        """Say why there are no rows yet."""
        self.query_one("#plan-pick-note", Static).update(note)

    @property
    def marked(self) -> Key | None:
        """The key of the marked row; None where there is none."""
        place = self.query_one(PlanList).place
        return self._shown[place].key if self._shown else None

    def picked(self, key: Key) -> None:
        """Take a row."""
        self.dismiss(key)

    def on_plan_list_picked(self, message: PlanList.Picked) -> None:
        self.picked(self._shown[message.place].key)

    def on_key(self, event: events.Key) -> None:
        if event.key == "backspace" and self._search:
            self._search = self._search[:-1]
        elif event.is_printable and event.character and (self._search or event.key != "space"):
            self._search += event.character.lower()
        else:
            return
        event.stop()
        event.prevent_default()
        self._narrow(0)

    def action_clear_or_close(self) -> None:
        """Forget what was typed, or close."""
        if self._search:
            self._search = ""
            self._narrow(0)
        else:
            self.dismiss(None)

    def _narrow(self, place: int | None) -> None:
        words = self._search.split()
        self._shown = [row for row in self._all if all(word in row.words for word in words)]
        self.query_one(PlanList).show_rows([row.line for row in self._shown], place)
        parts = (f"“{self._search}”" if self._search else "", self._count(), self._note)
        self.query_one("#plan-pick-note", Static).update(" · ".join(filter(None, parts)))

    def _count(self) -> str:
        n_all = sum(bool(row.words) for row in self._all)
        n_found = sum(bool(row.words) for row in self._shown)
        whole = fmt.counted(n_all, self.noun) if self.noun else fmt.count(n_all)
        if self._search:
            return f"{n_found} of {whole}"
        return whole if self.noun else ""
