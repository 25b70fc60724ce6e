"""Rows under a head, one of them marked; only those in sight are made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.render.lines import EMPTY, Line, Run
from app.widgets.ink import PANEL_INKS, Ink, ink_classes

MARKER_WIDTH = 2
HEAD_HEIGHT = 1

RowRenderer = Callable[[int, int], Line]
"""Gives the line of a row, by its place and the width."""


class RowList(ScrollView, Ink, can_focus=True):
    """A table of many rows; which one is marked is told in a message."""

    COMPONENT_CLASSES = ink_classes(PANEL_INKS)

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", id="rows-up", show=False, tooltip="The row above"),
        Binding("down,j", "move(1)", "Down", id="rows-down", show=False, tooltip="The row below"),
        Binding("pageup", "page(-1)", "Page up", id="rows-page-up", show=False,
                tooltip="A page up"),
        Binding("pagedown", "page(1)", "Page down", id="rows-page-down", show=False,
                tooltip="A page down"),
        Binding("home", "go(0)", "First", id="rows-first", show=False, tooltip="The first row"),
        Binding("end", "go(-1)", "Last", id="rows-last", show=False, tooltip="The last row"),
    ]  # fmt: skip
    # A change of the number of rows moves nothing else.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    @dataclass
    class Marked(Message):
        """Another row is marked."""

        place: int

    def __init__(
        self,
        *,
        note: str = "",
        id: str | None = None,  # noqa: A002  Textual's own name
    ) -> None:
        """A table without rows.

        Args:
            note: Stands below it, such as what its marks mean.
            id: As of every widget.
        """
        super().__init__(id=id)
        self.place = 0
        """The marked row."""
        self._n_rows = 0
        self._head: Callable[[int], Line] = lambda _: EMPTY
        self._row: RowRenderer = lambda *_: EMPTY
        self._text: Callable[[int], list[Line]] = lambda _: []
        self._note = note

    def show_rows(
        self, n_rows: int, row: RowRenderer, head: Callable[[int], Line], place: int
    ) -> None:
        """Show other rows, with the mark at a place or the last row before it."""
        self._n_rows, self._row, self._head = n_rows, row, head
        self.place = min(max(place, 0), max(n_rows - 1, 0))
        self._resize()
        self._follow()

    def show_text(self, text: Callable[[int], list[Line]]) -> None:
        """Show lines in the place of rows and head, such as why there are none."""
        self._text = text
        self.show_rows(0, lambda *_: EMPTY, lambda _: EMPTY, 0)

    def mark(self, place: int) -> None:
        """Mark a row and bring it in sight."""
        self._go(place)

    def on_resize(self) -> None:
        self._resize()
        self._follow()

    def content_strip(self, y: int, width: int) -> Strip:
        if not self._n_rows:
            return self.strip(next(iter(self._text(width)[y : y + 1]), EMPTY), width)
        if y < HEAD_HEIGHT:
            return self.strip((Run(" " * MARKER_WIDTH), *self._head(width - MARKER_WIDTH)), width)
        place = y - HEAD_HEIGHT + self.scroll_offset.y
        if place >= self._n_rows:
            return self.strip(EMPTY, width)
        marker = Run("▸ " if place == self.place else "  ", "accent")
        return self.strip((marker, *self._row(place, width - MARKER_WIDTH)), width)

    def action_move(self, step: int) -> None:
        """Go a row up or down."""
        self._go(self.place + step)

    def action_page(self, pages: int) -> None:
        """Go a page up or down."""
        self._go(self.place + pages * max(self.size.height - HEAD_HEIGHT, 1))

    def action_go(self, place: int) -> None:
        """Go to the first row or the last."""
        self._go(place % self._n_rows if self._n_rows else 0)

    def on_click(self, event: events.Click) -> None:
        y = event.y - self.gutter.top - HEAD_HEIGHT
        if y >= 0 and y + self.scroll_offset.y < self._n_rows:
            self._go(y + self.scroll_offset.y)

    def _go(self, place: int) -> None:
        self.place = min(max(place, 0), max(self._n_rows - 1, 0))
        self._follow()
        self.refresh()
        self.post_message(self.Marked(self.place))

    def _resize(self) -> None:
        self.virtual_size = Size(self.size.width, self._n_rows + HEAD_HEIGHT)
        n_below = self._n_rows - (self.size.height - HEAD_HEIGHT)
        more = f"{self._n_rows} rows: arrows and page keys" if n_below > 0 else ""
        note = self._note if self._n_rows else ""
        self.set_frame(hint=" · ".join(filter(None, (more, note))))
        self.refresh()

    def _follow(self) -> None:
        """Scroll so far that the mark is in sight."""
        top, height = self.scroll_offset.y, self.size.height - HEAD_HEIGHT
        if self.place < top:
            self.scroll_to(y=self.place, animate=False)
        elif height > 0 and self.place >= top + height:
            self.scroll_to(y=self.place - height + 1, animate=False)
