"""The list of chats: search, open, rename, archive, export, delete."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.timer import Timer

from app.cache import CachedChat, cached_chats, owner_of
from app.chat.conversation import Conversation
from app.paths import current_folder, typed_path
from app.render.chat_list import ChatRow, chat_facts, chat_row, hit_row, kept_text, snippet_row
from app.render.lines import Run
from app.sanitize import visible
from app.screens.dialogs import ask_line, confirm, in_thread, report
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat, ChatChanges, ChatSize
from app.store.search import SearchHit
from app.widgets.bars import KeyBar
from app.widgets.composer import SearchBox
from app.widgets.ink import InkLines
from app.widgets.select_list import Row, SelectList
from engine.errors import EngineError
from engine.files import is_file

SEARCH_AFTER_S = 0.12
"""Pause in typing after which is searched."""
PREFETCH_AFTER_S = 0.3
"""How long a chat is highlighted before the cache brings it into memory."""
PAGE = 500
"""Chats that are listed at once; more come when the last one is reached."""
MAX_HITS = 100
MAX_FILE_NAME = 40
"""Characters of a title that its file is called by."""
LEGEND = "enter opens · h w c: cached hot, warm, cold"
WIDTHS = [(0, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-low"), (28, "-tall")]


@dataclass(frozen=True, slots=True)
class Opening:
    """A chat to show, and where in it."""

    chat_id: int
    message_id: int | None = None
    """The message to go to; None is the end."""
    found: str = ""
    """What was found in it."""


class ChatsScreen(ModalScreen[Opening | None]):
    """The chats, or what a search finds in them; the result is what to open."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="chats-close",
                tooltip="Close the list and stay in this chat"),
        Binding("slash", "search", "Search", id="chats-search",
                tooltip='Search all chats: words, parts of words, "whole phrases"'),
        Binding("ctrl+f", "search", "Search", id="chats-search-too", show=False,
                tooltip="Search all chats"),
        Binding("r", "rename", "Rename", id="chats-rename", tooltip="Give the chat a title"),
        Binding("a", "archive", "Archive", id="chats-archive",
                tooltip="Archive the chat, or restore it from the archive"),
        Binding("A", "show_archive", "The archive", id="chats-show-archive",
                tooltip="Switch between the archive and the list"),
        Binding("x", "export", "Export", id="chats-export",
                tooltip="Write the chat to a file: Markdown, or JSON lines with every branch"),
        Binding("d", "delete", "Delete", id="chats-delete",
                tooltip="Delete the chat and the cached states that only it uses"),
        Binding("delete", "delete", "Delete", id="chats-delete-too", show=False,
                tooltip="Delete the chat and the cached states that only it uses"),
        Binding("j", "app.simulate_key('down')", "Down", id="chats-down", show=False,
                tooltip="Next chat"),
        Binding("k", "app.simulate_key('up')", "Up", id="chats-up", show=False,
                tooltip="Previous chat"),
    ]  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        *,
        is_searching: bool = False,
        forget_kept: Callable[[str], object] = lambda _: None,
    ) -> None:
        """List the chats of a conversation's store.

        Args:
            conversation: Its chat is marked; deleting and prefetching go through it.
            is_searching: Whether the search box is where the user writes first.
            forget_kept: Removes what lies on disk for an owner alone; raises `EngineError`.
        """
        super().__init__()
        self._conversation = conversation
        self._store = conversation.history.store
        self._starts_searching = is_searching
        self._forget_kept = forget_kept
        self._is_archive = False
        self._chats: list[Chat] = []
        self._limit = PAGE
        self._n_chats = 0
        self._sizes: dict[int, ChatSize] = {}
        self._hits: list[SearchHit] | None = None
        """What was found; None while nothing is searched."""
        self._search_timer: Timer | None = None
        self._prefetch_timer: Timer | None = None
        self._prefetched: set[int] = set()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -list"):
            yield SearchBox(placeholder="search all chats  (/)", id="chats-box", compact=True)
            yield SelectList(click_picks=True, id="chats")
            yield InkLines(id="chats-detail")
            yield KeyBar(id="chats-keys")

    def on_mount(self) -> None:
        shown = self._conversation.history.chat
        in_thread(self, "sizes", self._store.sizes, self._take_sizes)
        self._fill(shown.id if shown else None)
        if self._starts_searching:
            self.query_one(SearchBox).focus()

    # --- what it shows ---

    @property
    def _list(self) -> SelectList:
        return self.query_one(SelectList)

    def _fill(self, marked: int | None) -> None:
        """Read the chats again and show them, or what was found."""
        try:
            self._chats = self._store.list_chats(
                self._limit, archived=self._is_archive, pinned_first=True
            )
            self._n_chats = self._store.count_chats(archived=self._is_archive)
        except StoreError as error:
            report(self, error)
        self._paint(marked)
        self._list.focus()

    def _paint(self, marked: int | None = None) -> None:
        """Show the rows; the mark stays where it is, or goes to a chat."""
        now = datetime.now()
        if self._hits is not None:
            self._list.show_rows([_found_row(hit, now) for hit in self._hits])
        else:
            kept = self._kept()
            rows = [Row(c.id, partial(chat_row, self._row(c, kept), now)) for c in self._chats]
            self._list.show_rows(rows, marked)
        is_empty = self._list.marked_key is None
        dialog = self.query_one(".dialog")
        dialog.border_title = self._title()
        opens = LEGEND if self._hits is None else "enter opens"
        dialog.border_subtitle = "" if is_empty else opens
        self._show_marked()

    def _kept(self) -> dict[str, CachedChat] | None:
        """What is cached of each chat, by its owner; None where the engine reports no tiers."""
        report = self._conversation.snapshot().tiers
        if report is None:
            return None
        return {each.owner: each for each in cached_chats(report.entries)}

    def _row(self, chat: Chat, kept: dict[str, CachedChat] | None) -> ChatRow:
        shown = self._conversation.history.chat
        return ChatRow(
            chat,
            self._sizes.get(chat.id, ChatSize()),
            (kept or {}).get(owner_of(chat.id)),
            is_shown=shown is not None and shown.id == chat.id,
            is_answered=self._conversation.replies.of_chat(chat.id) is not None,
            is_cache_known=kept is not None,
        )

    def _title(self) -> str:
        if self._hits is not None:
            n = len(self._hits)
            return f"found {n}{' or more' if n == MAX_HITS else ''} in all chats"
        name = "archived chats" if self._is_archive else "chats"
        n = len(self._chats)
        return name if n == self._n_chats else f"{name}, the last {n:,} of {self._n_chats:,}"

    def _nothing(self) -> str:
        if self._hits is not None:
            return "No chat contains this text."
        return "The archive is empty." if self._is_archive else "There are no chats yet."

    def _take_sizes(self, sizes: dict[int, ChatSize]) -> None:
        self._sizes = sizes
        self._paint()

    def on_select_list_marked(self, message: SelectList.Marked) -> None:
        last = self._chats[-1].id if self._hits is None and self._chats else None
        if message.key == last and len(self._chats) < self._n_chats:
            self._limit += PAGE
            self._fill(self._chats[-1].id)
        else:
            self._show_marked()

    def _show_marked(self) -> None:
        """Show what is known of the marked chat, and let the cache bring it into memory."""
        if self._prefetch_timer is not None:
            self._prefetch_timer.stop()
        chat = self._marked()
        detail = self.query_one("#chats-detail", InkLines)
        if chat is None:
            detail.show([(Run(self._nothing(), "muted"),)])
            return
        row = self._row(chat, self._kept())
        detail.show([chat_facts(row), kept_text(row)])
        self._prefetch_timer = self.set_timer(PREFETCH_AFTER_S, lambda: self._prefetch(chat.id))

    def _prefetch(self, chat_id: int) -> None:
        if chat_id not in self._prefetched:
            self._prefetched.add(chat_id)
            self._prefetch_in_thread(chat_id)

    @work(thread=True, group="prefetch")
    def _prefetch_in_thread(self, chat_id: int) -> None:
        with suppress(StoreError):  # another kvchat deleted it: opening it will say so
            self._conversation.prefetch(chat_id)

    # --- search ---

    def action_search(self) -> None:
        self.query_one(SearchBox).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  Textual's own name
        """Hide the key to the search box from who is in it."""
        return not (action == "search" and isinstance(self.focused, SearchBox))

    def action_to_list(self) -> None:
        self._list.focus()

    def on_input_changed(self) -> None:
        if self._search_timer is not None:
            self._search_timer.stop()
        self._search_timer = self.set_timer(SEARCH_AFTER_S, self._search_now)

    def on_input_submitted(self) -> None:
        self._open(self._list.marked_key)

    def _search_now(self) -> None:
        text = self.query_one(SearchBox).value
        if text.strip():
            self._search(text)
        elif self._hits is not None:
            self._hits = None
            self._paint()

    def _search(self, text: str) -> None:
        search = partial(self._store.search, text, MAX_HITS)
        in_thread(self, "search", search, partial(self._take_hits, text))

    def _take_hits(self, text: str, hits: list[SearchHit]) -> None:
        if self.query_one(SearchBox).value == text:
            self._hits = hits
            self._paint()
            self._list.action_go(0)

    # --- opening ---

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        self._open(message.key)

    def _open(self, key: object) -> None:
        match key:
            case int():
                self.dismiss(Opening(key))
            case SearchHit():
                start, end = key.marked[0] if key.marked else (0, 0)
                self.dismiss(Opening(key.chat_id, key.message_id, key.snippet[start:end]))

    def action_close(self) -> None:
        self.dismiss(None)

    # --- changing chats ---

    def action_rename(self) -> None:
        chat = self._marked()
        if chat is not None:
            ask_line(self, "Title of the chat", chat.title, partial(self._rename, chat.id))

    def _rename(self, chat_id: int, title: str) -> None:
        self._write(
            lambda: self._store.update_chat(chat_id, ChatChanges(title=title, title_locked=True))
        )
        self._fill(chat_id)

    def action_archive(self) -> None:
        chat = self._marked()
        if chat is not None:
            is_archived = chat.archived_at is not None
            self._write(lambda: self._store.set_archived(chat.id, archived=not is_archived))
            self._search_again()
            self._fill(None)

    def action_show_archive(self) -> None:
        self._is_archive = not self._is_archive
        self.query_one(SearchBox).value = ""
        self._hits = None
        self._fill(None)

    def action_export(self) -> None:
        chat = self._marked()
        if chat is not None:
            ask_export(self, self._store, chat)

    def action_delete(self) -> None:
        chat = self._marked()
        if chat is None:
            return
        if self._conversation.replies.of_chat(chat.id) is not None:
            self.notify("A reply is running in this chat: stop it first.")
            return
        question = f"Delete “{visible(chat.title)}”, its messages and its cached states?"
        confirm(self, question, lambda: self._delete(chat))

    def _delete(self, chat: Chat) -> None:
        try:
            self._conversation.delete_chat(chat.id)
        except StoreError as error:
            report(self, error)
            return
        self._forget(owner_of(chat.id))
        self._search_again()
        self._fill(None)

    @work(thread=True, group="forget")
    def _forget(self, owner: str) -> None:
        """Remove what other models keep of it on disk."""
        try:
            self._forget_kept(owner)
        except EngineError as error:
            report(self, error)  # a notice may come from a thread, and outlives this screen

    # --- helpers ---

    def _search_again(self) -> None:
        if self._hits is not None:
            self._search(self.query_one(SearchBox).value)

    def _write(self, change: Callable[[], object]) -> None:
        try:
            change()
        except StoreError as error:
            report(self, error)

    def _marked(self) -> Chat | None:
        index = self._list.index
        if self._list.marked_key is None:
            return None
        if self._hits is None:
            return self._chats[index]
        try:
            return self._store.chat(self._hits[index].chat_id)
        except StoreError:
            # Another kvchat deleted it since it was found.
            return None


def _found_row(hit: SearchHit, now: datetime) -> Row[SearchHit]:
    below = None if hit.message_id is None else partial(snippet_row, hit)
    return Row(hit, partial(hit_row, hit, now), below)


def ask_export(screen: Screen[Any], store: ChatStore, chat: Chat) -> None:
    """Ask for the file that a chat is written to, and write it."""
    folder = current_folder()

    def export(name: str) -> None:
        path = folder / typed_path(name)
        write = partial(write_chat, screen.app, store, chat.id, path)
        # Of the application, so that it goes on when the screen is closed.
        begin = partial(screen.app.run_worker, write, thread=True, group="export")
        if is_file(path):
            confirm(screen, f"{path} exists. Replace it?", begin)
        else:
            begin()

    question = (
        f"File for the chat; without a folder it goes to {visible(str(folder))}. "
        "The extension sets the format: .md contains the current branch; .jsonl contains "
        "everything and "
        "can be imported"
    )
    ask_line(screen, question, file_name(chat.title), export)


def file_name(title: str) -> str:
    """The name of a file for a chat: its title, as far as a file may be called so."""
    words = re.sub(r"[^\w.-]+", "-", title).strip("-.")[:MAX_FILE_NAME].rstrip("-.")
    return f"{words or 'chat'}.md"


def write_chat(app: App[object], store: ChatStore, chat_id: int, path: Path) -> None:
    """Write a chat to a file and say what came of it; a thread's work, as a chat may be long."""
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
