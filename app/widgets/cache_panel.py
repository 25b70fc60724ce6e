"""The KV-cache panel."""

from app.chat.snapshot import CockpitSnapshot
from app.render.cache import cache_lines
from app.render.lines import Line
from app.widgets.panel import Panel


class CachePanel(Panel):
    """Shows how full each tier is, and where the prompt came from."""

    TITLE = "KV cache"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return cache_lines(snapshot, width, self.symbols, height=self.size.height)
