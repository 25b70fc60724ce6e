"""Saved states of the cache, its log, and the reasons for the last prefill."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from app import format as fmt
from app.cache import NOBODY, CachedChat, cached_chats, owner_of
from app.chat.conversation import Conversation
from app.chat.snapshot import CockpitSnapshot
from app.render.cache_list import (
    chat_line,
    detail_lines,
    empty_text,
    log_lines,
    owners_text,
    state_line,
    table_head,
    title_line,
    title_of,
)
from app.render.lines import Line, Run, clipped, wrapped
from app.render.reuse import reuse_lines
from app.screens.dialogs import confirm
from app.screens.list_detail import ListDetail
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.panels import Panel
from app.widgets.select_list import Row, SelectList
from engine.cache.report import CacheEntry, CacheReport

FRAME_S = 0.5
NOTHING_SAVED = "No states are saved yet."
HEIGHTS = [(0, "-flat"), (20, "-low"), (32, "-tall")]
MAX_TITLES = 10_000
LEGEND = "H hot (context) · W warm (RAM) · C cold (disk); lower case: partly cached"


class CacheScreen(ListDetail[None]):
    """The saved states of the loaded model; keys pin, delete and verify them."""

    CSS_PATH: ClassVar[list[str | PurePath]] = [
        "../styles/list_detail.tcss", "../styles/cache.tcss"
    ]  # fmt: skip
    VERTICAL_BREAKPOINTS = HEIGHTS
    AUTO_FOCUS = "#states"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f6", "leave", "Back", id="cache-back", show=False, priority=True,
                tooltip="Go back to the chat"),
        Binding("tab", "switch", "Chats or states", id="cache-view", priority=True,
                tooltip="Switch between the list of chats and the list of states"),
        Binding("p", "pin", "Pin", id="cache-pin",
                tooltip="Pin or unpin the highlighted state, or all states of the highlighted "
                        "chat; pinned states are never evicted"),
        Binding("d", "drop", "Delete", id="cache-drop",
                tooltip="Delete the highlighted state, or the states that only the highlighted "
                        "chat uses"),
        Binding("delete", "drop", "Delete", id="cache-drop", show=False),
        Binding("v", "verify", "Verify", id="cache-verify",
                tooltip="Read the files of the highlighted states and compare their checksums"),
        Binding("c", "clear", "Clear all", id="cache-clear",
                tooltip="Delete all states saved for the loaded model and its settings"),
    ]  # fmt: skip

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self._conversation = conversation
        self._is_by_chat = True
        self._report: CacheReport | None = None
        self._by_key: dict[str, CachedChat | CacheEntry] = {}
        self._titles: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        yield TitleBar(id="list-title")
        with Horizontal(id="list-main"):
            with Vertical(id="cache-lists"):
                yield SelectList(note=LEGEND, id="states")
                yield LinesView(title="last prompt of this chat", id="cache-prompt")
            with Vertical(id="cache-side"):
                yield Panel("cache")
                yield LinesView(title="highlighted", id="cache-detail")
                yield LinesView(title="log", id="cache-log")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._present(self._conversation.snapshot())
        self.set_interval(FRAME_S, self._on_frame)

    # --- what is shown ---

    def _on_frame(self) -> None:
        if self.is_current:
            self._present(self._conversation.snapshot())

    def _present(self, snapshot: CockpitSnapshot) -> None:
        self._report = snapshot.tiers
        entries = self._report.entries if self._report is not None else ()
        self._read_titles(entries)
        chats, now = cached_chats(entries), time.time()
        rows: list[Row[str]]
        if self._is_by_chat:
            self._by_key = {chat.owner: chat for chat in chats}
            rows = [Row(each.owner, partial(chat_line, each, self._titles, now)) for each in chats]
        else:
            self._by_key = {entry.key: entry for entry in entries}
            rows = [Row(each.key, partial(state_line, each, self._titles, now)) for each in entries]
        title = title_line(snapshot, len(chats), is_by_chat=self._is_by_chat)
        self.query_one(TitleBar).present(partial(clipped, title))
        if rows:
            self.rows.show_rows(rows, head=table_head)
        else:
            self.rows.show_text(partial(wrapped, (Run(empty_text(snapshot), "muted"),)))
        self.query_one(Panel).present(snapshot)
        self.query_one("#cache-prompt", LinesView).present(partial(reuse_lines, snapshot))
        self.query_one("#cache-log", LinesView).present(partial(log_lines, snapshot.cache_log))
        self.show_marked()

    def show_marked(self) -> None:
        row, now = self._marked, time.time()

        def render(width: int) -> list[Line]:
            if row is None:
                return wrapped((Run("no row is highlighted", "muted"),), width)
            return detail_lines(row, self._titles, now, width)

        self.query_one("#cache-detail", LinesView).present(render)

    def _read_titles(self, entries: Sequence[CacheEntry]) -> None:
        owners = {owner for entry in entries for owner in entry.owners}
        if owners <= self._titles.keys():
            return
        self._titles |= dict.fromkeys(owners, "")
        chats = self._conversation.history.store.list_chats(MAX_TITLES, archived=None)
        self._titles |= {owner_of(chat.id): chat.title for chat in chats}

    @property
    def _marked(self) -> CachedChat | CacheEntry | None:
        return self._by_key.get(str(self.rows.marked_key))

    # --- changes ---

    def action_switch(self) -> None:
        """List chats or states; the highlight moves to the chat's first state and back."""
        row = self._marked
        self._is_by_chat = not self._is_by_chat
        self._present(self._conversation.snapshot())
        if isinstance(row, CachedChat):
            self.rows.mark(row.entries[0].key)
        elif row is not None:
            self.rows.mark(row.owners[0] if row.owners else NOBODY)

    def action_pin(self) -> None:
        """Pin the highlighted states, or unpin them if all are pinned."""
        states = self._marked_states()
        is_pinned = all(state.is_pinned for state in states)
        for state in states:
            if is_pinned or not state.is_pinned:
                self._conversation.client.manage_cache("unpin" if is_pinned else "pin", state.key)

    def action_drop(self) -> None:
        row = self._marked
        if row is None or not self._marked_states():
            return
        states = row.own if isinstance(row, CachedChat) else (row,)
        if not states:
            self.notify(
                "Nothing was deleted: other chats also use every state of this chat. Press tab to "
                "list the states, and delete them one by one."
            )
            return
        question = _drop_question(row, states, self._titles)
        if question is None:
            self._drop(states)
        else:
            confirm(self, question, lambda: self._drop(states))

    def _drop(self, states: Sequence[CacheEntry]) -> None:
        for state in states:
            self._conversation.client.manage_cache("drop", state.key)

    def action_verify(self) -> None:
        for state in self._marked_states():
            self._conversation.client.manage_cache("verify", state.key)

    def action_clear(self) -> None:
        if not self._has_cache():
            return
        if not self._by_key:
            self.notify(NOTHING_SAVED)
        else:
            confirm(
                self,
                "Delete all states saved for this model and its settings, including pinned ones? "
                "The next reply in each chat then needs a full prefill.",
                lambda: self._conversation.client.manage_cache("clear"),
            )

    def _marked_states(self) -> Sequence[CacheEntry]:
        """The states of the highlighted row; a notice explains why there are none."""
        row = self._marked
        if not self._has_cache():
            return ()
        if row is None:
            self.notify(NOTHING_SAVED)
            return ()
        return row.entries if isinstance(row, CachedChat) else (row,)

    def _has_cache(self) -> bool:
        if self._report is None or not self._conversation.client.is_alive:
            self.notify("No model is loaded: load a model to change its cache.")
            return False
        return True


def _drop_question(
    row: CachedChat | CacheEntry, states: Sequence[CacheEntry], titles: dict[str, str]
) -> str | None:
    """The question before dropping; None for a single unpinned state of one chat."""
    n_pinned = sum(state.is_pinned for state in states)
    pinned = f" ({n_pinned} pinned)" if n_pinned else ""
    if len(states) == 1:
        pinned = " (pinned)" if n_pinned else ""
    if isinstance(row, CachedChat):
        title, what = title_of(row.owner, titles), fmt.counted(len(states), "state")
        return f"Delete {what} that only “{title}” uses{pinned}?"
    if len(row.owners) > 1:
        return f"Delete a state shared by {owners_text(row.owners, titles)}?"
    return "Delete a pinned state?" if n_pinned else None
