"""The chat on the screen: which one it is, and what is done with it as a whole."""

from collections.abc import Callable

from textual.screen import Screen

from app.chat.conversation import Conversation
from app.screens.dialogs import ask, ask_line, report
from app.screens.drafts import shown_chat_id
from app.screens.sidebar import FOLDER_QUESTION, ChatSidebar, Place
from app.startup import Services
from app.store.errors import StoreError
from app.store.records import Chat, ChatChanges

UNSAVED = "the chat is saved with its first question"


class ShownChat:
    """Opens chats, and changes the one that is shown."""

    def __init__(
        self,
        screen: Screen[None],
        conversation: Conversation,
        sidebar: ChatSidebar,
        services: Services,
        *,
        turned: Callable[[], None],
    ) -> None:
        """Show chats of a conversation.

        Args:
            screen: Shows notices, and asks.
            conversation: Knows which chat is shown.
            sidebar: Lists the chats.
            services: The user's settings, and what is kept of chats.
            turned: Called when another chat is shown.
        """
        self._screen = screen
        self._conversation = conversation
        self._sidebar = sidebar
        self._services = services
        self._turned = turned
        self.jump: tuple[int, str] | None = None
        """A message to scroll to, and a text in it, once the chat is painted."""

    def begin(self) -> None:
        """Show a new chat."""
        self._conversation.new_chat()
        self._turned()

    def open(self, chat_id: int) -> None:
        """Show a stored chat."""
        try:
            self._conversation.open_chat(chat_id)
        except StoreError as error:
            report(self._screen, error)
        self._turned()

    def open_at(self, place: Place) -> None:
        """Show a stored chat, or a message of it, on whichever branch that is."""
        if place.chat_id != shown_chat_id(self._conversation):
            self.open(place.chat_id)
        if place.message_id is not None:
            self._go_to(place.message_id, place.found)

    def list_all(self, *, is_searching: bool = False) -> None:
        """List all chats, or search them, and show the one that is chosen."""
        from app.screens.chats import ChatsScreen, Opening

        shown = shown_chat_id(self._conversation)

        def left(opening: Opening | None) -> None:
            if (opening is None or opening.chat_id == shown) and not self._is_still_there():
                self._conversation.new_chat()
            if opening is not None:
                self.open_at(Place(opening.chat_id, opening.message_id, opening.found))

        screen = ChatsScreen(
            self._conversation, is_searching=is_searching, forget_kept=self._services.forget_kept
        )
        self._screen.app.push_screen(screen, left)

    def fork(self, message_id: int | None) -> None:
        """Copy the chat up to a message, or to its end, into a new chat, and show that."""
        chosen = message_id or self._conversation.history.head_id
        if chosen is None or chosen < 0:
            self._screen.notify("There is no message to fork yet.")
            return
        try:
            self._conversation.fork(chosen)
        except StoreError as error:
            report(self._screen, error)
            return
        self._turned()
        self._screen.notify("This is a new chat; the other one is unchanged.")

    def ask_settings(self) -> None:
        """Ask for system prompt and sampling, and how drafts are verified."""
        from app.screens.chat_settings import ChatSettings, ChatSettingsScreen

        conversation, history = self._conversation, self._conversation.history
        now = ChatSettings(history.system_prompt, history.sampling, conversation.speculation)

        def changed(settings: ChatSettings) -> None:
            try:
                history.change_settings(
                    system_prompt=settings.system_prompt, sampling=settings.sampling
                )
            except StoreError as error:
                report(self._screen, error)
            if settings.speculation != now.speculation:
                conversation.set_speculation(settings.speculation)

        prompts = self._services.settings.settings.prompts
        ask(self._screen, ChatSettingsScreen(now, prompts), changed)

    def pin(self) -> None:
        """Keep it at the top of the lists, or let it go."""
        if (chat := self._chat) is not None:
            self._sidebar.pin(chat.id)

    def ask_folder(self) -> None:
        """Ask for its folder."""
        if (chat := self._chat) is not None:
            ask_line(self._screen, FOLDER_QUESTION, chat.folder, self.put_into)

    def put_into(self, folder: str) -> None:
        """Put it into a folder."""
        if (chat := self._chat) is not None:
            self._sidebar.put_into(chat.id, folder)
            self._is_still_there()

    def ask_export(self) -> None:
        """Ask for a file and write it there."""
        from app.screens.chats import ask_export

        if (chat := self._chat) is not None:
            ask_export(self._screen, self._conversation.history.store, chat)
        else:
            self._screen.notify(f"There is nothing to export: {UNSAVED}.")

    def ask_title(self) -> None:
        """Ask for another title."""
        if (chat := self._chat) is not None:
            ask_line(self._screen, "Title of the chat", chat.title, self.rename)

    def rename(self, title: str) -> None:
        """Give it a title."""
        if (chat := self._chat) is None:
            return
        try:
            changes = ChatChanges(title=title, title_locked=True)
            self._conversation.history.store.update_chat(chat.id, changes)
        except StoreError as error:
            report(self._screen, error)
        self._is_still_there()

    @property
    def _chat(self) -> Chat | None:
        return self._conversation.history.chat

    def _is_still_there(self) -> bool:
        """Read it again, since it may have been changed elsewhere; False if it is gone."""
        try:
            self._conversation.refresh()
        except StoreError:
            return False
        return True

    def _go_to(self, message_id: int, found: str) -> None:
        try:
            is_there = self._conversation.show_message(message_id)
        except StoreError as error:
            report(self._screen, error)
            return
        if is_there:
            self.jump = (message_id, found)
        else:
            self._screen.notify(
                "The message is on another branch, and a reply is running here: try again later."
            )
