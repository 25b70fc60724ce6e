"""The dialog of all chats, and the export of a chat."""

import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from app.cache import CachedChat, cached_chats, owner_of
from app.chat.conversation import Conversation
from app.paths import current_folder, typed_path
from app.render.chat_list import ChatRow, chat_facts, chat_row, context_text
from app.render.lines import Run
from app.sanitize import visible
from app.screens.chat_list import MAX_HITS, ChatList, ChatTarget
from app.screens.dialogs import ask_line, confirm, in_thread, report
from app.store.chats import ChatStore
from app.store.records import Chat, ChatSize
from app.widgets.bars import KeyBar
from app.widgets.ink import InkLines
from app.widgets.select_list import Row, SelectList
from engine.errors import EngineError
from engine.files import is_file

MAX_FILE_NAME = 40
"""Characters of a title in the name of a file."""
LEGEND = "enter opens · cached in: h context, w RAM, c disk"
WIDTHS = [(0, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-low"), (28, "-tall")]


class ChatsScreen(ModalScreen[ChatTarget | None]):
    """The chats, or the results of a search; the result is what to open."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", id="chats-close",
                tooltip="Close the list and stay in this chat"),
        Binding("j", "app.simulate_key('down')", "Down", id="chats-down", show=False,
                tooltip="Go to the next chat"),
        Binding("k", "app.simulate_key('up')", "Up", id="chats-up", show=False,
                tooltip="Go to the previous chat"),
    ]  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        *,
        is_searching: bool = False,
        forget_on_disk: Callable[[str], object] = lambda _: None,
    ) -> None:
        """List chats, the open one marked, with the focus in the list or in the search box."""
        super().__init__()
        self._is_searching = is_searching
        self._table = ChatTable(conversation, forget_on_disk)

    def compose(self) -> ComposeResult:
        yield self._table

    def on_mount(self) -> None:
        (self._table.box if self._is_searching else self._table.chats).focus()

    def on_chat_list_opened(self, message: ChatList.Opened) -> None:
        self.dismiss(message.target)


class ChatTable(ChatList):
    """Chats with their sizes and cached states."""

    def __init__(self, conversation: Conversation, forget_on_disk: Callable[[str], object]) -> None:
        super().__init__(
            conversation, forget_on_disk, placeholder="search all chats  (/)", title="",
            classes="dialog -list",
        )  # fmt: skip
        self._sizes: dict[int, ChatSize] = {}
        self._detail = InkLines(id="chats-detail")

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield self._detail
        yield KeyBar(id="chats-keys")

    def on_mount(self) -> None:
        in_thread(self.screen, "sizes", self.store.sizes, self._show_sizes)
        self.show_current()

    def paint(self, mark: ChatTarget | None = None) -> None:
        super().paint(mark)
        opens = LEGEND if self.hits is None else "enter opens"
        self.border_title = self._title()
        self.border_subtitle = opens if self.chats.rows else ""
        self._show_marked()

    def chat_rows(self, now: datetime) -> list[Row[object]]:
        cached = self._cached()
        return [
            Row(ChatTarget(c.id), partial(chat_row, self._row(c, cached), now)) for c in self.listed
        ]

    def _cached(self) -> dict[str, CachedChat] | None:
        """Cached states by owner; None before a model is loaded."""
        report = self.conversation.snapshot().tiers
        return None if report is None else {e.owner: e for e in cached_chats(report.entries)}

    def _row(self, chat: Chat, cached: dict[str, CachedChat] | None) -> ChatRow:
        return ChatRow(
            chat,
            self._sizes.get(chat.id, ChatSize()),
            (cached or {}).get(owner_of(chat.id)),
            is_shown=self.conversation.history.is_shown(chat.id),
            is_answered=self.conversation.reply_in(chat.id) is not None,
            is_cache_known=cached is not None,
        )

    def _title(self) -> str:
        if self.hits is not None:
            n = len(self.hits)
            return f"matches in all chats: {n}{' or more' if n == MAX_HITS else ''}"
        name = "archived chats" if self.is_archive else "chats"
        n = len(self.listed)
        return name if n == self.n_chats else f"{name}, the {n:,} most recent of {self.n_chats:,}"

    def _show_sizes(self, sizes: dict[int, ChatSize]) -> None:
        self._sizes = sizes
        self.paint()

    def on_select_list_marked(self, message: SelectList.Marked) -> None:
        super().on_select_list_marked(message)
        self._show_marked()

    def _show_marked(self) -> None:
        chat = self.marked()
        if chat is None:
            self._detail.show([(Run(self.nothing, "muted"),)])
            return
        row = self._row(chat, self._cached())
        self._detail.show([chat_facts(row), context_text(row)])


def ask_export(screen: Screen[Any], store: ChatStore, chat: Chat) -> None:
    """Ask for the file that a chat is written to, and write it."""
    folder = current_folder()

    def export(name: str) -> None:
        path = folder / typed_path(name)
        write = partial(write_chat, screen.app, store, chat.id, path)
        # Of the application, so that it continues when the screen is closed.
        begin = partial(screen.app.run_worker, write, thread=True, group="export")
        if is_file(path):
            confirm(screen, f"{path} already exists. Replace it?", begin)
        else:
            begin()

    question = (
        f"File for the chat; relative paths start in {visible(str(folder))}. "
        "The extension sets the format: .md contains the current branch; .jsonl contains "
        "every branch and can be imported"
    )
    ask_line(screen, question, file_name(chat.title), export)


def file_name(title: str) -> str:
    """File name for a chat: its title without characters that file names cannot have."""
    words = re.sub(r"[^\w.-]+", "-", title).strip("-.")[:MAX_FILE_NAME].rstrip("-.")
    return f"{words or 'chat'}.md"


def write_chat(app: App[object], store: ChatStore, chat_id: int, path: Path) -> None:
    """Write a chat to a file and report the result; runs in a thread, as a chat may be long."""
    from app.chat_files import format_of, text_of, write_chats

    form = format_of(path)
    try:
        tree = store.tree(chat_id)
        pieces = text_of([tree], form, all_branches=form == "jsonl")
        write_chats(path, pieces, replace=True)
    except EngineError as error:
        report(app, error)
    else:
        app.notify(f"Written: {path}")
