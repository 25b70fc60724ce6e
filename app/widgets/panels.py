"""The framed panels beside the chat: a snapshot goes in, lines are painted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.chat.snapshot import CockpitSnapshot
from app.render.cache import cache_lines
from app.render.charts import GraphSymbols
from app.render.lines import Line
from app.render.speculation import speculation_lines, speculation_title
from app.render.status import memory_lines, server_lines, throughput_lines
from app.widgets.ink import InkLines
from engine.events import PanelName


@dataclass(frozen=True, slots=True)
class PanelContent:
    """What a panel shows of a snapshot."""

    title: Callable[[CockpitSnapshot], str]
    lines: Callable[[CockpitSnapshot, int, int, GraphSymbols], list[Line]]
    """Made for a width and a height in cells."""


PANELS: Mapping[PanelName, PanelContent] = {
    "speculation": PanelContent(
        speculation_title,
        lambda snapshot, width, height, symbols: speculation_lines(
            snapshot, width, symbols, height=height
        ),
    ),
    "throughput": PanelContent(
        lambda _: "throughput",
        lambda snapshot, width, _, symbols: throughput_lines(snapshot, width, symbols),
    ),
    "cache": PanelContent(
        lambda _: "KV cache",
        lambda snapshot, width, height, symbols: cache_lines(
            snapshot, width, symbols, height=height
        ),
    ),
    "memory": PanelContent(
        lambda _: "memory", lambda snapshot, width, _height, _symbols: memory_lines(snapshot, width)
    ),
}


class Panel(InkLines):
    """One of the panels; its name is its id in the style sheets."""

    def __init__(self, name: PanelName) -> None:
        super().__init__(id=name)
        self._panel: PanelName = name
        self._content = PANELS[name]
        self._snapshot = CockpitSnapshot()
        self.frame_title = self._content.title(self._snapshot)

    def present(self, snapshot: CockpitSnapshot) -> None:
        """Show a snapshot."""
        self._snapshot = snapshot
        width, height = self.size
        if width:
            told = server_lines(snapshot, self._panel, width)
            lines = self._content.lines(snapshot, width, max(height - len(told), 1), self.symbols)
            self.show([*told, *lines])
            self.set_frame(title=self._content.title(snapshot))

    def on_resize(self) -> None:
        super().on_resize()
        self.present(self._snapshot)
