"""Rows to choose one from: lines with columns, which an option list cannot right-align."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from app.render.lines import Line, Run
from app.widgets.panes import PlanReport

MARKER_WIDTH = 2


class PlanList(PlanReport, can_focus=True):
    """Shows rows, one of them marked; what is picked is told in a message."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="plan-list-up", show=False, tooltip="The row above"),
        Binding("down", "move(1)", "Down", id="plan-list-down", show=False,
                tooltip="The row below"),
        Binding("pageup", "page(-1)", "Page up", id="plan-list-page-up", show=False,
                tooltip="A page up"),
        Binding("pagedown", "page(1)", "Page down", id="plan-list-page-down", show=False,
                tooltip="A page down"),
        Binding("home", "go(0)", "First", id="plan-list-first", show=False,
                tooltip="The first row"),
        Binding("end", "go(-1)", "Last", id="plan-list-last", show=False, tooltip="The last row"),
        Binding("enter", "pick", "Choose", id="plan-list-pick", show=False,
                tooltip="Take the marked row"),
    ]  # fmt: skip

    @dataclass
    class Marked(Message):
        """Another row was marked."""

        place: int

    @dataclass
    class Picked(Message):
        """A row was taken."""

        place: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.place = 0
        """The marked row."""
        self._rows: list[Callable[[int], Line]] = []

    def show_rows(self, rows: list[Callable[[int], Line]], place: int | None = None) -> None:
        """Show other rows, each a function of the width; the mark stays where it can."""
        self._rows = rows
        wanted = self.place if place is None else place
        self.place = min(max(wanted, 0), max(len(rows) - 1, 0))
        self.present(self._marked)
        self._follow()

    def _marked(self, width: int) -> list[Line]:
        room = width - MARKER_WIDTH
        return [
            (Run("▸ " if place == self.place else "  ", "accent"), *row(room))
            for place, row in enumerate(self._rows)
        ]

    def action_move(self, step: int) -> None:
        """Go a row up or down, from the last to the first."""
        if self._rows:
            self._go((self.place + step) % len(self._rows))

    def action_page(self, pages: int) -> None:
        """Go a page up or down."""
        last = len(self._rows) - 1
        self._go(min(max(self.place + pages * max(self.size.height - 1, 1), 0), max(last, 0)))

    def action_go(self, place: int) -> None:
        """Go to the first row or the last."""
        if self._rows:
            self._go(place % len(self._rows))

    def action_pick(self) -> None:
        """Take the marked row."""
        if self._rows:
            self.post_message(self.Picked(self.place))

    def on_click(self, event: events.Click) -> None:
        y = event.y - self.gutter.top + self.scroll_offset.y
        if not 0 <= y < len(self._rows):
            return
        if y == self.place:
            self.action_pick()
        else:
            self._go(y)

    def _go(self, place: int) -> None:
        self.place = place
        self.post_message(self.Marked(place))
        self.present(self._marked)
        self._follow()

    def _follow(self) -> None:
        """Scroll so far that the mark is in sight."""
        top, height = self.scroll_offset.y, self.size.height
        if self.place < top:
            self.scroll_to(y=self.place, animate=False)
        elif height and self.place >= top + height:
            self.scroll_to(y=self.place - height + 1, animate=False)
