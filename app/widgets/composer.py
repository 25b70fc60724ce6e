"""Where the user writes: enter sends, ctrl+j begins a new line."""

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

PLACEHOLDER = "Ask something  (enter sends, ctrl+j new line)"


class Composer(TextArea):
    """A text area of a few lines that hands its text over on enter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="send", priority=True, show=False,
                tooltip="Send the message"),
        Binding("ctrl+j,alt+enter,shift+enter", "newline", "New line", id="newline", show=False,
                priority=True, tooltip="Begin a new line in the message"),
    ]  # fmt: skip

    @dataclass
    class Submitted(Message):
        """The user sent a text."""

        text: str

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

    def action_send(self) -> None:
        """Hand the text over; an empty one stays."""
        if self.text.strip():
            self.post_message(self.Submitted(self.text))

    def action_newline(self) -> None:
        """Begin a new line."""
        self.insert("\n")

    def put(self, text: str) -> None:
        """Replace what is written, the cursor at the end."""
        self.text = text
        self.move_cursor(self.document.end)
