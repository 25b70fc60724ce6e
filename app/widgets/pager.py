"""A text that scrolls: lines made for whatever width there is."""

from collections.abc import Callable

from textual.geometry import Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.render.lines import Line
from app.widgets.ink import FRAME_INKS, Ink, ink_classes


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
