"""The table of KV types and contexts: the marked cell is the plan, and can be moved."""

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from app.render.plan import CELL_WIDTH, LABEL_WIDTH, n_columns, table_lines
from app.widgets.ink import FRAME_INKS, InkLines, ink_classes
from engine.planning.planner import Setup
from engine.planning.table import CostTable


class PlanTable(InkLines, can_focus=True):
    """Cells to go to with the arrows or the mouse; a message carries the chosen one."""

    COMPONENT_CLASSES = ink_classes((*FRAME_INKS, "muted", "strong", "good", "warn", "bad"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1, 0)", "Better", id="planner-table-up", show=False,
                tooltip="More exact KV types"),
        Binding("down,j", "move(1, 0)", "Smaller", id="planner-table-down", show=False,
                tooltip="Smaller KV types"),
        Binding("left", "move(0, -1)", "Shorter", id="planner-table-left", show=False,
                tooltip="A shorter context"),
        Binding("right", "move(0, 1)", "Longer", id="planner-table-right", show=False,
                tooltip="A longer context"),
    ]  # fmt: skip

    @dataclass
    class Chosen(Message):
        """A cell shall become the plan."""

        setup: Setup

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.frame_title = "total by KV type and context"
        self._table: CostTable | None = None
        self._setup: Setup | None = None

    @property
    def n_columns(self) -> int:
        """How many contexts have room."""
        return n_columns(self.size.width)

    @property
    def setup(self) -> Setup | None:
        """The plan that is marked."""
        return self._setup

    @property
    def contexts(self) -> tuple[int, ...]:
        """The contexts in sight."""
        return () if self._table is None else self._table.contexts

    def present(self, table: CostTable | None, setup: Setup | None) -> None:
        """Show another table; None empties it."""
        self._table, self._setup = table, setup
        self.show([] if table is None else table_lines(table))

    def on_resize(self) -> None:
        super().on_resize()
        self.show([] if self._table is None else table_lines(self._table))

    def action_move(self, down: int, right: int) -> None:
        """Go to the next cell that llama.cpp takes."""
        if self._table is None:
            return
        y, x = self._table.current
        while True:
            y, x = y + down, x + right
            if not (0 <= y < len(self._table.rows) and 0 <= x < len(self._table.contexts)):
                return
            if self._choose(y, x):
                return

    def on_click(self, event: events.Click) -> None:
        y = event.y - self.gutter.top - 1
        x = (event.x - self.gutter.left - LABEL_WIDTH) // CELL_WIDTH
        table = self._table
        if table and 0 <= y < len(table.rows) and 0 <= x < len(table.contexts):
            self._choose(y, x)

    def _choose(self, y: int, x: int) -> bool:
        table, setup = self._table, self._setup
        if table is None or setup is None or table.rows[y].cells[x].total_bytes is None:
            return False
        self.post_message(self.Chosen(table.setup_at(setup, y, x)))
        return True
