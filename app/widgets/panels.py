"""The framed panels beside the chat: a snapshot goes in, lines are painted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.chat.snapshot import CockpitSnapshot
from app.render.charts import GraphSymbols
from app.render.lines import Line
from app.render.panels import (
    cache_lines,
    memory_lines,
    server_lines,
    speculation_lines,
    speculation_title,
    throughput_lines,
)
from app.widgets.ink import InkLines
from engine.events import PanelName


@dataclass(frozen=True, slots=True)
class PanelContent:
    """The title and the lines of a panel."""

    title: Callable[[CockpitSnapshot], str]
    lines: Callable[[CockpitSnapshot, int, GraphSymbols], list[Line]]


PANELS: Mapping[PanelName, PanelContent] = {
    "speculation": PanelContent(speculation_title, speculation_lines),
    "throughput": PanelContent(lambda _: "throughput", throughput_lines),
    "cache": PanelContent(lambda _: "KV cache", cache_lines),
    "memory": PanelContent(
        lambda _: "memory", lambda snapshot, width, _symbols: memory_lines(snapshot, width)
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
            lines = server_lines(snapshot, self._panel, width)
            lines += self._content.lines(snapshot, width, self.symbols)
            self.show(lines[:height])
            self.set_frame(title=self._content.title(snapshot))

    def on_resize(self) -> None:
        super().on_resize()
        self.present(self._snapshot)
