"""The knobs of the planner, by keyboard and mouse."""

from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from app.planning.knobs import KNOBS, Knob
from app.planning.plan import Setup
from app.render.plan_knobs import LABEL_WIDTH, KnobLine, KnobState, knob_lines
from app.widgets.ink import FRAME_INKS, InkLines, ink_classes

FIRST_KEYS = "0123456789"
"""Keys that begin to type a value at once; the others have meanings of their own."""


class PlanKnobs(InkLines, can_focus=True):
    """Rows to choose from; what is done with them is told in messages."""

    COMPONENT_CLASSES = ink_classes((*FRAME_INKS, "muted", "strong", "accent", "bad"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "Up", id="planner-up", show=False, tooltip="The knob above"),
        Binding("down,j", "choose(1)", "Down", id="planner-down", show=False,
                tooltip="The knob below"),
        Binding("left,minus", "turn(-1)", "Less", id="planner-less", show=False,
                tooltip="Turn the knob back"),
        Binding("right,plus", "turn(1)", "More", id="planner-more", show=False,
                tooltip="Turn the knob on"),
        Binding("space", "type", "Type", id="planner-type", tooltip="Type a value; digits do too"),
    ]  # fmt: skip

    @dataclass
    class Turned(Message):
        """A knob shall go a step on or back."""

        knob: Knob
        step: int

    @dataclass
    class Typed(Message):
        """A value was typed for a knob."""

        knob: Knob
        text: str

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.frame_title = "knobs"
        self._setup: Setup | None = None
        self._state = KnobState()
        self._shown: list[KnobLine] = []

    @property
    def knob(self) -> Knob:
        """The chosen one."""
        return KNOBS[self._state.selected]

    @property
    def is_typing(self) -> bool:
        """Whether a value is being typed."""
        return self._state.typed is not None

    def present(self, setup: Setup, problem: str = "") -> None:
        """Show the values of a setup, and what is wrong with what was typed."""
        self._setup = setup
        self._change(typed=self._state.typed if problem else None, problem=problem)

    def on_resize(self) -> None:
        super().on_resize()
        self._paint()

    def on_blur(self) -> None:
        self._change(typed=None, problem="")

    # --- keys ---

    def action_choose(self, step: int) -> None:
        """Go to another knob."""
        self._select((self._state.selected + step) % len(KNOBS))

    def action_turn(self, step: int) -> None:
        """Turn the chosen knob."""
        self.post_message(self.Turned(self.knob, step))

    def action_type(self) -> None:
        """Begin to type a value; a knob without typed values is turned on."""
        if self.knob.read is None:
            self.action_turn(1)
        else:
            self._change(typed="", problem="")

    def on_key(self, event: events.Key) -> None:
        if not self.is_typing:
            if event.character is None or event.character not in FIRST_KEYS:
                return
            if self.knob.read is None:
                return
            self._change(typed="", problem="")
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
                self.post_message(self.Typed(self.knob, typed))
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
        y = event.y - self.gutter.top
        place = self._shown[y].place if 0 <= y < len(self._shown) else None
        if place is None:
            return
        if place != self._state.selected:
            self._select(place)
            return
        x = event.x - self.gutter.left
        if x >= self.size.width - 2:
            self.action_turn(1)
        elif x >= LABEL_WIDTH:
            self.action_turn(-1) if self._is_left_arrow(x) else self.action_type()

    def _is_left_arrow(self, x: int) -> bool:
        if self._setup is None or self.is_typing:
            return False
        width = len(self.knob.shown(self._setup)) + 4
        return x < self.size.width - width + 2

    # --- painting ---

    def _select(self, place: int) -> None:
        self._state = KnobState(place)
        self._paint()

    def _change(self, *, typed: str | None, problem: str) -> None:
        self._state = replace(self._state, typed=typed, problem=problem)
        self._paint()

    def _paint(self) -> None:
        if self._setup is None or not self.size.width:
            return
        size = self.size
        self._shown = knob_lines(KNOBS, self._setup, self._state, size.width, size.height)
        self.show([shown.line for shown in self._shown])
