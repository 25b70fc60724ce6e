"""The help: live keys of the screen below, and a glossary."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from app.render.help import KeySection, help_lines
from app.widgets.panes import Pager


class HelpScreen(ModalScreen[None]):
    """Shows what can be pressed and what the words mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss", "Close", id="help-close", tooltip="Close the help"),
    ]

    def __init__(self, sections: list[KeySection]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        yield Pager(lambda width: help_lines(self._sections, width), title="help", id="help")

    def on_mount(self) -> None:
        self.query_one(Pager).set_frame(hint="esc closes, arrows and page keys move")
