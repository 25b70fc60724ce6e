"""Find in the shown chat: every match is marked, and keys go from one to the next."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from app.format import count, counted
from app.widgets.transcript import Transcript


class FindBar(Horizontal):
    """A search box above the transcript."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "next(-1)", "Before", id="find-before",
                tooltip="Go to the previous match (enter does the same)"),
        Binding("down", "next(1)", "Next", id="find-next", tooltip="Go to the next match"),
    ]  # fmt: skip

    def __init__(self, transcript: Transcript, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self._transcript = transcript
        self._box = Input(placeholder="find in this chat", id="find-box", compact=True)
        self._count = Static(id="find-count", markup=False)
        self._keys: list[int] = []
        """Messages that contain the text, oldest first."""
        self._at = 0
        """Which of them is shown."""
        self._line = 0
        """Which of the lines with the text in that message is shown."""

    def compose(self) -> ComposeResult:
        yield self._box
        yield self._count

    def open(self, text: str | None = None) -> None:
        """Show the search box with a text; None is the text of the last search."""
        self.display = True
        if text is not None:
            self._box.value = text
        self._box.focus()
        self._search()

    def close(self) -> bool:
        """Hide the search box and the marks; False if it was hidden."""
        was_open = self.display
        if was_open:
            self.display = False
            self._transcript.mark_text("")
            self._transcript.focus()
        return was_open

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if self.display:
            self._search()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self.action_next(-1)

    def action_next(self, step: int) -> None:
        """Go to the next or previous line with the text; after the end, continue at the start."""
        if not self._keys:
            return
        lines = self._transcript.lines_with(self._keys[self._at], self._box.value)
        if 0 <= self._line + step < len(lines):
            self._line += step
        else:
            self._at = (self._at + step) % len(self._keys)
            self._line = 0 if step > 0 else -1
        self._show()

    def _search(self) -> None:
        """Find the messages, and show the last line with the text."""
        self._transcript.mark_text(self._box.value)
        self._keys = self._transcript.keys_with(self._box.value)
        self._at, self._line = len(self._keys) - 1, -1
        self._show()

    def _show(self) -> None:
        text = self._box.value
        if not self._keys:
            self._count.update("nothing found" if text else "up/down: other matches · esc closes")
            return
        key = self._keys[self._at]
        self._transcript.jump_to(key, text, self._line)
        if self._line < 0:
            self._line += len(self._transcript.lines_with(key, text))
        self._count.update(f"{count(self._at + 1)} of {counted(len(self._keys), 'message')}")
