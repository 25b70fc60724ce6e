"""The chats beside the transcript: pinned ones, those of each folder, all others; and a search."""

from collections.abc import Sequence, Set
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

from app.chat.conversation import Conversation
from app.render.chat_list import when_text
from app.render.lines import Line, Run, clipped, spread
from app.sanitize import one_line
from app.screens.dialogs import ask_line, report
from app.store.errors import StoreError
from app.store.records import Chat, ChatChanges
from app.store.search import SearchHit
from app.threads import call_if_open
from app.widgets.composer import SearchBox
from app.widgets.select_list import Row, SelectList

N_CHATS = 300
"""Chats that are listed; older ones are found by a search, and in the list of all (ctrl+l)."""
N_HITS = 60
SEARCH_AFTER_S = 0.15
FOLDER_QUESTION = "Folder of the chat; . moves the chat out of its folder"


@dataclass(frozen=True, slots=True)
class Place:
    """What a row leads to."""

    chat_id: int
    message_id: int | None = None
    """The message that was found; None is the end of the chat."""
    found: str = ""
    """The text that was found in it."""


class ChatSidebar(Vertical):
    """Lists chats, marks the shown one, and opens another with a key or a click."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pin", "Pin", id="sidebar-pin",
                tooltip="Pin the marked chat to the top, or unpin it"),
        Binding("f", "folder", "Folder", id="sidebar-folder",
                tooltip="Put the marked chat into a folder"),
        Binding("slash", "search", "Search", id="sidebar-search",
                tooltip="Search titles and messages of all chats"),
    ]  # fmt: skip

    @dataclass
    class Opened(Message):
        """A chat was chosen."""

        place: Place

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self._conversation = conversation
        self._store = conversation.history.store
        self._chats: tuple[Chat, ...] = ()
        self._hits: list[SearchHit] | None = None
        """What was found; None while nothing is searched."""
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield SearchBox(placeholder="search chats", id="sidebar-box", compact=True)
        yield SelectList(title="chats", click_picks=True, id="sidebar-list")

    @property
    def chats(self) -> SelectList:
        """The rows."""
        return self.query_one(SelectList)

    def look(self) -> None:
        """Show the chats as they are now; nothing is read while it is out of sight."""
        if not self.display or not self.is_mounted:
            return
        try:
            self._chats = tuple(self._store.list_chats(N_CHATS, pinned_first=True))
        except StoreError as error:
            report(self, error)
        self._paint()

    def _paint(self) -> None:
        now = datetime.now()
        shown = self._conversation.history.chat
        mark = None if shown is None else Place(shown.id)
        if self._hits is not None:
            self.chats.show_rows(found_rows(self._hits, now))
            none = "No chat matches."
        else:
            replies = self._conversation.replies
            answered = {c.id for c in self._chats if replies.of_chat(c.id) is not None}
            self.chats.show_rows(chat_rows(self._chats, now, shown, answered), mark)
            none = "There are no chats yet."
        if not self.chats.rows:
            self.chats.show_text(lambda width: [clipped((Run(none, "muted"),), width)])

    # --- search ---

    def action_search(self) -> None:
        """Go to the search box."""
        self.query_one(SearchBox).focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(SEARCH_AFTER_S, self._search_now)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self._open(self.chats.marked_key)

    def _search_now(self) -> None:
        text = self.query_one(SearchBox).value
        if text.strip():
            self._search(text)
        else:
            self._hits = None
            self._paint()

    @work(thread=True, exclusive=True, group="sidebar")
    def _search(self, text: str) -> None:
        try:
            hits = self._store.search(text, N_HITS)
        except StoreError as error:
            call_if_open(self.screen, report, self, error)
            return
        call_if_open(self.screen, self._take, text, hits)

    def _take(self, text: str, hits: Sequence[SearchHit]) -> None:
        if self.query_one(SearchBox).value == text:
            self._hits = [*hits]
            self._paint()
            self.chats.action_go(0)

    def end_search(self) -> bool:
        """Show all chats again; False where nothing was searched."""
        box = self.query_one(SearchBox)
        was_searching = bool(box.value)
        box.value = ""
        return was_searching

    # --- what is done with a chat ---

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        message.stop()
        self._open(message.key)

    def on_select_list_marked(self, message: SelectList.Marked) -> None:
        message.stop()

    def _open(self, key: object) -> None:
        if isinstance(key, Place):
            self.post_message(self.Opened(key))

    def action_pin(self) -> None:
        """Pin the marked chat to the top, or unpin it."""
        key = self.chats.marked_key
        if isinstance(key, Place):
            self.pin(key.chat_id)

    def action_folder(self) -> None:
        """Ask for the folder of the marked chat."""
        key = self.chats.marked_key
        chat = next(
            (c for c in self._chats if isinstance(key, Place) and c.id == key.chat_id), None
        )
        if chat is not None:
            ask_line(self, FOLDER_QUESTION, chat.folder, partial(self.put_into, chat.id))

    def pin(self, chat_id: int) -> None:
        """Pin a chat, or unpin it."""
        try:
            chat = self._store.chat(chat_id)
            self._store.update_chat(chat_id, ChatChanges(is_pinned=not chat.is_pinned))
        except StoreError as error:
            report(self, error)
        self.look()

    def put_into(self, chat_id: int, folder: str) -> None:
        """Put a chat into a folder; `.` takes it out of the one that it is in."""
        try:
            self._store.update_chat(chat_id, ChatChanges(folder=folder_named(folder)))
        except StoreError as error:
            report(self, error)
        self.look()


def folder_named(text: str) -> str:
    """The name of a folder as it is kept: one line, and none for a full stop."""
    return "" if text.strip() == "." else " ".join(text.split())


def chat_rows(
    chats: Sequence[Chat], now: datetime, shown: Chat | None, answered: Set[int]
) -> list[Row[object]]:
    """Chats by pinned, folder and the rest, each group under its name where there are several.

    Args:
        chats: In the order in which a group has them.
        now: Times are told from here.
        shown: The chat on the screen.
        answered: The chats in which a reply is being written.
    """

    def group(chat: Chat) -> tuple[int, str]:
        if chat.is_pinned:
            return 0, "pinned"
        return (1, chat.folder) if chat.folder else (2, "others")

    def order(chat: Chat) -> tuple[int, str, str]:
        rank, name = group(chat)
        return rank, name.casefold(), name

    ordered = sorted(chats, key=order)
    rows: list[Row[object]] = []
    for (_, name), members in groupby(ordered, group):
        if group(ordered[0]) != group(ordered[-1]) or name != "others":
            rows.append(Row(("group", name), partial(_heading, name), is_enabled=False))
        for chat in members:
            is_shown = shown is not None and chat.id == shown.id
            sign = "●" if chat.id in answered else "•" if is_shown else " "
            line = partial(_chat_line, sign, chat, now)
            rows.append(Row(Place(chat.id), line))
    return rows


def found_rows(hits: Sequence[SearchHit], now: datetime) -> list[Row[object]]:
    """What a search found, the chat and the place in it."""
    rows: list[Row[object]] = []
    for hit in hits:
        start, end = hit.marked[0] if hit.marked else (0, 0)
        place = Place(hit.chat_id, hit.message_id, hit.snippet[start:end])
        below = None if hit.message_id is None else partial(_snippet, hit.snippet)
        rows.append(Row(place, partial(_title_line, "", hit.title, hit.created_at, now), below))
    return rows


def _heading(name: str, width: int) -> Line:
    return clipped((Run(one_line(name), "note"),), width)


def _chat_line(sign: str, chat: Chat, now: datetime, width: int) -> Line:
    return _title_line(f"{sign} ", chat.title, chat.updated_at, now, width)


def _title_line(sign: str, title: str, seconds: float, now: datetime, width: int) -> Line:
    when = (Run(when_text(seconds, now), "muted"),)
    return spread((Run(sign, "accent"), Run(one_line(title))), when, width)


def _snippet(snippet: str, width: int) -> Line:
    return clipped((Run(f"  {one_line(snippet)}", "muted"),), width)
