"""The dialog of all chats: search, open, rename, archive, export, delete."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.timer import Timer

from app.cache import CachedChat, cached_chats, owner_of
from app.chat.conversation import Conversation
from app.paths import current_folder, typed_path
from app.render.chat_list import ChatRow, chat_facts, chat_row, kept_text
from app.render.lines import Run
from app.sanitize import visible
from app.screens.chat_list import MAX_HITS, ChatList, ChatTarget, ask_title
from app.screens.dialogs import ask_line, confirm, in_thread, report
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat, ChatSize
from app.widgets.bars import KeyBar
from app.widgets.composer import SearchBox
from app.widgets.ink import InkLines
from app.widgets.select_list import Row, SelectList
from engine.errors import EngineError
from engine.files import is_file

PREFETCH_AFTER_S = 0.3
"""How long a chat is marked before its saved states are read into memory."""
PAGE = 500
"""Chats that are listed at once; more come when the last one is reached."""
MAX_FILE_NAME = 40
"""Characters of a title in the name of a file."""
LEGEND = "enter opens · cached in: h context, w RAM, c disk"
WIDTHS = [(0, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-low"), (28, "-tall")]
CLOSE = Binding("escape", "screen.close", "Close", id="chats-close",
                tooltip="Close the list and stay in this chat")  # fmt: skip


class ChatsScreen(ModalScreen[ChatTarget | None]):
    """The chats, or what a search finds in them; the result is what to open."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        CLOSE,
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
        """List chats, the shown one marked, with the focus in the list or in the search box.

        `forget_on_disk` removes the saved states on disk of one owner; it raises `EngineError`.
        """
        super().__init__()
        self._table = ChatTable(conversation, is_searching, forget_on_disk)

    def compose(self) -> ComposeResult:
        yield self._table

    def on_chat_list_opened(self, message: ChatList.Opened) -> None:
        self.dismiss(message.target)

    def action_to_list(self) -> None:
        self._table.chats.focus()

    def action_close(self) -> None:
        self.dismiss(None)


class ChatTable(ChatList):
    """Chats with their sizes and cached states, and what can be done with them."""

    NO_HITS = "No chat contains this text."
    BINDINGS: ClassVar[list[BindingType]] = [
        CLOSE,
        Binding("slash", "search", "Search", id="chats-search",
                tooltip='Search all chats for words, parts of words or "whole phrases"'),
        Binding("ctrl+f", "search", "Search", id="chats-search-too", show=False,
                tooltip="Search all chats"),
        Binding("r", "rename", "Rename", id="chats-rename", tooltip="Change the title of the chat"),
        Binding("a", "archive", "Archive", id="chats-archive",
                tooltip="Archive the chat, or restore it from the archive"),
        Binding("A", "show_archive", "The archive", id="chats-show-archive",
                tooltip="Switch between archived chats and the other chats"),
        Binding("x", "export", "Export", id="chats-export",
                tooltip="Write the chat to a file: Markdown, or JSON lines with every branch"),
        Binding("d", "delete", "Delete", id="chats-delete",
                tooltip="Delete the chat and the cached states that no other chat uses"),
        Binding("delete", "delete", "Delete", id="chats-delete-too", show=False,
                tooltip="Delete the chat and the cached states that no other chat uses"),
    ]  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        is_searching: bool,
        forget_on_disk: Callable[[str], object],
    ) -> None:
        super().__init__(conversation, "search all chats  (/)", classes="dialog -list")
        self._is_searching = is_searching
        self._forget_on_disk = forget_on_disk
        self._is_archive = False
        self._chats: list[Chat] = []
        self._limit = PAGE
        self._n_chats = 0
        self._sizes: dict[int, ChatSize] = {}
        self._detail = InkLines(id="chats-detail")
        self._prefetch_timer: Timer | None = None
        self._prefetched: set[int] = set()

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield self._detail
        yield KeyBar(id="chats-keys")

    def on_mount(self) -> None:
        in_thread(self.screen, "sizes", self.store.sizes, self._show_sizes)
        shown = self.conversation.history.chat_id
        self.read(None if shown is None else ChatTarget(shown))
        if self._is_searching:
            self.box.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  Textual's own name
        """Hide the key to the search box while it has the focus."""
        return not (action == "search" and isinstance(self.screen.focused, SearchBox))

    # --- rows ---

    def read(self, mark: ChatTarget | None = None) -> None:
        is_archive = self._is_archive
        try:
            self._chats = self.store.list_chats(self._limit, archived=is_archive, pinned_first=True)
            self._n_chats = self.store.count_chats(archived=is_archive)
        except StoreError as error:
            report(self, error)
        self.paint(mark)
        self.chats.focus()

    def paint(self, mark: ChatTarget | None = None) -> None:
        super().paint(mark)
        opens = LEGEND if self.hits is None else "enter opens"
        self.border_title = self._title()
        self.border_subtitle = opens if self.chats.rows else ""
        self._show_marked()

    def chat_rows(self, now: datetime) -> list[Row[object]]:
        cached = self._cached()
        return [
            Row(ChatTarget(c.id), partial(chat_row, self._row(c, cached), now)) for c in self._chats
        ]

    def _cached(self) -> dict[str, CachedChat] | None:
        """Cached states by owner; None before a model is loaded."""
        report = self.conversation.snapshot().tiers
        if report is None:
            return None
        return {each.owner: each for each in cached_chats(report.entries)}

    def _row(self, chat: Chat, cached: dict[str, CachedChat] | None) -> ChatRow:
        return ChatRow(
            chat,
            self._sizes.get(chat.id, ChatSize()),
            (cached or {}).get(owner_of(chat.id)),
            is_shown=chat.id == self.conversation.history.chat_id,
            is_answered=self.is_answered(chat),
            is_cache_known=cached is not None,
        )

    def _title(self) -> str:
        if self.hits is not None:
            n = len(self.hits)
            return f"matches in all chats: {n}{' or more' if n == MAX_HITS else ''}"
        name = "archived chats" if self._is_archive else "chats"
        n = len(self._chats)
        return name if n == self._n_chats else f"{name}, the last {n:,} of {self._n_chats:,}"

    @property
    def nothing(self) -> str:
        is_empty_archive = self._is_archive and self.hits is None
        return "The archive is empty." if is_empty_archive else super().nothing

    def _show_sizes(self, sizes: dict[int, ChatSize]) -> None:
        self._sizes = sizes
        self.paint()

    def on_select_list_marked(self, message: SelectList.Marked) -> None:
        message.stop()
        last = self._chats[-1].id if self.hits is None and self._chats else None
        if message.key == ChatTarget(last or 0) and len(self._chats) < self._n_chats:
            self._limit += PAGE
            self.read(message.key)
        else:
            self._show_marked()

    def _show_marked(self) -> None:
        """Show facts of the marked chat, and read its saved states into memory."""
        if self._prefetch_timer is not None:
            self._prefetch_timer.stop()
        chat = self.marked()
        if chat is None:
            self._detail.show([(Run(self.nothing, "muted"),)])
            return
        row = self._row(chat, self._cached())
        self._detail.show([chat_facts(row), kept_text(row)])
        if chat.id not in self._prefetched:
            self._prefetch_timer = self.set_timer(PREFETCH_AFTER_S, lambda: self._prefetch(chat.id))

    @work(thread=True, group="prefetch")
    def _prefetch(self, chat_id: int) -> None:
        self._prefetched.add(chat_id)
        with suppress(StoreError):  # another kvchat process deleted it: opening it reports that
            self.conversation.prefetch(chat_id)

    # --- the marked chat ---

    def action_rename(self) -> None:
        if (chat := self.marked()) is not None:
            ask_title(self, chat, partial(self.change, chat))

    def action_archive(self) -> None:
        if (chat := self.marked()) is not None:
            now = time.time() if chat.archived_at is None else None
            self.store.update_chat(chat.id, archived_at=now)
            self.search_again()
            self.read()

    def action_show_archive(self) -> None:
        self._is_archive = not self._is_archive
        self.box.value = ""
        self.hits = None
        self.read()

    def action_export(self) -> None:
        if (chat := self.marked()) is not None:
            ask_export(self.screen, self.store, chat)

    def action_delete(self) -> None:
        if (chat := self.marked()) is None:
            return
        if self.is_answered(chat):
            self.notify("A reply is running in this chat: stop the reply first.")
            return
        question = f"Delete “{visible(chat.title)}”, its messages and its cached states?"
        confirm(self, question, lambda: self._delete(chat))

    def _delete(self, chat: Chat) -> None:
        self.conversation.delete_chat(chat.id)
        self._forget(owner_of(chat.id))
        self.search_again()
        self.read()

    @work(thread=True, group="forget")
    def _forget(self, owner: str) -> None:
        """Delete the saved states of the chat on disk, including those of other models."""
        try:
            self._forget_on_disk(owner)
        except EngineError as error:
            report(self.app, error)  # a notice may come from a thread, and outlives this screen


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
    """The name of a file for a chat: its title, as far as a file may be called so."""
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
