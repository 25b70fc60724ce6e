"""The planner's options and its table of cache types and contexts."""

from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from app.render.plan import CELL_WIDTH, n_columns, table_lines
from app.render.plan import LABEL_WIDTH as TABLE_LABEL_WIDTH
from app.render.plan_changes import LABEL_WIDTH, OptionLine, OptionState, option_sheet
from app.widgets.ink import InkLines
from engine.planning.changes import OptionSteps
from engine.planning.options import OPTIONS, PlanOption
from engine.planning.planner import Facts, Setup
from engine.planning.table import CostTable

FIRST_KEYS = "0123456789"
"""Keys that begin to type a value at once; the others have meanings of their own."""


class PlanOptions(InkLines, can_focus=True):
    """Rows to choose from; messages carry what is done with them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "Up", id="planner-up", show=False,
                tooltip="Go to the setting above"),
        Binding("down,j", "choose(1)", "Down", id="planner-down", show=False,
                tooltip="Go to the setting below"),
        Binding("home", "choose_end(0)", "First", id="planner-first", show=False,
                tooltip="Go to the first setting"),
        Binding("end", "choose_end(-1)", "Last", id="planner-last", show=False,
                tooltip="Go to the last setting"),
        Binding("left,minus", "turn(-1)", "Less", id="planner-less", show=False,
                tooltip="Choose the previous value"),
        Binding("right,plus", "turn(1)", "More", id="planner-more", show=False,
                tooltip="Choose the next value"),
        Binding("space", "type", "Type", id="planner-type", show=False,
                tooltip="Type a value; pressing a digit also starts typing"),
    ]  # fmt: skip

    @dataclass
    class Turned(Message):
        """An option shall go a step on or back."""

        option: PlanOption
        step: int

    @dataclass
    class Typed(Message):
        """A value was typed for an option."""

        option: PlanOption
        text: str

    @dataclass
    class Focused(Message):
        """Another option was chosen."""

        option: PlanOption

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.frame_title = "settings"
        self._setup: Setup | None = None
        self._facts: Facts | None = None
        self._steps: OptionSteps | None = None
        self._state = OptionState()
        self._shown: list[OptionLine] = []

    @property
    def option(self) -> PlanOption:
        """The chosen one."""
        return OPTIONS[self._state.selected]

    @property
    def index(self) -> int:
        """Which of all options is the chosen one."""
        return self._state.selected

    @property
    def is_typing(self) -> bool:
        """Whether a value is being typed."""
        return self._state.typed is not None

    def present(self, setup: Setup, facts: Facts, problem: str = "") -> None:
        """Show the values of a setup, and what is wrong with what was typed."""
        self._setup, self._facts, self._steps = setup, facts, None
        self._change(typed=self._state.typed if problem else None, problem=problem)

    def present_steps(self, steps: OptionSteps) -> None:
        """Show what a step of the chosen option would change."""
        self._steps = steps
        self._paint()

    def on_resize(self) -> None:
        super().on_resize()
        self._paint()

    def on_blur(self) -> None:
        self._change(typed=None, problem="")

    # --- keys ---

    def action_choose(self, step: int) -> None:
        """Go to another option."""
        self._select((self._state.selected + step) % len(OPTIONS))

    def action_choose_end(self, index: int) -> None:
        """Go to the first option or the last."""
        self._select(index % len(OPTIONS))

    def action_turn(self, step: int) -> None:
        """Turn the chosen option; an idle one says why it does nothing."""
        reason = self._idle_reason()
        if reason:
            self._change(typed=None, problem=reason)
        else:
            self.post_message(self.Turned(self.option, step))

    def action_type(self) -> None:
        """Begin to type a value; an option without effect shows why instead."""
        if self._idle_reason():
            self.action_turn(1)
        else:
            self._change(typed="", problem="")

    def _idle_reason(self) -> str:
        if self._setup is None or self._facts is None:
            return ""
        return self.option.disabled_reason(self._setup, self._facts)

    def on_key(self, event: events.Key) -> None:
        if not self.is_typing:
            if event.character is None or event.character not in FIRST_KEYS:
                return
            self.action_type()
            if not self.is_typing:
                return
        if event.key in ("up", "down"):
            self._change(typed=None, problem="")
            return
        event.stop()
        event.prevent_default()
        self._edit(event)

    def on_paste(self, event: events.Paste) -> None:
        if self.is_typing:
            self._change(typed=f"{self._state.typed}{event.text.strip()}", problem="")
            event.stop()

    def _edit(self, event: events.Key) -> None:
        typed = self._state.typed or ""
        match event.key:
            case "enter" if typed.strip():
                self.post_message(self.Typed(self.option, typed))
            case "enter" | "escape":
                self._change(typed=None, problem="")
            case "backspace":
                self._change(typed=typed[:-1], problem="")
            case "ctrl+u":
                self._change(typed="", problem="")
            case _ if event.is_printable and event.character:
                self._change(typed=typed + event.character, problem="")

    # --- mouse ---

    def on_click(self, event: events.Click) -> None:
        index, x = self._place_of(event)
        if index is None:
            return
        if index != self._state.selected:
            self._select(index)
        if x >= LABEL_WIDTH and not self.is_typing:
            self._click_value(x)

    def _click_value(self, x: int) -> None:
        """Turn at the arrows, type between them."""
        if self._setup is None:
            return
        width = self.size.width
        shown = min(len(self.option.format(self._setup)), width - LABEL_WIDTH - 4)
        if x >= width - 2:
            self.action_turn(1)
        elif x < width - 2 - shown:
            self.action_turn(-1)
        else:
            self.action_type()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, -1)

    def _wheel(self, event: events.MouseEvent, step: int) -> None:
        """Turn the chosen option under the mouse; beside it, go through the rows."""
        event.stop()
        index, x = self._place_of(event)
        if index == self._state.selected and x >= LABEL_WIDTH:
            if self.option.chooser is None:
                self.action_turn(step)
        else:
            last = len(OPTIONS) - 1
            self._select(min(max(self._state.selected - step, 0), last))

    def _place_of(self, event: events.MouseEvent) -> tuple[int | None, int]:
        """The option under the mouse, if there is one, and the column."""
        x, y = event.get_content_offset_capture(self)
        return self._shown[y].index if 0 <= y < len(self._shown) else None, x

    # --- painting ---

    def _select(self, index: int) -> None:
        self._state = OptionState(index, first=self._state.first)
        self._steps = None
        self._paint()
        self.post_message(self.Focused(self.option))

    def _change(self, *, typed: str | None, problem: str) -> None:
        self._state = replace(self._state, typed=typed, problem=problem)
        self._paint()

    def _paint(self) -> None:
        if self._setup is None or self._facts is None or not self.size.width:
            return
        size = self.size
        sheet = option_sheet(
            OPTIONS, self._setup, self._facts, self._state, size.width, size.height, self._steps
        )
        self._shown = sheet.lines
        self._state = replace(self._state, first=sheet.first)
        parts = (f"{sheet.n_above} ▴" if sheet.n_above else "",
                 f"{sheet.n_below} ▾" if sheet.n_below else "")  # fmt: skip
        self.set_frame(hint=" ".join(filter(None, parts)))
        self.show([shown.line for shown in self._shown])


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
        """A cell shall become the plan."""

        setup: Setup

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.frame_title = "memory by K/V type and context"
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
        x, y = event.get_content_offset_capture(self)
        row, column = y - 1, (x - TABLE_LABEL_WIDTH) // CELL_WIDTH
        table = self._table
        if table and 0 <= row < len(table.rows) and 0 <= column < len(table.contexts):
            self._choose(row, column)

    def _choose(self, y: int, x: int) -> bool:
        table, setup = self._table, self._setup
        if table is None or setup is None or table.rows[y].cells[x].total_bytes is None:
            return False
        self.post_message(self.Chosen(table.setup_at(setup, y, x)))
        return True
