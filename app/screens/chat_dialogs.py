"""The dialogs that the chat leads to, and what it does with their answers."""

from pathlib import Path
from typing import TYPE_CHECKING

from textual import work
from textual.screen import Screen

from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.screens.hand_back import hand_back
from app.startup import Services
from app.store.errors import StoreError
from engine.configuration import Configuration
from engine.errors import EngineError

if TYPE_CHECKING:
    from app.screens.plan_choices import LeftPlan


class ChatDialogs(Screen[None]):
    """Opens dialogs; each is imported with its first use, to start fast."""

    def __init__(self, controller: Conversation, services: Services) -> None:
        super().__init__()
        self.controller = controller
        self.room = ContextFull(controller)
        self.services = services
        self.is_choosing = False
        """The user is asked what goes from a full context: nothing else is asked meanwhile."""
        self._left_plan: LeftPlan | None = None

    # --- chats ---

    def action_chats(self) -> None:
        """List the chats."""
        self._list_chats()

    def action_search(self) -> None:
        """Search all chats."""
        self._list_chats(is_searching=True)

    def _list_chats(self, *, is_searching: bool = False) -> None:
        from app.screens.chats import ChatsScreen, Opening

        history = self.controller.history
        shown = history.chat.id if history.chat else None

        def opened(opening: Opening | None) -> None:
            if opening is not None and opening.chat_id != shown:
                self.open_chat(opening.chat_id)
            elif shown is not None and not self._follow_changes():
                self.controller.new_chat()
            if opening is not None and opening.message_id is not None:
                self.go_to_message(opening.message_id, opening.found)

        screen = ChatsScreen(
            self.controller,
            is_searching=is_searching,
            forget_kept=self.services.forget_kept,
        )
        self.app.push_screen(screen, opened)

    def go_to_message(self, message_id: int, found: str) -> None:
        """Show a message of the shown chat, on whichever branch it is.

        Args:
            message_id: The message.
            found: A text in it, whose first line is scrolled to.
        """
        try:
            is_there = self.controller.show_message(message_id)
        except StoreError as error:
            self.report(error)
            return
        if is_there:
            self.jump_to(message_id, found)
        else:
            self.notify("It is on another branch, and this chat is being written: try it later.")

    def jump_to(self, message_id: int, found: str) -> None:
        """Scroll to a message as soon as it is shown."""
        raise NotImplementedError

    def _follow_changes(self) -> bool:
        """Read the shown chat again after the list may have changed it; False if it is gone."""
        try:
            self.controller.refresh()
        except StoreError:
            return False
        return True

    def open_chat(self, chat_id: int) -> None:
        """Show a stored chat."""
        try:
            self.controller.open_chat(chat_id)
        except StoreError as error:
            self.report(error)
            return
        if self.controller.history.is_read_only:
            self.notify("Another kvchat writes this chat: it is read-only here.", title="Read-only")

    # --- a full context ---

    def offer_room(self, why: str) -> None:
        """Ask what to do where the context is full.

        Args:
            why: What is full, in words.
        """
        from app.screens.context_full import ContextChoice, ContextFullScreen

        if not self.is_current:
            # Another screen is in front: the hint behind the reply leads here later.
            self.notify(why, title="The context is full", severity="warning", markup=False)
            return

        def chosen(choice: ContextChoice | None) -> None:
            self.is_choosing = False
            try:
                match choice:
                    case "shift":
                        self.room.shift()
                    case "summarise":
                        self.room.summarise()
                    case "branch":
                        self.room.branch_off()
                    case _:
                        self.controller.replies.take_back_refused()
            except EngineError as error:
                self.report(error)

        self.is_choosing = True
        self.app.push_screen(ContextFullScreen(why, self.room.options()), chosen)

    def action_see_all(self) -> None:
        """Let the model see the whole chat again."""
        try:
            if not self.room.see_all():
                self.notify("The model sees the whole chat.")
        except StoreError as error:
            self.report(error)

    def action_chat_settings(self) -> None:
        """Ask for system prompt and sampling, and how drafts are judged."""
        from app.screens.chat_settings import ChatSettings, ChatSettingsScreen

        history = self.controller.history
        if history.is_read_only:
            self.notify("Another kvchat writes this chat: it is read-only here.")
            return

        def changed(settings: ChatSettings | None) -> None:
            if settings is None:
                return
            try:
                history.change_settings(
                    system_prompt=settings.system_prompt, sampling=settings.sampling
                )
            except StoreError as error:
                self.report(error)
            if settings.speculation != now.speculation:
                self.controller.set_speculation(settings.speculation)

        now = ChatSettings(history.system_prompt, history.sampling, self.controller.speculation)
        self.app.push_screen(ChatSettingsScreen(now), changed)

    # --- models ---

    def action_models(self) -> None:
        """List the models."""
        from app.screens.models import ModelsScreen

        loaded = self.controller.configuration
        screen = ModelsScreen(
            self.services.scan,
            self.services.folders,
            loaded.model_path if loaded else None,
            add=self.welcome,
        )
        self.app.push_screen(screen, self.open_model)

    def action_planner(self) -> None:
        """Plan the loaded model, or any other."""
        from app.screens.planner import PlannerScreen

        configuration = self.controller.configuration
        loaded = self.controller.loaded
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

        self.app.push_screen(screen, closed)

    def action_presets(self) -> None:
        """List the presets."""
        from app.screens.presets import PresetsScreen

        loaded = self.controller.loaded
        screen = PresetsScreen(
            self.services.presets_dir,
            self.controller.configuration,
            measured=loaded.buffers if loaded else (),
        )

        def chosen(configuration: Configuration | None) -> None:
            if configuration is not None:
                self.controller.history.use_preset(configuration.sampling, screen.system_prompt)
                self.load(configuration)

        self.app.push_screen(screen, chosen)

    def welcome(self) -> None:
        """Say where models were looked for, and install the starter if asked to."""
        from app.screens.first_run import WELCOME, FirstRunScreen

        def look() -> Path | None:
            usable = [entry.path for entry in self.services.scan() if not entry.problem]
            return usable[0] if usable else None

        title = "add a model" if self.controller.configuration else WELCOME
        screen = FirstRunScreen(
            self.services.folders, self.services.install_starter, look, title=title
        )
        self.app.push_screen(screen, self.open_model)

    def open_model(self, path: Path | None) -> None:
        """Load a model with the configuration that suits it; None stays with what is there."""
        if path is not None:
            self._configure(path)

    @work(thread=True, exclusive=True, group="configure")
    def _configure(self, path: Path) -> None:
        try:
            configuration = self.services.configure(path)
        except EngineError as error:
            hand_back(self, self.report, error)
            return
        hand_back(self, self.load, configuration)

    def load(self, configuration: Configuration | None) -> None:
        """Load a configuration; None stays with what is there."""
        if configuration is not None:
            self.controller.load(configuration)
            self._plan(configuration)

    @work(thread=True, exclusive=True, group="plan")
    def _plan(self, configuration: Configuration) -> None:
        try:
            planned = self.services.planned_bytes(configuration)
        except EngineError:
            # The load itself tells what is wrong with the file; the panel shows a dash.
            planned = None
        hand_back(self, self.controller.meters.set_planned, planned)

    def report(self, error: EngineError) -> None:
        """Show an error as a notice."""
        self.notify(str(error), title=error.title, severity="error", markup=False)
