"""The full-screen application: opens what the chat needs, and the screens that it leads to.

Where things are: `app.chat` decides (no Textual), `app.render` turns values into lines,
`app.widgets` paints lines, `app.screens` arranges widgets and binds keys, `app.styles` has colours.
"""

from pathlib import PurePath
from typing import ClassVar

from textual.app import App

from app.chat.controller import ChatController
from app.render.gauges import GraphSymbols
from app.screens.chat import ChatScreen


class KvchatApp(App[None]):
    """The terminal application around one controller."""

    TITLE = "kvchat"
    CSS_PATH: ClassVar[list[str | PurePath]] = ["styles/inks.tcss", "styles/chat.tcss"]
    PAUSE_GC_ON_SCROLL = True

    def __init__(self, controller: ChatController, *, symbols: GraphSymbols = "block") -> None:
        super().__init__()
        self.controller = controller
        self._symbols = symbols

    def on_mount(self) -> None:
        self.push_screen(ChatScreen(self.controller, symbols=self._symbols))
