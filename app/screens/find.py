"""Find in the shown chat: every match is marked, and keys go from one to the next."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from app.format import count, counted
from app.widgets.transcript import Transcript


class FindBox(Input):
    """Where the user writes what is looked for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "screen.find_next(-1)", "Before", id="find-before",
                tooltip="Go to the previous match, as enter does"),
        Binding("down", "screen.find_next(1)", "Next", id="find-next", tooltip="Go to the next "
                                                                               "match"),
    ]  # fmt: skip


class FindBar(Horizontal):
    """A line above the transcript while something is looked for."""

    def __init__(self, transcript: Transcript, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self._transcript = transcript
        self._keys: list[int] = []
        """Messages that hold the text, oldest first."""
        self._at = 0
        """Which of them is shown."""
        self._line = 0
        """Which of the lines with the text in that message is shown."""

    def compose(self) -> ComposeResult:
        yield FindBox(placeholder="find in this chat", id="find-box", compact=True)
        yield Static(id="find-count", markup=False)

    @property
    def _box(self) -> FindBox:
        return self.query_one(FindBox)

    @property
    def text(self) -> str:
        """What is looked for."""
        return self._box.value

    def open(self, text: str | None = None) -> None:
        """Show the line; a text is looked for at once, None keeps the one before."""
        self.display = True
        if text is not None:
            self._box.value = text
        self._box.focus()
        self._look()

    def close(self) -> bool:
        """Hide the line and mark nothing any more; False where it was not there."""
        was_open = self.display
        if was_open:
            self.display = False
            self._transcript.mark_text("")
            self._transcript.focus()
        return was_open

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if self.display:
            self._look()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self.next(-1)

    def next(self, step: int) -> None:
        """Go to the next place with the text, or the one before; from the end to the start."""
        if not self._keys:
            return
        lines = self._transcript.lines_with(self._keys[self._at], self.text)
        if 0 <= self._line + step < len(lines):
            self._line += step
        else:
            self._at = (self._at + step) % len(self._keys)
            self._line = 0 if step > 0 else -1
        self._show()

    def _look(self) -> None:
        """Find the messages, and show the last place of all."""
        self._transcript.mark_text(self.text)
        self._keys = self._transcript.keys_with(self.text)
        self._at, self._line = len(self._keys) - 1, -1
        self._show()

    def _show(self) -> None:
        status = self.query_one("#find-count", Static)
        if not self._keys:
            status.update("nothing found" if self.text else "up/down: matches · esc closes")
            return
        key = self._keys[self._at]
        self._transcript.jump_to(key)  # which lays it out
        lines = self._transcript.lines_with(key, self.text)
        if lines:
            self._line %= len(lines)
            self._transcript.show_line(lines[self._line])
        status.update(f"{count(self._at + 1)} of {counted(len(self._keys), 'message')}")
