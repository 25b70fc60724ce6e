"""One line of tabs for screens too narrow to show everything side by side."""

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.reactive import reactive

from app.render.lines import Line, Run, width_of
from app.widgets.ink import InkLines


class TabStrip(InkLines):
    """Names side by side, the active one marked by shape and colour."""

    active: reactive[int] = reactive(0, layout=False, init=False)

    @dataclass
    class Chosen(Message):
        """Another tab became active."""

        place: int

    def __init__(self, names: tuple[str, ...], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.names = names

    def on_mount(self) -> None:
        self.show([self._line()])

    def watch_active(self, active: int) -> None:
        self.show([self._line()])
        self.post_message(self.Chosen(active))

    def next(self) -> None:
        """Go to the next tab, from the last to the first."""
        self.active = (self.active + 1) % len(self.names)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for place, part in enumerate(self._parts()):
            end += width_of((part,))
            if event.x < end:
                self.active = place
                return

    def _parts(self) -> list[Run]:
        return [
            Run(f" [{name}] " if i == self.active else f"  {name}  ",
                "accent" if i == self.active else "muted")
            for i, name in enumerate(self.names)
        ]  # fmt: skip

    def _line(self) -> Line:
        return (*self._parts(), Run("  F9 next", "muted"))
