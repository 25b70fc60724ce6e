"""The full-screen application: the chat, and the screens that it leads to.

Where things are: `app.chat` decides (no Textual), `app.render` turns values into lines,
`app.widgets` paints lines, `app.screens` arranges widgets, `app.chat_keys` binds keys, `app.styles`
has colours and sizes, `app.startup` finds model, settings and files before the screen opens.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import ClassVar

from rich.segment import Segment
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.filter import LineFilter
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer

from app.chat.conversation import Conversation
from app.commands import chat_commands
from app.live_keys import every_binding_id, key_sections
from app.render.charts import GraphSymbols
from app.render.console import console
from app.sanitize import harmless, visible
from app.screens.chat import ChatScreen
from app.startup import Services
from app.themes import load_themes, theme_variable_defaults
from app.threads import DaemonExecutor
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.validation import did_you_mean

DEFAULT_THEME = "kvchat-dark"
SCREEN_NICENESS = 5
LEAVE_EVERY_S = 0.05
"""How often is looked whether everything is saved when the user leaves."""


class HarmlessLines(LineFilter):
    """Lets no control character reach the terminal, from whichever widget and text it comes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        del background
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [Segment(harmless(text), style, control) for text, style, control in segments]


HARMLESS_LINES = HarmlessLines()


class KvchatApp(App[None]):
    """The terminal application around one controller."""

    TITLE = "kvchat"
    CSS_PATH: ClassVar[list[str | PurePath]] = [
        "styles/inks.tcss",
        "styles/chat.tcss",
        "styles/dialogs.tcss",
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        # First of all keys, since a dialog hands none on to the application.
        Binding(
            "f1",
            "help",
            "Help",
            id="app-help",
            priority=True,
            tooltip="All keys, and what the words mean",
        ),
        Binding("ctrl+q", "quit", "Quit", id="app-quit", priority=True, tooltip="Save and leave"),
    ]
    PAUSE_GC_ON_SCROLL = True

    def __init__(
        self,
        controller: Conversation,
        services: Services,
        *,
        model: Path | None = None,
        configuration: Configuration | None = None,
        symbols: GraphSymbols = "block",
        theme: str = DEFAULT_THEME,
        notices: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.error_console = console(stderr=True)
        self.controller = controller
        self.services = services
        self._model = model
        self._configuration = configuration
        self.symbols = symbols
        """Characters that every widget draws gauges with."""
        self._notices = [*notices]
        self._leaving: Timer | None = None
        self.set_keymap(dict(services.keymap))
        self._use_first_theme(theme)

    def on_mount(self) -> None:
        asyncio.get_running_loop().set_default_executor(DaemonExecutor())
        chat = ChatScreen(self.controller, self.services)
        self.push_screen(chat)
        self.call_after_refresh(self._begin, chat)

    def _begin(self, chat: ChatScreen) -> None:
        for notice in self._notices:
            self.notify(notice, severity="warning")
        if self._configuration is not None:
            chat.load(self._configuration)
        elif self._model is not None:
            chat.open_model(self._model)
        else:
            chat.welcome()

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,  # noqa: ARG002  Textual's own name
    ) -> None:
        """Show a notice letter by letter: it may hold titles, paths and texts of anybody."""
        super().notify(
            visible(message),
            title=visible(title),
            severity=severity,
            timeout=timeout,
            markup=False,
        )

    def get_line_filters(self) -> Sequence[LineFilter]:
        return (*super().get_line_filters(), HARMLESS_LINES)

    def action_help_quit(self) -> None:
        """Say which key leaves: ctrl+c does not, since it is pressed by habit."""
        self.notify(
            "ctrl+q leaves kvchat; ctrl+c empties the composer, or copies what is selected."
        )

    def on_unmount(self) -> None:
        self.controller.close()

    async def action_quit(self) -> None:
        """Save and leave; where saving takes a moment, the screen says so until it is done."""
        if self._leaving is not None:
            return
        self.controller.begin_close()
        self._leaving = self.set_interval(LEAVE_EVERY_S, self._leave_when_saved)
        if not self.controller.client.has_ended:
            from app.screens.ask import Saving

            self.push_screen(Saving())

    def _leave_when_saved(self) -> None:
        if self.controller.client.has_ended:
            self.exit()

    def action_help(self) -> None:
        """Show the keys of the screen below, and the glossary; again to close it."""
        from app.screens.help import HelpScreen

        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
            return
        self.push_screen(HelpScreen(key_sections(self, self.screen, self.services.keymap)))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_variable_defaults(self.available_themes.get(self.theme))

    def _use_first_theme(self, name: str) -> None:
        loaded = load_themes()
        for theme in loaded.themes:
            self.register_theme(theme)
        self._notices += loaded.problems
        if name not in self.available_themes:
            hint = did_you_mean(name, self.available_themes)
            self._notices.append(f"There is no theme {name}{hint}")
            name = DEFAULT_THEME
        self.theme = name

    def use_theme(self, name: str) -> None:
        """Switch the theme and remember it."""
        self.theme = name
        try:
            self.services.save_theme(name)
        except EngineError as error:
            self.notify(str(error), title=error.title, severity="warning")

    def save_picture(self) -> None:
        """Write the screen to an SVG file in the current folder."""
        try:
            path = self.save_screenshot()
        except OSError as error:
            self.notify(f"The picture cannot be written: {error}", severity="error")
        else:
            self.notify(f"Saved {path}")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from chat_commands(self, screen)


def open_chat(
    *,
    model: str | None = None,
    draft: str | None = None,
    preset: str | None = None,
    theme: str | None = None,
) -> None:
    """Open the full-screen chat and come back when the user leaves it.

    Args:
        model: Path or name of a GGUF file; None opens the one used last, or asks.
        draft: Path or name of a draft model.
        preset: Name or path of a preset.
        theme: Name of a theme, for this time only.

    Raises:
        EngineError: If something that was named is not there, or the chats cannot be opened.
    """
    from app.opening import ModelRequest
    from app.startup import prepare

    opened = prepare(ModelRequest(model, draft, preset), every_binding_id)
    # The engine decodes on every core: the screen must not take time from it. Its client starts
    # the engine from a thread of its own, which keeps the priority that it has now.
    if sys.platform == "linux":
        os.nice(SCREEN_NICENESS)
    ui = opened.settings.ui
    app = KvchatApp(
        opened.controller,
        opened.services,
        model=opened.model,
        symbols=ui.graph_symbols,
        theme=theme or ui.theme,
        notices=opened.notices,
    )
    app.animation_level = ui.animation
    # Looking through all that was imported for garbage stops the screen for a tenth of a second.
    gc.freeze()
    try:
        app.run()
    finally:
        opened.close()
