"""Lines of styled text painted with the theme's colours, without a layout pass.

Textual paints a widget line by line through its box model, and does so for every line of a widget
of which one line changed. These widgets keep finished strips and draw their frames themselves,
which takes an answer that streams from 15 % of a core to a third of that.
"""

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from textual.css.styles import RenderStyles
from textual.dom import DOMNode
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from app.format import counted
from app.render.charts import GraphSymbols
from app.render.lines import Line, clipped, frame_bottom, frame_top, width_of


def highlighted(strip: Strip, start: int, end: int, style: Style) -> Strip:
    """The strip with a part of it (in characters, -1 is the end) in another style."""
    segments: list[Segment] = []
    position = 0
    for text, own, _ in strip:
        low = min(max(start - position, 0), len(text))
        high = len(text) if end == -1 else min(max(end - position, low), len(text))
        marked = own + style if own else style
        parts = ((text[:low], own), (text[low:high], marked), (text[high:], own))
        segments += [Segment(part, part_style) for part, part_style in parts if part]
        position += len(text)
    return Strip(segments, strip.cell_length)


class Ink(Widget):
    """A widget that paints lines in the styles of `inks.tcss`.

    A CSS border only reserves the space of the frame, which is drawn here. The styles are no
    component classes, since Textual would compute all of these at each change of a style.
    """

    frame_title: str = ""
    frame_hint: str = ""
    # Textual's own cache of component styles is emptied by every refresh.
    _inks: dict[str, Style] | None = None

    @property
    def symbols(self) -> GraphSymbols:
        """Characters of gauges: those of the settings, on every screen."""
        return getattr(self.app, "symbols", "block")

    def notify_style_update(self) -> None:
        self._inks = None
        self._component_styles.clear()
        self.forget_strips()
        super().notify_style_update()

    def forget_strips(self) -> None:
        """Drop every finished strip: colours or width are others now."""

    def set_frame(self, *, title: str | None = None, hint: str | None = None) -> None:
        """Change the texts of the frame."""
        title = self.frame_title if title is None else title
        hint = self.frame_hint if hint is None else hint
        if (title, hint) != (self.frame_title, self.frame_hint):
            self.frame_title, self.frame_hint = title, hint
            width, height = self.outer_size
            left, top = self.gutter.top_left
            # Regions are counted from the content's corner.
            self.refresh(Region(-left, -top, width, 1), Region(-left, height - top - 1, width, 1))

    def ink(self, style: str) -> Style:
        """The style with the given names, joined by spaces, on this widget's background."""
        if self._inks is None:
            self._inks = {}
        if style not in self._inks:
            names = [f"ink--{name}" for name in style.split()]
            self._inks[style] = self.get_component_rich_style(*names) if names else self.rich_style
        return self._inks[style]

    def get_component_styles(self, *names: str) -> RenderStyles:
        stylesheet = self.app.stylesheet
        for name in names:
            if name not in self._component_styles and f".{name}" in stylesheet.rules_map:
                node = DOMNode(classes=name)
                node._attach(self)
                stylesheet.apply(node)
                self._component_styles[name] = node.styles
        return super().get_component_styles(*names)

    def strip(self, line: Line, width: int) -> Strip:
        """The line as a strip of exactly `width` cells."""
        runs = clipped(line, width)
        segments = [Segment(run.text, self.ink(run.style)) for run in runs]
        return Strip(segments, width_of(runs)).adjust_cell_length(width, self.ink(""))

    def filtered(self, strip: Strip) -> Strip:
        """The strip as the terminal can show it: no colours, ANSI colours, dimmed."""
        _, background = self.background_colors
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, background)
        return strip

    def content_strip(self, y: int, width: int) -> Strip:
        """The strip of a line of the content, `y` counted from the first line in sight."""
        del y
        return self.strip((), width)

    def safe_content(self, y: int, width: int) -> Strip:
        """A line of the content; blank, and reported, if it cannot be painted."""
        try:
            return self.content_strip(y, width)
        except Exception as error:  # other lines and widgets are painted
            faults = getattr(self.app, "faults", None)
            if faults is None:
                raise
            faults.report(error)
            return Strip.blank(width)

    def edge(self, y: int) -> str:
        """The right edge of the frame beside a line of the content."""
        del y
        return "│"

    def render_line(self, y: int) -> Strip:
        return self.safe_content(y, self.content_size.width)

    def render_lines(self, crop: Region) -> list[Strip]:
        strips = [self._outer_strip(y) for y in crop.line_range]
        if crop.column_span != (0, self.outer_size.width):
            return [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def _outer_strip(self, y: int) -> Strip:
        width, height = self.outer_size
        top = self.gutter.top
        if not top:
            return self.filtered(self.safe_content(y, width))
        style = "frame-focus" if self.has_focus else "frame"
        if y < top:
            return self.filtered(self.strip(frame_top(self.frame_title, width, style), width))
        if y >= height - self.gutter.bottom:
            return self.filtered(self.strip(frame_bottom(self.frame_hint, width, style), width))
        return self._framed(y - top, style)

    def _framed(self, y: int, style: str) -> Strip:
        left, right = self.gutter.left, self.gutter.right
        edge, pad = self.ink(style), self.ink("")
        strip = self.safe_content(y, self.outer_size.width - left - right)
        sides = (
            [Segment("│", edge), Segment(" " * (left - 1), pad)],
            [Segment(" " * (right - 1), pad), Segment(self.edge(y), edge)],
        )
        return self.filtered(Strip([*sides[0], *strip, *sides[1]], self.outer_size.width))


class InkLines(Ink):
    """A widget of fixed height that shows a list of lines; unchanged ones are not painted again."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.lines: list[Line] = []
        self._strips: dict[int, Strip] = {}

    def show(self, lines: list[Line]) -> None:
        """Show other lines; only what differs is painted."""
        old, self.lines = self.lines, lines
        changed = [
            y for y in range(max(len(old), len(lines))) if old[y : y + 1] != lines[y : y + 1]
        ]
        for y in changed:
            self._strips.pop(y + self.gutter.top, None)
        if changed:
            self.refresh(*[Region(0, y, self.size.width, 1) for y in changed])

    def set_frame(self, *, title: str | None = None, hint: str | None = None) -> None:
        self._strips.pop(0, None)
        self._strips.pop(self.outer_size.height - 1, None)
        super().set_frame(title=title, hint=hint)

    def forget_strips(self) -> None:
        self._strips = {}

    def on_resize(self) -> None:
        self.forget_strips()

    def content_strip(self, y: int, width: int) -> Strip:
        return self.strip(self.lines[y] if y < len(self.lines) else (), width)

    def _outer_strip(self, y: int) -> Strip:
        if y not in self._strips:
            self._strips[y] = super()._outer_strip(y)
        return self._strips[y]


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
            below: Text in the frame after the number of lines below; None shows neither.
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
