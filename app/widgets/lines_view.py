"""Lines that scroll: a plan, a preview, the help, one side of a comparison."""

from collections.abc import Callable

from textual.geometry import Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.format import counted
from app.render.lines import Line
from app.widgets.ink import Ink


class LinesView(ScrollView, Ink, can_focus=False):
    """Shows the lines that a function makes for a width."""

    # A change of the number of lines moves nothing else.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    def __init__(
        self,
        render: Callable[[int], list[Line]] = lambda _: [],
        *,
        title: str = "",
        below: str | None = ": pgdn",
        follows: bool = False,
        can_focus: bool = False,
        id: str | None = None,  # noqa: A002  Textual's own name
    ) -> None:
        """Show the lines of a function.

        Args:
            render: Makes the lines for a width.
            title: Stands in the frame.
            below: Stands in the frame behind the number of lines below; None leaves both out.
            follows: Whether new lines scroll into sight while the end is.
            can_focus: Whether its own keys scroll it.
            id: Its name in the style sheets.
        """
        super().__init__(id=id)
        self.frame_title = title
        self.can_focus = can_focus
        self._below = below
        self._follows = follows
        self._render_lines = render
        self.lines: list[Line] = []

    def present(self, render: Callable[[int], list[Line]]) -> None:
        """Show other lines, and keep the position."""
        self._render_lines = render
        self._lay_out()

    def page(self, pages: int) -> None:
        """Scroll by pages; a negative number scrolls up."""
        self.scroll_relative(y=pages * max(self.size.height - 1, 1), animate=False)

    def on_resize(self) -> None:
        self._lay_out()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._count_below()

    def content_strip(self, y: int, width: int) -> Strip:
        y += self.scroll_offset.y
        return self.strip(self.lines[y] if y < len(self.lines) else (), width)

    def _lay_out(self) -> None:
        if not self.size.width:
            return
        was_at_end = self.is_vertical_scroll_end
        self.lines = self._render_lines(self.size.width)
        self.virtual_size = Size(self.size.width, len(self.lines))
        if self._follows and was_at_end:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        self._count_below()
        self.refresh()

    def _count_below(self) -> None:
        if self._below is not None:
            n_below = len(self.lines) - self.size.height - self.scroll_offset.y
            hint = f"{counted(n_below, 'line')} below{self._below}" if n_below > 0 else ""
            self.set_frame(hint=hint)
