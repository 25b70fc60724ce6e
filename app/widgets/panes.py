"""Texts that scroll: a pager, the outcome of a plan, one side of a comparison."""

from collections.abc import Callable

from textual.geometry import Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app import format as fmt
from app.compare.comparison import Answer
from app.render.lines import Line, wrapped
from app.render.plan import STYLES
from app.render.transcript import TINT_STYLES, TintedText, TintMode
from app.widgets.ink import FRAME_INKS, PANEL_INKS, Ink, ink_classes


class Pager(ScrollView, Ink, can_focus=True):
    """Shows what a function gives for a width."""

    COMPONENT_CLASSES = ink_classes((*FRAME_INKS, "muted", "strong", "accent", "heading-minor"))
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(
        self,
        render: Callable[[int], list[Line]],
        *,
        title: str = "",
        id: str | None = None,  # noqa: A002  Textual's own name
    ) -> None:
        super().__init__(id=id)
        self.frame_title = title
        self._render_lines = render
        self._lines: list[Line] = []

    def on_resize(self) -> None:
        self._lines = self._render_lines(self.size.width)
        self.virtual_size = Size(self.size.width, len(self._lines))
        self.refresh()

    def content_strip(self, y: int, width: int) -> Strip:
        y += self.scroll_offset.y
        return self.strip(self._lines[y] if y < len(self._lines) else (), width)


class PlanReport(ScrollView, Ink, can_focus=False):
    """Shows the lines that a function gives for a width."""

    COMPONENT_CLASSES = ink_classes((*PANEL_INKS, *STYLES, "heading-minor"))
    # A change of the number of lines moves nothing else.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(
        self,
        *,
        title: str = "",
        pages: bool = True,
        id: str | None = None,  # noqa: A002  Textual's
    ) -> None:
        """Show nothing yet.

        Args:
            title: Stands in the frame.
            pages: Whether the screen's page keys move it, as the frame says then.
            id: Its name in the style sheets.
        """
        super().__init__(id=id)
        self._hint_key = ": pgdn" if pages else ""
        self.frame_title = title
        self._render_lines: Callable[[int], list[Line]] = lambda _: []
        self.lines: list[Line] = []

    def present(self, render: Callable[[int], list[Line]]) -> None:
        """Show other lines, and keep the place."""
        self._render_lines = render
        self._paint()

    def on_resize(self) -> None:
        self._paint()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._hint()

    def content_strip(self, y: int, width: int) -> Strip:
        y += self.scroll_offset.y
        return self.strip(self.lines[y] if y < len(self.lines) else (), width)

    def _paint(self) -> None:
        if not self.size.width:
            return
        self.lines = self._render_lines(self.size.width)
        self.virtual_size = Size(self.size.width, len(self.lines))
        self._hint()
        self.refresh()

    def _hint(self) -> None:
        n_below = len(self.lines) - self.size.height - self.scroll_offset.y
        self.set_frame(
            hint=f"{fmt.counted(n_below, 'line')} below{self._hint_key}" if n_below > 0 else ""
        )


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
            new = answer.spans[len(self._text.spans) :]
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
