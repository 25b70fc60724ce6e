"""The planner's list of options, and its table of K/V types and contexts."""

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from app.render.plan import CELL_WIDTH, LABEL_WIDTH, n_columns, table_lines
from app.render.plan_changes import VALUE_COLUMN
from app.widgets.ink import InkLines
from app.widgets.select_list import MARKER_WIDTH, SelectList
from engine.planning.planner import Setup
from engine.planning.table import CostTable


class OptionList(SelectList):
    """Options whose values are stepped and typed; messages report both."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,minus", "step(-1)", "Less", id="planner-less", show=False,
                tooltip="Choose the previous value"),
        Binding("right,plus", "step(1)", "More", id="planner-more", show=False,
                tooltip="Choose the next value"),
        Binding("space", "type('')", "Type", id="planner-type", show=False,
                tooltip="Type a value; pressing a digit also starts typing"),
    ]  # fmt: skip

    @dataclass
    class Stepped(Message):
        """The highlighted option goes to the next (1) or the previous (-1) value."""

        step: int

    @dataclass
    class Typed(Message):
        """A value is typed; its first characters."""

        text: str

    def action_step(self, step: int) -> None:
        self.post_message(self.Stepped(step))

    def action_type(self, text: str) -> None:
        self.post_message(self.Typed(text))

    def on_key(self, event: events.Key) -> None:
        if event.character is not None and event.character in "0123456789":
            event.stop()
            self.action_type(event.character)

    def on_click(self, event: events.Click) -> None:
        """Step at the arrows of the highlighted row; the list handles other clicks."""
        x = event.get_content_offset_capture(self).x
        step = 1 if x >= self.size.width - 2 else -1
        is_arrow = step > 0 or 0 <= x - MARKER_WIDTH - VALUE_COLUMN < 2
        if is_arrow and self.row_under(event) == self.index:
            event.prevent_default()
            self.action_step(step)


class PlanTable(InkLines, can_focus=True):
    """Cells to go to with the arrows or the mouse; a message carries the chosen one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1, 0)", "Better", id="planner-table-up", show=False,
                tooltip="Go to more precise K/V types"),
        Binding("down,j", "move(1, 0)", "Smaller", id="planner-table-down", show=False,
                tooltip="Go to smaller K/V types"),
        Binding("left", "move(0, -1)", "Shorter", id="planner-table-left", show=False,
                tooltip="Go to a shorter context"),
        Binding("right", "move(0, 1)", "Longer", id="planner-table-right", show=False,
                tooltip="Go to a longer context"),
    ]  # fmt: skip

    @dataclass
    class Chosen(Message):
        """A cell becomes the plan."""

        setup: Setup

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.frame_title = "memory by K/V type and context"
        self._table: CostTable | None = None
        self._setup: Setup | None = None

    @property
    def n_columns(self) -> int:
        """Number of context columns that fit into the width."""
        return n_columns(self.size.width)

    @property
    def contexts(self) -> tuple[int, ...]:
        """The contexts shown."""
        return () if self._table is None else self._table.contexts

    def present(self, table: CostTable | None, setup: Setup | None) -> None:
        """Show another table; None empties it."""
        self._table, self._setup = table, setup
        self.show([] if table is None else table_lines(table))

    def action_move(self, down: int, right: int) -> None:
        """Go to the next cell that llama.cpp supports."""
        if self._table is None:
            return
        y, x = self._table.current
        while not self._choose(y := y + down, x := x + right):
            if not (0 <= y < len(self._table.rows) and 0 <= x < len(self._table.contexts)):
                return

    def on_click(self, event: events.Click) -> None:
        x, y = event.get_content_offset_capture(self)
        self._choose(y - 1, (x - LABEL_WIDTH) // CELL_WIDTH)

    def _choose(self, y: int, x: int) -> bool:
        """Choose a cell; False outside of the table and for a configuration that is refused."""
        table, setup = self._table, self._setup
        if table is None or setup is None:
            return False
        is_inside = 0 <= y < len(table.rows) and 0 <= x < len(table.contexts)
        if not is_inside or table.rows[y].cells[x].total_bytes is None:
            return False
        self.post_message(self.Chosen(table.setup_at(setup, y, x)))
        return True
