"""The outcome of a plan: lines that are painted anew in place, and scroll where they are many."""

from collections.abc import Callable

from textual.geometry import Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.render import format as fmt
from app.render.lines import Line
from app.render.plan import STYLES
from app.widgets.ink import PANEL_INKS, Ink, ink_classes


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
