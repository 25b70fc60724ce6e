"""One side of a comparison: its text as it comes, in the colours of where tokens came from."""

from textual.geometry import Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.compare.answer import Answer
from app.render.lines import Line, wrapped
from app.render.transcript import TINT_STYLES, TintedText, TintMode
from app.widgets.ink import FRAME_INKS, Ink, ink_classes


class AnswerPane(ScrollView, Ink, can_focus=True):
    """Shows an answer and stays at its end while it grows, unless the user scrolls away."""

    COMPONENT_CLASSES = ink_classes((*FRAME_INKS, "muted", "note", *TINT_STYLES))
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.tint: TintMode = "source"
        self._answer: Answer | None = None
        self._text = TintedText(self.tint)
        self._lines: list[Line] = []

    def present(self, answer: Answer | None) -> None:
        """Show an answer as it is now."""
        is_other = answer is not self._answer or self.tint != self._text.mode
        if is_other:
            self._answer = answer
            self._text = TintedText(self.tint)
        if answer is not None:
            new = answer.pieces[len(self._text.pieces) :]
            if not new and not is_other:
                return
            self._text.append(new)
        self._lay_out()

    @property
    def text(self) -> list[Line]:
        """The lines that are laid out."""
        return self._lines

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.size.width
        if width <= 0:
            return
        was_at_end = self.is_vertical_scroll_end
        self._lines = self._text.lines(width) if self._answer is not None else []
        if self._text.legend:
            self._lines = [*self._lines, (), *wrapped(self._text.legend, width)]
        self.virtual_size = Size(width, len(self._lines))
        if was_at_end:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        self.refresh()

    def content_strip(self, y: int, width: int) -> Strip:
        y += self.scroll_offset.y
        return self.strip(self._lines[y] if y < len(self._lines) else (), width)
