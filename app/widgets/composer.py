"""The input of the chat: enter sends, ctrl+j begins a new line; a long paste is one line."""

import re
from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from app.bindings import COMPOSER_KEYS, with_keys
from app.chat.attachments import folded, is_long, paste_size, pieces, with_newlines, without_marks

COMPOSER_IDS = {key.id for key in COMPOSER_KEYS if isinstance(key, Binding)}
PLACEHOLDER = (
    "Ask something  ({composer-send} sends, {composer-newline} new line, / commands, @ files)"
)
EMPTIED = "Cleared: {composer-undo} restores the text."
"""Stands in the composer until the next text does."""
_LABEL = re.compile(r"\[paste (\d+): [^\]\n]*\]")


class Composer(TextArea):
    """A text area of a few lines; its screen handles enter.

    A long paste is shown as a label such as `[paste 1: 214 lines pasted]`. A changed label is plain
    text; undo restores the paste.
    """

    BINDINGS: ClassVar[list[BindingType]] = COMPOSER_KEYS

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(
            id=id,
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
        )
        self.recall: Callable[[int], bool] = lambda _: False
        """Moves by that many questions of the chat; False if there is none."""
        self.move_in_list: Callable[[int], bool] = lambda _: False
        """Moves the mark in a list of completions; False without a list."""
        self.complete: Callable[[], bool] = lambda: False
        """Does what tab is for here; False if tab is to move the focus."""
        self._pastes: dict[str, str] = {}
        """Pastes by label."""
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
        top = self.app.screen
        focused = top.focused or top
        if focused is not self:
            # It waited here while an earlier key, such as tab, moved the focus on.
            event.stop()
            event.prevent_default()
            focused._forward_event(events.Key(event.key, event.character))
            return
        is_alt = event.key.startswith("alt+")
        if event.is_printable and not is_alt:
            return
        active = self.screen.active_bindings.get(event.key)
        if active is not None and active.node is self and active.binding.id in COMPOSER_IDS:
            event.stop()
            event.prevent_default()
            await self.run_action(active.binding.action)
        elif is_alt:
            event.prevent_default()  # a terminal sends its letter too, which is no text here

    # --- pastes ---

    async def _on_paste(self, event: events.Paste) -> None:
        event.text = text = with_newlines(event.text)
        if not is_long(text):
            return
        event.stop()
        event.prevent_default()
        self._replace_via_keyboard(self._labelled(text), *self.selection)
        self.focus()

    @property
    def written(self) -> str:
        """The unsent text, with each paste between its marks."""
        return _LABEL.sub(
            lambda match: folded(self._pastes[match[0]]) if match[0] in self._pastes else match[0],
            without_marks(self.text),
        )

    @property
    def pastes(self) -> list[tuple[str, str]]:
        """The folded pastes in the composer: `paste 1` and its text."""
        return [(f"paste {match[1]}", self._pastes[match[0]]) for _, match in self._labels()]

    def action_open_paste(self) -> None:
        """Show the whole text of the paste at the cursor, or of the last one; undo folds it."""
        row, column = self.cursor_location
        labels = self._labels()
        here = [
            (line, match)
            for line, match in labels
            if line == row and match.start() <= column <= match.end()
        ]
        for line, match in here or labels[-1:]:
            start, end = match.span()
            text = self._pastes[match[0]]
            self.replace(text, (line, start), (line, end), maintain_selection_offset=False)
            return
        self.notify("There is no folded paste to expand.", timeout=3)

    def _labels(self) -> list[tuple[int, re.Match[str]]]:
        """The labels of folded pastes, and their lines."""
        found = (
            (row, match)
            for row in range(self.document.line_count)
            for match in _LABEL.finditer(self.document.get_line(row))
        )
        return [(row, match) for row, match in found if match[0] in self._pastes]

    def _labelled(self, text: str) -> str:
        number = len(self._pastes) + 1
        label = f"[paste {number}: {paste_size(text)}]"
        self._pastes[label] = without_marks(text)
        return label

    def _shown(self, written: str) -> str:
        parts = pieces(written)
        return "".join(self._labelled(part) if is_paste else part for part, is_paste in parts)

    # --- its text ---

    def action_newline(self) -> None:
        self.insert("\n")

    def action_copy_or_clear(self) -> None:
        """Copy what is selected; without a selection, empty the composer."""
        if self.selected_text:
            self.action_copy()
        elif self.text:
            self.put("")
            self.placeholder = with_keys(EMPTIED, self.app)

    def action_line_start_or_all(self) -> None:
        """Go to the start of the line; from there, select all."""
        home = self.get_cursor_line_start_location(smart_home=True)
        is_all = self.selected_text == self.text
        if self.cursor_at_start_of_line or self.cursor_location == home or is_all:
            self.select_all()
        else:
            self.action_cursor_line_start()

    def action_complete(self) -> None:
        """Write the marked completion, or go on to what stands next."""
        if not self.complete():
            self.screen.focus_next()

    def action_older(self) -> None:
        """Go a line up; from the first, to what waits or was asked before."""
        if self.move_in_list(-1):
            return
        if not self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_cursor_up()
        elif not self.recall(1):
            self.action_cursor_line_start()

    def action_newer(self) -> None:
        """Go a line down; from the last, forward to what was written."""
        if self.move_in_list(1):
            return
        if not self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_cursor_down()
        elif not self.recall(-1):
            self.action_cursor_line_end()

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

    def put(self, written: str) -> None:
        """Replace what is written, the cursor at the end; undo brings it back."""
        if written != self.written:
            text = self._shown(written)
            self.replace(
                text, self.document.start, self.document.end, maintain_selection_offset=False
            )
        self.move_cursor(self.document.end)

    def begin(self, written: str) -> None:
        """Show another text, which undo does not lead back from: it belongs to another chat."""
        self._pastes = {}
        self.load_text(self._shown(written))
        self.move_cursor(self.document.end)
