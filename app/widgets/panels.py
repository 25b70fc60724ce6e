"""The cockpit's framed panels and its status bar: a snapshot goes in, lines are painted."""

from app.chat.snapshot import CockpitSnapshot
from app.render.cache import cache_lines
from app.render.lines import Line
from app.render.speculation import speculation_lines, speculation_title
from app.render.status import memory_lines, status_line, throughput_lines
from app.widgets.ink import InkLines


class Panel(InkLines):
    """Subclasses say which lines and which title a snapshot has."""

    TITLE = ""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.frame_title = self.TITLE
        self._snapshot: CockpitSnapshot | None = None

    def present(self, snapshot: CockpitSnapshot) -> None:
        """Show a snapshot."""
        self._snapshot = snapshot
        if self.size.width:
            self.show(self.render_lines_of(snapshot, self.size.width))
            self.set_frame(title=self.title_of(snapshot))

    def on_resize(self) -> None:
        super().on_resize()
        if self._snapshot is not None:
            self.present(self._snapshot)

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        """The lines of a snapshot at a width."""
        raise NotImplementedError

    def title_of(self, snapshot: CockpitSnapshot) -> str:  # noqa: ARG002  others use it
        """The title over a snapshot."""
        return self.TITLE


class CachePanel(Panel):
    """Shows how full each tier is, and where the prompt came from."""

    TITLE = "KV cache"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return cache_lines(snapshot, width, self.symbols, height=self.size.height)


class MemoryPanel(Panel):
    """Shows planned beside measured bytes, and the engine's process."""

    TITLE = "memory"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return memory_lines(snapshot, width)


class SpeculationPanel(Panel):
    """Shows how often drafts are right, and what they bring."""

    TITLE = "speculation"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return speculation_lines(snapshot, width, self.symbols, height=self.size.height)

    def title_of(self, snapshot: CockpitSnapshot) -> str:
        return speculation_title(snapshot)


class ThroughputPanel(Panel):
    """Shows decode speed, time to the first token and the prefill."""

    TITLE = "throughput"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return throughput_lines(snapshot, width, self.symbols)


class StatusBar(InkLines):
    """One line over the whole width."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self._snapshot = CockpitSnapshot()

    def on_resize(self) -> None:
        super().on_resize()
        self.present(self._snapshot)

    def present(self, snapshot: CockpitSnapshot) -> None:
        """Show a snapshot."""
        self._snapshot = snapshot
        if self.size.width:
            self.show([status_line(snapshot, self.size.width)])


class PlanTitle(InkLines):
    """One line over the whole width."""

    def present(self, line: Line) -> None:
        """Show another line."""
        self.show([line])
