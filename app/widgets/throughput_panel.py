"""The throughput panel."""

from app.chat.snapshot import CockpitSnapshot
from app.render.lines import Line
from app.render.status import throughput_lines
from app.widgets.panel import Panel


class ThroughputPanel(Panel):
    """Shows decode speed, time to the first token and the prefill."""

    TITLE = "throughput"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return throughput_lines(snapshot, width, self.symbols)
