"""A list on the left, and on the right the text of the highlighted row."""

from pathlib import PurePath
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen

from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.select_list import SelectList

Result = TypeVar("Result")
WIDTHS = [(0, "-narrow"), (100, "-wide"), (160, "-huge")]


class ListDetail(Screen[Result], Generic[Result]):
    """The base of the planner, the presets, the exports and the cache."""

    CSS_PATH: ClassVar[list[str | PurePath]] = ["../styles/list_detail.tcss"]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    AUTO_FOCUS = "SelectList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="list-back",
                tooltip="Go back without a change"),
        Binding("j", "app.simulate_key('down')", "Down", id="list-down", show=False,
                tooltip="Go to the row below"),
        Binding("k", "app.simulate_key('up')", "Up", id="list-up", show=False,
                tooltip="Go to the row above"),
        Binding("pageup", "scroll_text(-1)", "Page up", id="list-page-up", show=False,
                priority=True, tooltip="Scroll the text up"),
        Binding("pagedown", "scroll_text(1)", "Page down", id="list-page-down", show=False,
                priority=True, tooltip="Scroll the text down"),
    ]  # fmt: skip

    def compose(self) -> ComposeResult:
        yield TitleBar(id="list-title")
        with Horizontal(id="list-main"):
            yield SelectList(id="list-rows")
            yield LinesView(id="list-text")
        yield KeyBar(id="keys")

    @property
    def rows(self) -> SelectList:
        """The list."""
        return self.query_one(SelectList)

    def on_select_list_marked(self) -> None:
        self.show_marked()

    def show_marked(self) -> None:
        """Show the text of the highlighted row."""

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_scroll_text(self, pages: int) -> None:
        for lines in self.query(LinesView):
            lines.page(pages)
