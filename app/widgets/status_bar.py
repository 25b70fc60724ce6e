"""The line at the top that always says what runs, how full it is and how fast."""

from app.chat.snapshot import CockpitSnapshot
from app.render.status import status_line
from app.widgets.ink import InkLines


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
