"""The list of chats: open, rename, delete."""

from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.render.sanitize import visible
from app.screens.ask import AskLine, AskYes
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat


class ChatsScreen(ModalScreen[int | None]):
    """Gives the id of the chat to open, None to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="chats-close", tooltip="Stay in this chat"),
        Binding("r", "rename", "Rename", id="chats-rename", tooltip="Give the chat a title"),
        Binding("d,delete", "delete", "Delete", id="chats-delete", tooltip="Delete the chat"),
        Binding("j", "move(1)", "Down", id="chats-down", show=False, tooltip="Next chat"),
        Binding("k", "move(-1)", "Up", id="chats-up", show=False, tooltip="Chat above"),
    ]

    def __init__(self, store: ChatStore, shown_id: int | None, busy_id: int | None) -> None:
        super().__init__()
        self._store = store
        self._shown_id = shown_id
        self._busy_id = busy_id
        """The chat that a reply is being written in."""
        self._chats: list[Chat] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static("chats", classes="title", markup=False)
            yield OptionList(id="chats")
            yield Static("enter opens · r renames · d deletes · esc stays", classes="hint")

    def on_mount(self) -> None:
        self._fill(self._shown_id)

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        if message.option_id is not None:
            self.dismiss(int(message.option_id))

    def action_move(self, step: int) -> None:
        """Go down or up."""
        chats = self.query_one(OptionList)
        if step > 0:
            chats.action_cursor_down()
        else:
            chats.action_cursor_up()

    def action_rename(self) -> None:
        """Ask for another title."""
        chat = self._highlighted()
        if chat is None:
            return

        def rename(title: str | None) -> None:
            if title:
                self._write(
                    lambda: self._store.update_chat(chat.id, title=title, title_locked=True)
                )
                self._fill(chat.id)

        self.app.push_screen(AskLine("Title of the chat", chat.title), rename)

    def action_delete(self) -> None:
        """Ask, then delete."""
        chat = self._highlighted()
        if chat is None:
            return
        if chat.id == self._busy_id:
            self.notify("A reply is being written in this chat: stop it first.")
            return

        def delete(is_sure: bool | None) -> None:
            if is_sure:
                self._delete(chat)

        self.app.push_screen(AskYes(f"Delete “{visible(chat.title)}” and its messages?"), delete)

    def _delete(self, chat: Chat) -> None:
        self._write(lambda: self._delete_unless_locked(chat.id))
        self._fill(None)

    def _delete_unless_locked(self, chat_id: int) -> None:
        if chat_id != self._shown_id:
            lock = self._store.lock_chat(chat_id)
            if lock is None:
                self.notify("Another kvchat writes this chat: it stays.", severity="warning")
                return
            lock.close()
        self._store.delete_chat(chat_id)

    def _write(self, change: Callable[[], object]) -> None:
        try:
            change()
        except StoreError as error:
            self.notify(str(error), title=error.title, severity="error", markup=False)

    def _highlighted(self) -> Chat | None:
        place = self.query_one(OptionList).highlighted
        return self._chats[place] if place is not None else None

    def _fill(self, highlighted_id: int | None) -> None:
        try:
            self._chats = self._store.list_chats()
        except StoreError as error:
            self.notify(str(error), title=error.title, severity="error", markup=False)
        chats = self.query_one(OptionList)
        place = chats.highlighted or 0
        chats.set_options(
            [Option(_prompt(chat, self._shown_id), str(chat.id)) for chat in self._chats]
        )
        ids = [chat.id for chat in self._chats]
        if highlighted_id in ids:
            place = ids.index(highlighted_id)
        chats.highlighted = min(place, len(ids) - 1) if ids else None
        chats.focus()


def _prompt(chat: Chat, shown_id: int | None) -> Content:
    when = datetime.fromtimestamp(chat.updated_at).strftime("%Y-%m-%d %H:%M")
    marker = "▸ " if chat.id == shown_id else "  "
    return Content.assemble(
        marker, (when, "$text-muted"), "  ", visible(chat.title.replace("\n", " "))
    )
