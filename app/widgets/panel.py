"""A framed panel of the cockpit: a snapshot goes in, lines are painted."""

from app.chat.snapshot import CockpitSnapshot
from app.render.lines import Line
from app.widgets.ink import InkLines


class Panel(InkLines):
    """Subclasses say which lines and which title a snapshot has."""

    TITLE = ""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.frame_title = self.TITLE
        self._snapshot: CockpitSnapshot | None = None

    def present(self, snapshot: CockpitSnapshot) -> None:
        """Show a snapshot."""
        self._snapshot = snapshot
        if self.size.width:
            self.show(self.render_lines_of(snapshot, self.size.width))
            self.set_frame(title=self.title_of(snapshot))

    def on_resize(self) -> None:
        super().on_resize()
        if self._snapshot is not None:
            self.present(self._snapshot)

    def render_lines_of(self, snapshot: CockpitSnapshot, width: int) -> list[Line]:
        """The lines of a snapshot at a width."""
        raise NotImplementedError

    def title_of(self, snapshot: CockpitSnapshot) -> str:  # noqa: ARG002  others use it
        """The title over a snapshot."""
        return self.TITLE
