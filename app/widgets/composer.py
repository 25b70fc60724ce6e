"""Where the user writes: enter sends, ctrl+j begins a new line."""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widgets import Input, TextArea
from textual.widgets.text_area import Selection

from app.bindings import COMPOSER_KEYS

COMPOSER_IDS = {key.id for key in COMPOSER_KEYS if isinstance(key, Binding)}
PLACEHOLDER = "Ask something  (enter sends, ctrl+j new line)"


class Composer(TextArea):
    """A text area of a few lines; what enter does with its text, the screen knows."""

    BINDINGS: ClassVar[list[BindingType]] = COMPOSER_KEYS

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

    def take(self) -> str:
        """Take out what is written: what is typed from now on is another text."""
        text = self.text
        if text.strip():
            self.begin("")
        return text

    def action_newline(self) -> None:
        """Begin a new line."""
        self.insert("\n")

    def action_copy_or_clear(self) -> None:
        """Copy what is selected; without a selection, empty the composer."""
        if self.selected_text:
            self.action_copy()
        elif self.text and not self.read_only:
            self.put("")
            self.notify("Emptied: ctrl+z brings the text back.", timeout=3)

    def action_line_start_or_all(self) -> None:
        """Go to the start of the line; from there, select all."""
        if self.cursor_at_start_of_line or self.selected_text == self.text:
            self.select_all()
        else:
            self.action_cursor_line_start()

    def undo(self) -> None:
        if self.history.undo_stack:
            self._leave_last_lines()
        super().undo()

    def redo(self) -> None:
        if self.history.redo_stack:
            self._leave_last_lines()
        super().redo()

    def _leave_last_lines(self) -> None:
        """Put the cursor where a line stays: the step itself then puts it where it belongs.

        Textual 8.2.8 looks for it in lines that are gone, where undoing takes a scroll bar away.
        """
        self.selection = Selection.cursor((0, 0))

    def put(self, text: str) -> None:
        """Replace what is written, the cursor at the end; undo brings it back."""
        if text != self.text:
            self.replace(
                text, self.document.start, self.document.end, maintain_selection_offset=False
            )
        self.move_cursor(self.document.end)

    def begin(self, text: str) -> None:
        """Show another text, which undo does not lead back from: it belongs to another chat."""
        self.load_text(text)
        self.move_cursor(self.document.end)


class SearchBox(Input):
    """Where the user writes what is searched."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.to_list", "To the list", id="search-to-list",
                tooltip="From the search to what was found"),
    ]  # fmt: skip
