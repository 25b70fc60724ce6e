"""Lists of chats: base of the dialog, the sidebar, and what an empty chat offers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from app.chat.conversation import Conversation
from app.render.chat_list import hit_row, snippet_row, when_text
from app.render.lines import Line, Run, clipped, spread
from app.sanitize import one_line
from app.screens.dialogs import ask_line, in_thread, report
from app.store.errors import StoreError
from app.store.records import Chat, ChatChanges
from app.store.search import SearchHit
from app.widgets.composer import SearchBox
from app.widgets.select_list import Row, SelectList

SEARCH_AFTER_S = 0.15
"""Pause in typing after which is searched."""
MAX_HITS = 100
N_SIDEBAR = 300
"""Chats in the sidebar; the dialog lists older ones."""
N_RECENT = 5
"""Chats that an empty chat offers."""
EXAMPLES = (
    ("explain", "Explain what a KV cache is to somebody who writes Python, in ten sentences."),
    ("rewrite", "Rewrite this so that a stranger understands it at once:\n\n"),
    ("a file", "What does @README.md promise, and to whom? Answer with a list of five points."),
)
"""A word, and the question that it stands for."""
LABEL_WIDTH = 10


@dataclass(frozen=True, slots=True)
class ChatTarget:
    """A chat to open, or a message in it."""

    chat_id: int
    message_id: int | None = None
    """None is the end of the chat."""
    found: str = ""
    """The text that was found in the message."""


class ChatList(Vertical):
    """A search box over chats, or over what the search found."""

    NO_HITS: ClassVar[str] = "No chat matches."

    @dataclass
    class Opened(Message):
        """A chat was chosen."""

        target: ChatTarget

    def __init__(
        self,
        conversation: Conversation,
        placeholder: str,
        title: str = "",
        *,
        id: str | None = None,  # noqa: A002  Textual's own name
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.conversation = conversation
        self.store = conversation.history.store
        self.box = SearchBox(placeholder=placeholder, compact=True)
        self.chats = SelectList(title=title, click_picks=True)
        self.hits: list[SearchHit] | None = None
        """What was found; None while nothing is searched."""
        self._search_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self.box
        yield self.chats

    def read(self) -> None:
        """Show the chats as they are stored now."""
        raise NotImplementedError

    def chat_rows(self, now: datetime) -> list[Row[object]]:
        """The rows of the chats that were read."""
        raise NotImplementedError

    @property
    def nothing(self) -> str:
        """What an empty list shows."""
        return "There are no chats yet." if self.hits is None else self.NO_HITS

    def paint(self, mark: ChatTarget | None = None) -> None:
        """Show the rows; the mark goes to a chat, or stays where it is."""
        now = datetime.now()
        found = None if self.hits is None else [_hit_row(hit, now) for hit in self.hits]
        rows: Sequence[Row[object]] = self.chat_rows(now) if found is None else found
        self.chats.show_rows(rows, mark)
        if not rows:
            self.chats.show_text(lambda width: [clipped((Run(self.nothing, "muted"),), width)])

    def is_answered(self, chat: Chat) -> bool:
        """Whether a reply is being written in a chat."""
        return self.conversation.reply_in(chat.id) is not None

    # --- search ---

    def action_search(self) -> None:
        self.box.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if self._search_timer is not None:
            self._search_timer.stop()
        self._search_timer = self.set_timer(SEARCH_AFTER_S, self.search_again)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self._open(self.chats.marked_key)

    def search_again(self) -> None:
        """Search what the box holds; without text show all chats."""
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
        message.stop()

    def _open(self, key: object) -> None:
        if isinstance(key, ChatTarget):
            self.post_message(self.Opened(key))

    def marked(self) -> Chat | None:
        """The marked chat; None if there is none, or another kvchat process deleted it."""
        key = self.chats.marked_key
        try:
            return self.store.chat(key.chat_id) if isinstance(key, ChatTarget) else None
        except StoreError:
            return None

    def change(self, chat: Chat, changes: ChatChanges) -> None:
        """Change a chat and show the list again."""
        self.store.update_chat(chat.id, **changes)
        self.read()


class ChatSidebar(ChatList):
    """The chats next to the transcript: pinned ones, those of each folder, all others."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pin", "Pin", id="sidebar-pin",
                tooltip="Pin the highlighted chat to the top, or unpin it"),
        Binding("f", "folder", "Folder", id="sidebar-folder",
                tooltip="Put the highlighted chat into a folder"),
        Binding("slash", "search", "Search", id="sidebar-search",
                tooltip="Search titles and messages of all chats"),
    ]  # fmt: skip

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(conversation, "search chats", "chats", id="sidebar")
        self._chats: Sequence[Chat] = ()

    def read(self) -> None:
        if not self.display or not self.is_mounted:
            return  # nothing is read while it is hidden
        try:
            self._chats = self.store.list_chats(N_SIDEBAR, pinned_first=True)
        except StoreError as error:
            report(self, error)
        shown = self.conversation.history.chat_id
        self.paint(None if shown is None or self.hits is not None else ChatTarget(shown))

    def chat_rows(self, now: datetime) -> list[Row[object]]:
        shown = self.conversation.history.chat_id
        ordered = sorted(self._chats, key=_group_of)
        rows: list[Row[object]] = []
        for (rank, _, name), members in groupby(ordered, _group_of):
            if rank < OTHERS or ordered[0].is_pinned or ordered[0].folder:
                heading = partial(_heading, name)
                rows.append(Row(("group", name), heading, is_enabled=False))
            for chat in members:
                sign = "●" if self.is_answered(chat) else "•" if chat.id == shown else " "
                rows.append(Row(ChatTarget(chat.id), partial(_chat_line, sign, chat, now)))
        return rows

    def action_pin(self) -> None:
        if (chat := self.marked()) is not None:
            self.change(chat, ChatChanges(is_pinned=not chat.is_pinned))

    def action_folder(self) -> None:
        if (chat := self.marked()) is not None:
            ask_folder(self, chat, partial(self.change, chat))


OTHERS = 2
"""Rank of the group of chats without folder."""


def _group_of(chat: Chat) -> tuple[int, str, str]:
    if chat.is_pinned:
        return 0, "", "pinned"
    return (1, chat.folder.casefold(), chat.folder) if chat.folder else (OTHERS, "", "others")


def ask_folder(node: DOMNode, chat: Chat, change: Callable[[ChatChanges], object]) -> None:
    """Ask for the folder of a chat."""
    question = "Folder of the chat (a single dot removes the chat from its folder)"
    ask_line(node, question, chat.folder, lambda text: change(in_folder(text)))


def in_folder(text: str) -> ChatChanges:
    """Put a chat into a folder; `.` takes it out of its folder."""
    return ChatChanges(folder="" if text.strip() == "." else " ".join(text.split()))


def ask_title(node: DOMNode, chat: Chat, change: Callable[[ChatChanges], object]) -> None:
    """Ask for another title of a chat."""
    ask_line(node, "Title of the chat", chat.title, lambda text: change(with_title(text)))


def with_title(text: str) -> ChatChanges:
    """Give a chat a title that questions do not change."""
    return ChatChanges(title=text, title_locked=True)


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


class BeginningList(SelectList):
    """What an empty chat offers: recent chats and examples."""

    @dataclass
    class Chosen(Message):
        """A row was chosen: the id of a chat, or an `Example`."""

        key: object

    def offer(self, recent: Sequence[Chat]) -> None:
        """Show the chats used last, and the examples."""
        rows = [*_beginnings(recent, datetime.now())]
        self.show_rows(rows, None if self.has_focus else rows[0].key)

    def action_pick(self) -> None:
        if self.rows and self.rows[self.index].is_enabled:
            self.post_message(self.Chosen(self.rows[self.index].key))


def _beginnings(recent: Sequence[Chat], now: datetime) -> Iterator[Row[object]]:
    for chat in recent:
        yield Row(chat.id, partial(_beginning, when_text(chat.updated_at, now), chat.title, ""))
    for word, text in EXAMPLES:
        yield Row(Example(text), partial(_beginning, word, text, "muted"))


def _beginning(label: str, text: str, style: str, width: int) -> Line:
    return clipped((Run(f"{label:<{LABEL_WIDTH}}", "accent"), Run(one_line(text), style)), width)
