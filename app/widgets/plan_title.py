"""The line over the planner: which model is planned."""

from app.render.lines import Line
from app.widgets.ink import InkLines


class PlanTitle(InkLines):
    """One line over the whole width."""

    def present(self, line: Line) -> None:
        """Show another line."""
        self.show([line])
