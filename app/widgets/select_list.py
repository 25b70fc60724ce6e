"""A list of rows to choose one from; only visible rows are made."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Generic, TypeVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.format import counted
from app.matching import is_meant
from app.render.lines import EMPTY, Line, Run, clipped
from app.widgets.ink import Ink, highlighted

MARKER_WIDTH = 2
"""Cells at the left for the sign of the highlighted row."""

Key = TypeVar("Key")
LineOf = Callable[[int], Line]
"""Makes a line for a width."""


@dataclass(frozen=True, slots=True)
class Row(Generic[Key]):
    """A row of one line or two."""

    key: Key
    """Identifies the row, so that the highlight stays on it when other rows are shown."""
    line: LineOf
    below: LineOf | None = None
    """Second line of the row."""
    words: str = ""
    """Lower-case text that a search matches; empty for rows that are neither found nor counted."""
    is_enabled: bool = True
    """Whether keys and mouse can highlight it."""

    def is_meant(self, typed: Iterable[str]) -> bool:
        """Whether each typed word, or its letters in order, is in one of the row's words."""
        own = self.words.split()
        return all(any(is_meant(word, each) for word in own) for each in typed)

    @classmethod
    def of(cls, key: Key, *runs: Run, words: str = "") -> "Row[Key]":
        """A row with one line that is clipped."""
        return cls(key, partial(clipped, runs), words=words)


class SelectList(ScrollView, Ink, can_focus=True):
    """A list with one marked row; messages carry which row is marked and which is picked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="rows-up", show=False, tooltip="Go to the row above"),
        Binding("down", "move(1)", "Down", id="rows-down", show=False, tooltip="Go to the row "
                                                                               "below"),
        Binding("pageup", "page(-1)", "Page up", id="rows-page-up", show=False,
                tooltip="Go up one page"),
        Binding("pagedown", "page(1)", "Page down", id="rows-page-down", show=False,
                tooltip="Go down one page"),
        Binding("home", "go(0)", "First", id="rows-first", show=False, tooltip="Go to the first "
                                                                               "row"),
        Binding("end", "go(-1)", "Last", id="rows-last", show=False, tooltip="Go to the last row"),
        Binding("enter", "pick", "Choose", id="rows-pick", show=False,
                tooltip="Choose the highlighted row"),
    ]  # fmt: skip
    # A change of the number of rows moves nothing else.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    @dataclass
    class Marked(Message):
        """Another row was marked: its key."""

        key: Any

    @dataclass
    class Picked(Message):
        """A row was chosen: its key. The list may show other rows when this is handled."""

        key: Any

    @dataclass
    class Missed(Message):
        """Enter was pressed while there was no row."""

    def __init__(
        self,
        *,
        title: str = "",
        note: str = "",
        click_picks: bool = False,
        id: str | None = None,  # noqa: A002  Textual's own name
    ) -> None:
        """A list without rows.

        Args:
            title: Stands in the frame.
            note: Stands in the frame below the rows, such as what their signs mean.
            click_picks: Whether a click takes a row at once; else it marks the row, and a click on
                the marked one takes it.
            id: Its name in the style sheets.
        """
        super().__init__(id=id)
        self.frame_title = title
        self.index = 0
        """The marked row."""
        self.rows: Sequence[Row[Any]] = ()
        """The listed rows."""
        self._tops: list[int] = [0]
        """First line of each row, and the number of lines at the end."""
        self._head: LineOf | None = None
        self._text: Callable[[int], list[Line]] = lambda _: []
        self._note = note
        self._click_picks = click_picks

    def show_rows(
        self, rows: Sequence[Row[Any]], mark: object = None, *, head: LineOf | None = None
    ) -> None:
        """Show other rows.

        Args:
            rows: What to show.
            mark: Key of the row to mark; None, or a key that no row has, keeps the mark where it
                is: at its key, else at its index.
            head: Names of the columns, which stay above the rows.
        """
        wanted = self.marked_key if mark is None else mark
        n_lines = self._tops[-1]
        self.rows, self._head = rows, head
        self._tops = [0, *accumulate(1 if row.below is None else 2 for row in rows)]
        keys = [row.key for row in rows]
        self.index = keys.index(wanted) if wanted in keys else min(self.index, len(rows) - 1)
        self.index = max(self.index, 0)
        if rows and not rows[self.index].is_enabled:
            self.index = self._enabled(self.index, 1)
        self._lay_out()
        if self.styles.is_auto_height and n_lines != self._tops[-1]:
            self.refresh(layout=True)

    def show_text(self, text: Callable[[int], list[Line]]) -> None:
        """Show lines instead of rows and head, such as why there are none."""
        self._text = text
        self.show_rows(())

    def mark(self, key: object) -> None:
        """Mark the row with a key, if there is one, and bring it into sight."""
        keys = [row.key for row in self.rows]
        if key in keys:
            self._go(keys.index(key))

    @property
    def marked_key(self) -> object:
        """Key of the marked row; None without rows."""
        return self.rows[self.index].key if self.index < len(self.rows) else None

    @property
    def lines(self) -> list[Line]:
        """Every line of the list without the head."""
        return [self._line(y, self.size.width) for y in range(self._tops[-1])]

    # --- keys and mouse ---

    def action_move(self, step: int) -> None:
        """Go a row up or down, from the last to the first."""
        if self.rows:
            self._go(self._enabled(self.index + step, step))

    def action_page(self, pages: int) -> None:
        """Go a page up or down."""
        if self.rows:
            y = self._tops[self.index] + pages * max(self._n_visible - 1, 1)
            self.action_go(self._row_at(min(max(y, 0), self._tops[-1] - 1)) or 0)

    def action_go(self, index: int) -> None:
        """Go to a row, counted from the end where the number is negative."""
        if self.rows:
            self._go(self._enabled(index, -1 if index == -1 else 1))

    def action_pick(self) -> None:
        """Choose the marked row."""
        if not self.rows:
            self.post_message(self.Missed())
        elif self.rows[self.index].is_enabled:
            self.post_message(self.Picked(self.rows[self.index].key))

    def on_click(self, event: events.Click) -> None:
        index = self.row_under(event)
        if index is None or not self.rows[index].is_enabled:
            return
        was_marked = index == self.index
        if not was_marked:
            self._go(index)
        if was_marked or self._click_picks:
            self.action_pick()

    def row_under(self, event: events.MouseEvent) -> int | None:
        """The row under the mouse."""
        y = event.get_content_offset_capture(self).y - self._head_height
        return self._row_at(y + self.scroll_offset.y) if y >= 0 else None

    def _enabled(self, index: int, step: int) -> int:
        """The first row that can be taken, from the given one on; the marked one without any."""
        n = len(self.rows)
        tried = ((index + i * step) % n for i in range(n))
        return next((i for i in tried if self.rows[i].is_enabled), self.index)

    def _go(self, index: int) -> None:
        self.index = index
        self._follow()
        self.refresh()
        self.post_message(self.Marked(self.rows[index].key))

    # --- painting ---

    def on_resize(self) -> None:
        self._lay_out()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._count_below()

    def content_strip(self, y: int, width: int) -> Strip:
        inner = min(width, self.scrollable_content_region.width)
        return self._strip(y, inner).adjust_cell_length(width, self.ink(""))

    def _strip(self, y: int, width: int) -> Strip:
        if not self.rows:
            return self.strip(next(iter(self._text(width)[y : y + 1]), EMPTY), width)
        if self._head is not None and y == 0:
            return self.strip((Run(" " * MARKER_WIDTH), *self._head(width - MARKER_WIDTH)), width)
        y += self.scroll_offset.y - self._head_height
        strip = self.strip(self._line(y, width), width)
        if self._row_at(y) != self.index:
            return strip
        background = Style(bgcolor=self.ink("marked-row").bgcolor)
        return highlighted(strip, 0, -1, background)

    def _line(self, y: int, width: int) -> Line:
        index = self._row_at(y)
        if index is None:
            return EMPTY
        row, is_first = self.rows[index], y == self._tops[index]
        line = row.line if is_first or row.below is None else row.below
        sign = Run("▸ " if is_first and index == self.index else " " * MARKER_WIDTH, "accent")
        return (sign, *line(width - MARKER_WIDTH))

    def _row_at(self, y: int) -> int | None:
        """The row that a line belongs to; None outside of the rows."""
        return bisect_right(self._tops, y) - 1 if 0 <= y < self._tops[-1] else None

    @property
    def _head_height(self) -> int:
        return 0 if self._head is None else 1

    @property
    def _n_visible(self) -> int:
        return self.size.height - self._head_height

    def _lay_out(self) -> None:
        self.virtual_size = Size(self.size.width, self._tops[-1] + self._head_height)
        self._follow()
        self._count_below()
        self.refresh()

    def _count_below(self) -> None:
        last = self.scroll_offset.y + self._n_visible
        n_below = len(self.rows) - bisect_right(self._tops, last) + 1
        below = f"{counted(n_below, 'row')} below" if n_below > 0 and self._n_visible > 0 else ""
        self.set_frame(hint=" · ".join(filter(None, (below, self._note if self.rows else ""))))

    def _follow(self) -> None:
        """Scroll so far that the marked row is in sight."""
        if not self.rows or self._n_visible <= 0:
            return
        first, end = self._tops[self.index], self._tops[self.index + 1]
        if first < self.scroll_offset.y:
            self.scroll_to(y=first, animate=False, force=True)
        elif end > self.scroll_offset.y + self._n_visible:
            self.scroll_to(y=end - self._n_visible, animate=False, force=True)
