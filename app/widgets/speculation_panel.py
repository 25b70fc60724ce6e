"""The speculation panel."""

from app.chat.snapshot import CockpitSnapshot
from app.render.lines import Line
from app.render.speculation import speculation_lines, speculation_title
from app.widgets.panel import Panel


class SpeculationPanel(Panel):
    """Shows how often drafts are right, and what they bring."""

    TITLE = "speculation"

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        return speculation_lines(snapshot, width, self.symbols, height=self.size.height)

    def title_of(self, snapshot: CockpitSnapshot) -> str:
        return speculation_title(snapshot)
