"""Where the user writes: enter sends, ctrl+j begins a new line."""

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea

from app.chat_keys import COMPOSER_KEYS

COMPOSER_IDS = {key.id for key in COMPOSER_KEYS if isinstance(key, Binding)}
PLACEHOLDER = "Ask something  (enter sends, ctrl+j new line)"


class Composer(TextArea):
    """A text area of a few lines that hands its text over on enter."""

    BINDINGS: ClassVar[list[BindingType]] = COMPOSER_KEYS

    @dataclass
    class Submitted(Message):
        """The user sent a text."""

        text: str

    @dataclass
    class Prompted(Message):
        """The user pressed the key that sends, with nothing written."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(
            id=id,
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder=PLACEHOLDER,
        )
        # A blinking cursor repaints the screen twice a second while a reply streams.
        self.cursor_blink = False

    def render_line(self, y: int) -> Strip:
        # Textual 8.2.8 divides by a placeholder's width, which is zero on a tiny screen.
        if self.wrap_width < 1:
            return Strip.blank(self.size.width)
        return super().render_line(y)

    async def _on_key(self, event: events.Key) -> None:
        """Run our keys in their turn, before the text area takes them as text.

        A priority binding would overtake letters that still wait for this widget, and a message
        that is typed fast or pasted would be sent without its end.
        """
        if event.is_printable:
            return
        active = self.screen.active_bindings.get(event.key)
        if active is not None and active.node is self and active.binding.id in COMPOSER_IDS:
            event.stop()
            event.prevent_default()
            await self.run_action(active.binding.action)

    def action_send(self) -> None:
        """Hand the text over, or say that there is none."""
        if self.text.strip():
            self.post_message(self.Submitted(self.text))
        elif not self.text:
            self.post_message(self.Prompted())

    def action_newline(self) -> None:
        """Begin a new line."""
        self.insert("\n")

    def put(self, text: str) -> None:
        """Replace what is written, the cursor at the end."""
        self.text = text
        self.move_cursor(self.document.end)
