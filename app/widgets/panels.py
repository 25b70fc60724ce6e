"""The framed panels beside the chat: a snapshot goes in, lines are painted."""

from typing import get_args

from app.chat.snapshot import CockpitSnapshot
from app.render.cache import cache_lines
from app.render.charts import GraphSymbols
from app.render.lines import Line
from app.render.speculation import speculation_lines, speculation_title
from app.render.status import memory_lines, server_lines, throughput_lines
from app.widgets.ink import InkLines
from engine.events import PanelName

PANELS: tuple[PanelName, ...] = get_args(PanelName)


class Panel(InkLines):
    """One of the panels; its name is its id in the style sheets."""

    def __init__(self, name: PanelName) -> None:
        super().__init__(id=name)
        self._panel: PanelName = name
        self._snapshot = CockpitSnapshot()
        self.frame_title = self._title()

    def present(self, snapshot: CockpitSnapshot) -> None:
        self._snapshot = snapshot
        width, height = self.size
        if width:
            above = server_lines(snapshot, self._panel, width)
            lines = panel_lines(
                self._panel, snapshot, width, max(height - len(above), 1), self.symbols
            )
            self.show([*above, *lines])
            self.set_frame(title=self._title())

    def _title(self) -> str:
        if self._panel == "speculation":
            return speculation_title(self._snapshot)
        return "KV cache" if self._panel == "cache" else self._panel

    def on_resize(self) -> None:
        super().on_resize()
        self.present(self._snapshot)


def panel_lines(
    panel: PanelName, snapshot: CockpitSnapshot, width: int, height: int, symbols: GraphSymbols
) -> list[Line]:
    """The lines of a panel, for a width and a height in cells."""
    match panel:
        case "speculation":
            return speculation_lines(snapshot, width, symbols, height=height)
        case "throughput":
            return throughput_lines(snapshot, width, symbols)
        case "cache":
            return cache_lines(snapshot, width, symbols, height=height)
        case "memory":
            return memory_lines(snapshot, width)
