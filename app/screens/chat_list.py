"""The list of chats: the sidebar, base of the dialog, and the first rows of an empty chat."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from app.cache import owner_of
from app.chat.conversation import Conversation
from app.render.chat_list import hit_row, snippet_row, when_text
from app.render.lines import Line, Run, clipped, spread
from app.sanitize import one_line, visible
from app.screens.dialogs import ask_line, confirm, in_thread, report
from app.store.errors import StoreError
from app.store.records import Chat, ChatChanges
from app.store.search import SearchHit
from app.widgets.select_list import Row, SelectList
from engine.errors import EngineError

SEARCH_AFTER_S = 0.15
"""Pause in typing before a search."""
MAX_HITS = 100
PAGE = 500
"""Chats that are listed at once; more come when the last one is reached."""
N_RECENT = 5
"""Chats that an empty chat offers."""
EXAMPLES = (
    ("explain", "Explain what a KV cache is to somebody who writes Python, in ten sentences."),
    ("rewrite", "Rewrite this so that a stranger understands it at once:\n\n"),
    ("a file", "What does @README.md promise, and to whom? Answer with a list of five points."),
)
"""A label, and the question for it."""
LABEL_WIDTH = 10
OTHERS = 2
"""Rank of the group of chats without folder."""


@dataclass(frozen=True, slots=True)
class ChatTarget:
    """A chat to open, or a message in it."""

    chat_id: int
    message_id: int | None = None
    """None is the end of the chat."""
    found: str = ""
    """The text that was found in the message."""


class ChatList(Vertical):
    """Chats by folder, pinned ones first, or the results of a search; keys change the marked chat.

    `forget_on_disk` removes the saved states on disk of one owner; it raises `EngineError`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash,ctrl+f", "search", "Search", id="chats-search",
                tooltip='Search all chats for words, parts of words or "phrases"'),
        Binding("r", "rename", "Rename", id="chats-rename", tooltip="Change the title of the chat"),
        Binding("p", "pin", "Pin", id="chats-pin",
                tooltip="Pin the highlighted chat to the top, or unpin it"),
        Binding("f", "folder", "Folder", id="chats-folder",
                tooltip="Put the highlighted chat into a folder"),
        Binding("a", "archive", "Archive", id="chats-archive",
                tooltip="Archive the chat, or restore it from the archive"),
        Binding("A", "show_archive", "The archive", id="chats-show-archive",
                tooltip="Switch between archived chats and the other chats"),
        Binding("x", "export", "Export", id="chats-export",
                tooltip="Write the chat to a file: Markdown, or JSON lines with every branch"),
        Binding("d,delete", "delete", "Delete", id="chats-delete",
                tooltip="Delete the chat and the cached states that no other chat uses"),
        Binding("down", "to_list", "To the list", id="search-to-list",
                tooltip="Go from the search to the results"),
    ]  # fmt: skip

    @dataclass
    class Opened(Message):
        """A chat was chosen."""

        target: ChatTarget

    def __init__(
        self,
        conversation: Conversation,
        forget_on_disk: Callable[[str], object],
        *,
        placeholder: str = "search chats",
        title: str = "chats",
        id: str | None = None,  # noqa: A002  Textual's own name
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.conversation = conversation
        self.store = conversation.history.store
        self.box = Input(placeholder=placeholder, compact=True)
        self.chats = SelectList(title=title, click_picks=True)
        self.hits: list[SearchHit] | None = None
        """Results of the search; None without one."""
        self.listed: Sequence[Chat] = ()
        self.n_chats = 0
        self.is_archive = False
        self._limit = PAGE
        self._forget_on_disk = forget_on_disk
        self._search_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self.box
        yield self.chats

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  Textual's own name
        """Hide the key to the search box while it has the focus."""
        return not (action == "search" and self.box.has_focus)

    # --- rows ---

    def show_current(self) -> None:
        """Read and show the chats, the open one marked."""
        shown = self.conversation.history.chat_id
        self.read(None if shown is None or self.hits is not None else ChatTarget(shown))

    def read(self, mark: ChatTarget | None = None) -> None:
        """Read and show the chats, unless they are hidden."""
        if not self.display or not self.is_attached:
            return
        is_archive = self.is_archive
        try:
            self.listed = self.store.list_chats(self._limit, archived=is_archive, pinned_first=True)
            self.n_chats = self.store.count_chats(archived=is_archive)
        except StoreError as error:
            report(self, error)
        self.paint(mark)

    def paint(self, mark: ChatTarget | None = None) -> None:
        """Show the rows; the mark goes to a chat, or stays where it is."""
        now = datetime.now()
        found = None if self.hits is None else [_hit_row(hit, now) for hit in self.hits]
        rows = self.chat_rows(now) if found is None else found
        self.chats.show_rows(rows, mark)
        if not rows:
            self.chats.show_text(lambda width: [clipped((Run(self.nothing, "muted"),), width)])

    @property
    def nothing(self) -> str:
        if self.hits is not None:
            return "No chat contains this text."
        return "The archive is empty." if self.is_archive else "There are no chats yet."

    def chat_rows(self, now: datetime) -> list[Row[object]]:
        """The rows of the chats, with a heading for each group."""
        ordered = sorted(self.listed, key=_group_of)
        rows: list[Row[object]] = []
        for (rank, _, name), members in groupby(ordered, _group_of):
            if rank < OTHERS or ordered[0].is_pinned or ordered[0].folder:
                rows.append(Row(("group", name), partial(_heading, name), is_enabled=False))
            rows += (
                Row(ChatTarget(c.id), partial(_chat_line, self._sign(c), c, now)) for c in members
            )
        return rows

    def _sign(self, chat: Chat) -> str:
        if self.conversation.reply_in(chat.id) is not None:
            return "●"
        return "•" if self.conversation.history.is_shown(chat.id) else " "

    # --- search ---

    def action_search(self) -> None:
        self.box.focus()

    def action_to_list(self) -> None:
        self.chats.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if self._search_timer is not None:
            self._search_timer.stop()
        self._search_timer = self.set_timer(SEARCH_AFTER_S, self.search_again)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self._open(self.chats.marked_key)

    def search_again(self) -> None:
        """Search for the text in the box; without text show all chats."""
        text = self.box.value
        if text.strip():
            search = partial(self.store.search, text, MAX_HITS)
            in_thread(self.screen, "search", search, partial(self._show_hits, text))
        elif self.hits is not None:
            self.hits = None
            self.paint()

    def _show_hits(self, text: str, hits: list[SearchHit]) -> None:
        if self.box.value == text:
            self.hits = hits
            self.paint()
            self.chats.action_go(0)

    def end_search(self) -> bool:
        """Show all chats again; False if nothing was searched."""
        was_searching = bool(self.box.value)
        self.box.value = ""
        return was_searching

    # --- the marked chat ---

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        message.stop()
        self._open(message.key)

    def on_select_list_marked(self, message: SelectList.Marked) -> None:
        """Read more chats at the last one."""
        last = self.listed[-1].id if self.hits is None and self.listed else 0
        if message.key == ChatTarget(last) and len(self.listed) < self.n_chats:
            self._limit += PAGE
            self.read(message.key)

    def _open(self, key: object) -> None:
        if isinstance(key, ChatTarget):
            self.post_message(self.Opened(key))

    def marked(self) -> Chat | None:
        """The marked chat; None if there is none in sight, or another process deleted it."""
        key = self.chats.marked_key if self.display else None
        try:
            return self.store.chat(key.chat_id) if isinstance(key, ChatTarget) else None
        except StoreError:
            return None

    def action_rename(self) -> None:
        self.ask_title(self.marked())

    def action_pin(self) -> None:
        self.pin(self.marked())

    def action_folder(self) -> None:
        self.ask_folder(self.marked())

    def action_archive(self) -> None:
        if (chat := self.marked()) is not None:
            now = time.time() if chat.archived_at is None else None
            self._change(chat, ChatChanges(archived_at=now))

    def action_show_archive(self) -> None:
        self.is_archive = not self.is_archive
        self.box.value = ""
        self.hits = None
        self.read()

    def action_export(self) -> None:
        from app.screens.chats import ask_export

        if (chat := self.marked()) is not None:
            ask_export(self.screen, self.store, chat)

    def action_delete(self) -> None:
        if (chat := self.marked()) is None:
            return
        if self.conversation.reply_in(chat.id) is not None:
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

    # --- a given chat; None changes nothing ---

    def ask_title(self, chat: Chat | None) -> None:
        if chat is not None:
            ask_line(self, "Title of the chat", chat.title, partial(self.rename, chat))

    def rename(self, chat: Chat | None, title: str) -> None:
        """Give a chat a title that questions do not change."""
        self._change(chat, ChatChanges(title=title, title_locked=True))

    def ask_folder(self, chat: Chat | None) -> None:
        if chat is not None:
            question = "Folder of the chat (a single dot removes the chat from its folder)"
            ask_line(self, question, chat.folder, partial(self.put_into, chat))

    def put_into(self, chat: Chat | None, folder: str) -> None:
        """Put a chat into a folder; `.` takes it out of its folder."""
        name = "" if folder.strip() == "." else " ".join(folder.split())
        self._change(chat, ChatChanges(folder=name))

    def pin(self, chat: Chat | None) -> None:
        if chat is not None:
            self._change(chat, ChatChanges(is_pinned=not chat.is_pinned))

    def _change(self, chat: Chat | None, changes: ChatChanges) -> None:
        if chat is None:
            return
        self.store.update_chat(chat.id, **changes)
        if self.conversation.history.is_shown(chat.id):
            self.conversation.history.refresh()
        self.search_again()
        self.read()


def _group_of(chat: Chat) -> tuple[int, str, str]:
    if chat.is_pinned:
        return 0, "", "pinned"
    return (1, chat.folder.casefold(), chat.folder) if chat.folder else (OTHERS, "", "others")


def _hit_row(hit: SearchHit, now: datetime) -> Row[object]:
    start, end = hit.marked[0] if hit.marked else (0, 0)
    below = None if hit.message_id is None else partial(snippet_row, hit)
    target = ChatTarget(hit.chat_id, hit.message_id, hit.snippet[start:end])
    return Row(target, partial(hit_row, hit, now), below)


def _heading(name: str, width: int) -> Line:
    return clipped((Run(one_line(name), "note"),), width)


def _chat_line(sign: str, chat: Chat, now: datetime, width: int) -> Line:
    when = (Run(when_text(chat.updated_at, now), "muted"),)
    return spread((Run(f"{sign} ", "accent"), Run(one_line(chat.title))), when, width)


@dataclass(frozen=True, slots=True)
class Example:
    """A question to begin with."""

    text: str


def beginnings(recent: Sequence[Chat]) -> list[Row[object]]:
    """Rows of an empty chat: the chats used last, and examples."""
    return [*_beginnings(recent, datetime.now())]


def _beginnings(recent: Sequence[Chat], now: datetime) -> Iterator[Row[object]]:
    for chat in recent:
        line = partial(_beginning, when_text(chat.updated_at, now), chat.title, "")
        yield Row(ChatTarget(chat.id), line)
    for label, text in EXAMPLES:
        yield Row(Example(text), partial(_beginning, label, text, "muted"))


def _beginning(label: str, text: str, style: str, width: int) -> Line:
    return clipped((Run(f"{label:<{LABEL_WIDTH}}", "accent"), Run(one_line(text), style)), width)
