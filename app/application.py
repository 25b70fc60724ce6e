"""The full-screen application: the chat, and the screens that it leads to.

Where things are: `app.chat` decides (no Textual), `app.render` turns values into lines,
`app.widgets` paints lines, `app.screens` arranges widgets, `app.bindings` binds keys, `app.styles`
has colours and sizes, `app.startup` finds model, settings and files before the screen opens.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from rich.segment import Segment
from rich.text import Text
from textual import events, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.dom import DOMNode
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.markup import escape
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer
from textual.types import AnimationLevel
from textual.widgets import Input, TextArea

from app.bindings import Command, read_keymap, with_keys
from app.chat.conversation import Conversation
from app.chat.snapshot import NO_MODEL
from app.clipboard import read_harmless_pastes
from app.commands import Palette, commands_of, every_action, key_sections
from app.fault_reports import FaultReport, write_report
from app.faults import Faults, mend_textual
from app.opening import ModelRequest, remembered_server
from app.paths import faults_dir
from app.render.charts import GraphSymbols
from app.sanitize import harmless, visible
from app.screens.chat import ChatScreen
from app.screens.dialogs import HelpScreen, Saving, ask, report
from app.startup import Services
from app.tables import console
from app.themes import load_themes, theme_variable_defaults
from app.threads import DaemonExecutor, call_if_open
from engine.background import ThreadFault, set_fault_handler
from engine.configuration import Configuration, SamplingSettings
from engine.errors import EngineError
from engine.files import reason_of
from engine.validation import did_you_mean

if TYPE_CHECKING:
    from textual.actions import ActionParseResult

    from app.screens.plan_session import PlanSession

DEFAULT_THEME = "kvchat-dark"
SCREEN_NICENESS = 5
WELCOME = "welcome to kvchat: no model was found"
NEW_CHATS = frozenset({*(each.name for each in fields(SamplingSettings)), "system_prompt"})
"""Settings that each chat has of its own: new ones begin with them."""
LEAVE_EVERY_S = 0.05
"""Seconds between two checks whether everything is saved, when the user quits."""


class HarmlessLines(LineFilter):
    """Lets no control character reach the terminal, from whichever widget and text it comes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        del background
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [Segment(harmless(text), style, control) for text, style, control in segments]


HARMLESS_LINES = HarmlessLines()
GREYS, NO_COLOR = Monochrome(), NoColor()


class KvchatApp(App[None]):
    """The terminal application around one conversation."""

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
            tooltip="Show all keys and a glossary",
        ),
        Binding("ctrl+q", "quit", "Quit", id="app-quit", priority=True, tooltip="Save and quit"),
    ]
    PAUSE_GC_ON_SCROLL = True
    _has_begun = False
    """Whether the first picture is painted."""

    def __init__(
        self,
        conversation: Conversation,
        services: Services,
        *,
        model: Path | None = None,
        configuration: Configuration | None = None,
        theme: str | None = None,
        notices: Iterable[str] = (),
    ) -> None:
        super().__init__()
        mend_textual()
        self.error_console = console(err=True)
        self.faults = Faults(self, faults_dir)
        self.conversation = conversation
        self.services = services
        self._model = model
        self._configuration = configuration
        self.symbols: GraphSymbols = "block"
        """Characters that every widget draws gauges with."""
        self.keymap: Mapping[str, str] = {}
        """The user's own keys by binding id."""
        self.chat = ChatScreen(
            conversation, services, lambda: self.commands(self.chat), self.faults
        )
        self._left_plan: PlanSession | None = None
        """Plan of the planner screen when it was closed without loading."""
        self._notices = [*notices]
        self._leaving: Timer | None = None
        self._exit_code = 0
        loaded = load_themes()
        for each in loaded.themes:
            self.register_theme(each)
        if loaded.problems:
            self._notices.append("; ".join(loaded.problems))
        problems = self.use_settings("ui", theme=theme), self.use_settings("keys")
        self._notices += filter(None, problems)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DaemonExecutor())
        loop.set_exception_handler(self._take_from_loop)
        set_fault_handler(self._take_from_thread)
        self.call_after_refresh(self._begin)

    def get_driver_class(self) -> type[Driver]:
        usual = super().get_driver_class()
        if sys.platform == "win32":
            return usual
        from app.driver import own_driver

        return own_driver(usual)

    def get_default_screen(self) -> Screen[Any]:
        return self.chat

    def _begin(self) -> None:
        self._has_begun = True
        for notice in self._notices:
            self.notify(notice, severity="warning")
        if self._configuration is not None:
            self.load(self._configuration)
        elif self._model is not None:
            self.open_model(self._model)
        else:
            self._add_model(WELCOME)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,  # noqa: ARG002  Textual's own name
    ) -> None:
        """Show a notice without markup, because it may contain titles, paths and foreign texts.

        Action ids in braces become keys; see `with_keys`.
        """
        super().notify(
            visible(with_keys(message, self)),
            title=visible(title),
            severity=severity,
            timeout=timeout,
            markup=False,
        )

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        if self.no_color:
            # Textual chooses one when it starts; the greys of a terminal's own colours are black.
            grey = NO_COLOR if self.native_ansi_color else GREYS
            filters = [grey if isinstance(each, Monochrome | NoColor) else each for each in filters]
        return (*filters, HARMLESS_LINES)

    # --- faults ---

    def _handle_exception(self, error: Exception) -> None:
        self.faults.handle(error)

    def _take_from_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report the exception of an asyncio task that nothing awaits."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.faults.report(error)
        else:
            loop.default_exception_handler(context)

    def _take_from_thread(self, fault: ThreadFault) -> None:
        self.call_later(self.faults.report_thread, fault)

    def panic(self, *renderables: RenderableType) -> None:
        """End, since the terminal can be read no more: Textual calls this then."""
        del renderables
        doing = "reading the terminal"
        self.end_after(write_report(faults_dir(), RuntimeError(), doing=doing))

    def show_fault(self, error: Exception, report: FaultReport) -> None:
        """Show a notice."""
        what = (
            str(error)
            if isinstance(error, EngineError)
            else "This action failed; the chat continues."
        )
        notice = f"{what} ({report.location})"
        if self._has_begun:
            self.notify(notice, severity="error")
        else:
            self._notices.append(notice)

    def show_error(self, error: EngineError) -> None:
        """Show what went wrong and what to do about it."""
        report(self, error)

    def end_after(self, report: FaultReport) -> None:
        """Save everything and end, with a sentence on standard error."""
        if self._exit_renderables or self._leaving is not None:
            return
        text = f"kvchat ended because its screen could not be drawn ({report.location})"
        self.exit(return_code=1, message=Text(text))
        for save in (self.chat.outbox.save, self.conversation.begin_close):
            try:
                save()
            except Exception as error:  # noqa: BLE001  what can be saved is saved
                self.faults.report(error)

    async def run_action(
        self,
        action: "str | ActionParseResult",
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        name = action if isinstance(action, str) else action[1]
        self.faults.last_action = name.partition("(")[0]
        return await super().run_action(action, default_namespace, namespaces)

    # --- help, and the end ---

    def action_help_quit(self) -> None:
        """Show which key leaves: ctrl+c does not, since it is pressed by habit."""
        self.notify(
            "{app-quit} quits; {composer-empty} copies the selection or clears the composer."
        )

    def on_unmount(self) -> None:
        self.conversation.close()
        set_fault_handler(None)

    async def action_quit(self) -> None:
        self.leave()

    def leave(self, return_code: int = 0) -> None:
        """Save and leave; while saving takes time, the screen shows that."""
        self._exit_code = return_code
        if self._leaving is not None:
            return
        self.chat.outbox.save()
        self.conversation.begin_close()
        self._leaving = self.set_interval(LEAVE_EVERY_S, self._leave_when_saved)
        if not self.conversation.client.has_ended:
            self.push_screen(Saving())

    def _leave_when_saved(self) -> None:
        if self.conversation.client.has_ended:
            self.exit(return_code=self._exit_code)

    def action_help(self) -> None:
        """Show the keys of the screen below, and the glossary; again to close it."""
        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
            return
        self.push_screen(HelpScreen(key_sections(self, self.screen, self.keymap)))

    # --- the model ---

    def load(self, configuration: Configuration | None) -> None:
        """Load a configuration; with None, the loaded model stays."""
        if configuration is not None:
            self.conversation.load(configuration)
            self._estimate(configuration)

    @work(thread=True, exclusive=True, group="estimate")
    def _estimate(self, configuration: Configuration) -> None:
        try:
            planned = self.services.planned_bytes(configuration)
        except EngineError:
            # The load itself reports what is wrong with the file; the panel shows a dash.
            planned = None
        call_if_open(self.chat, self.conversation.meters.show, planned=planned)

    def open_model(self, path: Path | str | None) -> None:
        """Load a model with the configuration that suits it; with None, the loaded model stays.

        A text may be the address of a server, as `Configuration.address` writes it.
        """
        sampling = self.services.settings.settings.chat.sampling()
        if isinstance(path, str) and (served := remembered_server(path, sampling)) is not None:
            loaded = self.conversation.configuration
            self.load(loaded if loaded and loaded.address == path else served)
        elif path is not None:
            self._configure(Path(path))

    @work(thread=True, exclusive=True, group="configure")
    def _configure(self, path: Path) -> None:
        try:
            configuration = self.services.configure(path)
            notes = (self.services.types_note(configuration), self.services.first_hint(path))
        except EngineError as error:
            call_if_open(self.chat, report, self, error)
            return
        call_if_open(self.chat, self.load, configuration)
        for note in filter(None, notes):
            call_if_open(self.chat, self.notify, note)

    def action_restart(self) -> None:
        """Start the engine again."""
        if self.conversation.configuration is None:
            self.notify(NO_MODEL)
        else:
            self.load(self.conversation.configuration)

    # --- other screens; each is imported with its first use, to start fast ---

    def action_models(self, tab: int = 0) -> None:
        """List the models of this machine, or those to download (1)."""
        from app.screens.models import ModelsScreen

        loaded = self.conversation.configuration
        screen = ModelsScreen(
            self.services.scan,
            self.services.folders,
            self.services.fit_context,
            None if loaded is None else loaded.address,
            loaded=loaded,
            purpose="load",
            servers=self.services.servers,
            add=lambda: self._add_model("add a model" if loaded else WELCOME),
            tab=tab,
        )
        self.push_screen(screen, self.open_model)

    def _add_model(self, title: str) -> None:
        """Show where models were looked for, and install the starter if asked to."""
        from app.screens.downloads import FirstRunScreen

        def look() -> Path | None:
            usable = [entry.path for entry in self.services.scan() if not entry.problem]
            return usable[0] if usable else None

        services = self.services
        screen = FirstRunScreen(
            services.folders,
            services.install_starter,
            look,
            title=title,
            browse=partial(self.action_models, 1),
        )
        self.push_screen(screen, self.open_model)

    def action_planner(self) -> None:
        """Plan the loaded model, or any other."""
        from app.screens.planner import PlannerScreen

        configuration, loaded = self.conversation.configuration, self.conversation.loaded
        if configuration is not None and configuration.server is not None:
            configuration = loaded = None  # what a server holds is its own: any model is planned
        screen = PlannerScreen(
            configuration.model_path if configuration else None,
            configuration,
            measured=loaded.buffers if loaded else (),
            scan=self.services.scan,
            presets_dir=self.services.presets_dir,
            left=self._left_plan,
        )

        def closed(configuration: Configuration | None) -> None:
            self._left_plan = screen.left() if configuration is None else None
            self.load(configuration)

        self.push_screen(screen, closed)

    def action_draft(self) -> None:
        """Choose the draft model of the loaded model, and load both."""
        from app.planning import user_planner
        from app.screens.planner_lists import file_list
        from engine.planning.options import with_draft
        from engine.planning.planner import Setup

        configuration = self.conversation.configuration
        if configuration is None or configuration.server is not None:
            self.notify("A draft model needs a local target model: load the target model first.")
            return

        def load(path: Path) -> None:
            self.load(with_draft(Setup(configuration), path).configuration)

        ask(self.chat, file_list("draft", configuration, self.services.scan, user_planner()), load)

    def action_presets(self) -> None:
        """List the presets."""
        from app.screens.presets import PresetsScreen

        loaded = self.conversation.loaded
        screen = PresetsScreen(
            self.services.presets_dir,
            self.conversation.configuration,
            measured=loaded.buffers if loaded else (),
        )

        def chosen(configuration: Configuration | None) -> None:
            if configuration is not None:
                prompt = screen.system_prompt or self.services.settings.settings.chat.system_prompt
                self.conversation.history.use_defaults(configuration.sampling, prompt)
                self.load(configuration)

        self.push_screen(screen, chosen)

    def action_compare(self) -> None:
        """Open the comparison with the text in the composer, or with the last question."""
        from app.chat.comparing import obstacle
        from app.screens.compare import CompareScreen

        problem = obstacle(self.conversation)
        if problem is not None:
            self.notify(problem)
            return
        screen = CompareScreen(
            self.conversation,
            self.chat.composer.written,
            folder=self.chat.outbox.folder,
            tint=self.chat.transcript.tint,
        )
        self.push_screen(screen)

    def action_cache(self) -> None:
        """Show the saved states."""
        from app.screens.cache import CacheScreen

        self.push_screen(CacheScreen(self.conversation))

    # --- theme, picture, palette ---

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_variable_defaults(self.get_theme(self.theme))

    def refresh_css(self, animate: bool = True) -> None:
        # Textual parses every style again for the theme that it starts with.
        if self._has_begun:
            super().refresh_css(animate)

    def action_command_palette(self) -> None:
        """Show every command, to choose by typing."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def use_theme(self, name: str) -> None:
        """Switch the theme and remember it."""
        self.theme = name
        self.services.settings.change("ui", "theme", name)

    # --- settings ---

    def action_settings(self) -> None:
        """List all settings; a change counts at once where it can."""
        from app.screens.settings import SettingsScreen

        def changed(section: str, key: str) -> None:
            if section == "chat" and key in NEW_CHATS:
                chat = self.services.settings.settings.chat
                self.conversation.history.use_defaults(chat.sampling(), chat.system_prompt)
            problem = self.use_settings(section)
            if problem:
                self.notify(problem, severity="warning")

        themes = sorted(self.available_themes, key=_own_first)
        self.push_screen(SettingsScreen(self.services.settings, every_action, themes, changed))

    def use_settings(self, section: str, *, theme: str | None = None) -> str:
        """Apply one table of the settings; return what is wrong with it, empty if nothing is.

        `theme` replaces the theme of the settings.
        """
        settings = self.services.settings.settings
        match section:
            case "ui":
                self.symbols = settings.ui.graph_symbols
                self.use_animation(settings.ui.animation)
                if self.is_running:
                    self.chat.transcript.set_tint(settings.ui.tint)
                    self.chat.show_sidebar(is_on=settings.ui.sidebar)
                return self._show_theme(theme or settings.ui.theme)
            case "chat":
                self.conversation.limits = settings.chat
            case "speculation":
                self.conversation.set_speculation(settings.speculation.speculation())
            case "keys":
                read = read_keymap(settings.keys, every_action() if settings.keys else ())
                self.keymap = read.keys
                self.set_keymap(dict(read.keys))
                return "; ".join(read.problems)
        return ""

    def use_animation(self, level: AnimationLevel) -> None:
        """Set the amount of animation, unless `TEXTUAL_ANIMATIONS` is in the environment."""
        if "TEXTUAL_ANIMATIONS" not in os.environ:
            self.animation_level = level

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Hold the cursor of a text still where nothing is to move."""
        if isinstance(event.widget, Input | TextArea) and self.animation_level == "none":
            event.widget.cursor_blink = False

    def _show_theme(self, name: str) -> str:
        problem = ""
        if name not in self.available_themes:
            problem = f"Unknown theme: {name}{did_you_mean(name, self.available_themes)}"
            name = DEFAULT_THEME
        if self.theme != name:
            self.theme = name
        elif self.is_running:
            self.refresh_css(animate=False)
        return problem

    def save_picture(self) -> None:
        """Write the screen to an SVG file in the current folder."""
        try:
            path = self.save_screenshot()
        except OSError as error:
            self.notify(f"The SVG file cannot be written: {reason_of(error)}", severity="error")
        else:
            self.notify(f"Saved {path}")

    # --- commands ---

    def commands(self, screen: Screen[Any]) -> Iterator[Command]:
        """Commands of a screen: its actions, the themes, and a picture of the screen."""
        yield from commands_of(self, screen, self.keymap)
        for name in sorted(self.available_themes, key=_own_first):
            use = partial(self.use_theme, name)
            yield Command(f"theme {name}", f"theme: {name}", "Use this theme", use)
        picture = "Write the screen to an SVG file"
        yield Command("picture", "screen: Save SVG", picture, self.save_picture)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for command in self.commands(screen):
            key = f"  ({command.key})" if command.key else ""
            run = partial(self.notify, command.obstacle) if command.obstacle else command.run
            yield SystemCommand(escape(visible(command.title)), f"{command.meaning}{key}", run)


def _own_first(theme: str) -> tuple[bool, str]:
    return not theme.startswith("kvchat"), theme


def open_chat(request: ModelRequest, *, theme: str | None = None) -> int:
    """Open the full-screen chat, with a theme for this time only; return its exit code.

    Raises:
        EngineError: something that was named does not exist, or the chats cannot be opened.
    """
    from app.startup import prepare

    opened = prepare(request)
    read_harmless_pastes()
    # The engine decodes on every core: the screen must not slow it down. Its client starts
    # the engine from a thread of its own, which keeps the priority that it has now.
    if sys.platform == "linux":
        os.nice(SCREEN_NICENESS)
    app = KvchatApp(
        opened.conversation,
        opened.services,
        model=opened.model,
        configuration=opened.configuration,
        theme=theme,
        notices=opened.notices,
    )
    # Looking through all that was imported for garbage stops the screen for a tenth of a second.
    gc.freeze()
    gc.enable()
    try:
        app.run()
    finally:
        opened.close()
    return app.return_code or 0
