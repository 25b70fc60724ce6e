"""The line at the top that always says what runs, how full it is and how fast."""

from app.chat.snapshot import CockpitSnapshot
from app.render.status import status_line
from app.widgets.ink import InkLines


class StatusBar(InkLines):
    """One line over the whole width."""

    def present(self, snapshot: CockpitSnapshot) -> None:
        """Show a snapshot."""
        if self.size.width:
            self.show([status_line(snapshot, self.size.width)])
