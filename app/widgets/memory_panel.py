"""The memory panel."""

from app.chat.snapshot import CockpitSnapshot
from app.render.lines import Line
from app.render.status import memory_lines
from app.widgets.panel import Panel


class MemoryPanel(Panel):
    """Shows planned beside measured bytes, and the engine's process."""

    TITLE = "memory"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return memory_lines(snapshot, width)
