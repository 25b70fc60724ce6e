"""Saved states of the cache, its log, and the reasons for the last prefill."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from app import format as fmt
from app.cache import NOBODY, CachedChat, cached_chats, owner_of
from app.chat.conversation import Conversation
from app.chat.snapshot import CockpitSnapshot
from app.render.cache_list import (
    chat_detail,
    chat_line,
    empty_text,
    log_lines,
    owners_text,
    state_detail,
    state_line,
    table_head,
    title_line,
    title_of,
)
from app.render.lines import Line, Run, clipped, wrapped
from app.render.reuse import reuse_lines
from app.screens.dialogs import confirm, report
from app.store.errors import StoreError
from app.widgets.bars import KeyBar, TitleBar
from app.widgets.ink import LinesView
from app.widgets.panels import Panel
from app.widgets.select_list import Row, SelectList
from engine.cache.report import CacheEntry, CacheReport

FRAME_S = 0.5
NOTHING_SAVED = "No states are saved yet."
WIDTHS = [(0, "-narrow"), (100, "-wide"), (160, "-huge")]
HEIGHTS = [(0, "-flat"), (20, "-low"), (32, "-tall")]
MAX_TITLES = 10_000
LEGEND = "H hot (context) · W warm (RAM) · C cold (disk); lower case: partly cached"


class CacheScreen(Screen[None]):
    """The saved states of the loaded model; keys pin, drop and verify them."""

    CSS_PATH: ClassVar[list[str | PurePath]] = ["../styles/planner.tcss", "../styles/cache.tcss"]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    AUTO_FOCUS = "#states"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="cache-back", tooltip="Go back to the chat"),
        Binding("tab", "turn", "Chats or states", id="cache-view", priority=True,
                tooltip="Switch between the list of chats and the list of states"),
        Binding("p", "pin", "Pin", id="cache-pin",
                tooltip="Pin or unpin the highlighted state, or all states of the highlighted "
                        "chat; pinned states are never evicted"),
        Binding("d", "drop", "Delete", id="cache-drop",
                tooltip="Delete the highlighted state, or the states that only the highlighted "
                        "chat uses"),
        Binding("delete", "drop", "Delete", id="cache-drop-too", show=False,
                tooltip="Delete the highlighted state, or the states that only the highlighted "
                        "chat uses"),
        Binding("v", "verify", "Verify", id="cache-verify",
                tooltip="Read the files of the highlighted states and compare their checksums"),
        Binding("c", "clear", "Clear all", id="cache-clear",
                tooltip="Delete all states saved for the loaded model and its settings"),
        Binding("w", "why", "Why prefill", id="cache-why", show=False,
                tooltip="Scroll through the reasons for the last prefill; at the end, return to "
                "the start"),
        Binding("f6", "leave", "Back", id="cache-back-too", show=False, priority=True,
                tooltip="Go back to the chat"),
        Binding("j", "app.simulate_key('down')", "Down", id="cache-down", show=False,
                tooltip="Go to the row below"),
        Binding("k", "app.simulate_key('up')", "Up", id="cache-up", show=False,
                tooltip="Go to the row above"),
    ]  # fmt: skip

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self._conversation = conversation
        self._is_by_chat = True
        self._report: CacheReport | None = None
        self._rows: Sequence[CachedChat | CacheEntry] = ()
        self._titles: dict[str, str] = {}
        self._owners: dict[str, tuple[str, ...]] = {}
        """By state, dropped ones too: the log names those."""
        self._unknown: frozenset[str] = frozenset()
        """Owners that are no chat."""

    def compose(self) -> ComposeResult:
        yield TitleBar(id="cache-title")
        with Horizontal(id="cache-main"):
            with Vertical(id="cache-lists"):
                yield SelectList(note=LEGEND, id="states")
                yield LinesView(title="last prompt of this chat", below=": w", id="cache-prompt")
            with Vertical(id="cache-side"):
                yield Panel("cache")
                yield LinesView(title="marked", below="", id="cache-detail")
                yield LinesView(title="log", below="", id="cache-log")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._present(self._conversation.snapshot())
        self.set_interval(FRAME_S, self._tick)

    # --- what is shown ---

    def _tick(self) -> None:
        if self.is_current:
            self._present(self._conversation.snapshot())

    def _present(self, snapshot: CockpitSnapshot) -> None:
        self._report = snapshot.tiers
        self._find_titles()
        entries = self._report.entries if self._report is not None else ()
        chats = cached_chats(entries)
        self._rows = chats if self._is_by_chat else entries
        states = self.query_one(SelectList)
        title = title_line(snapshot, len(chats), is_by_chat=self._is_by_chat)
        self.query_one(TitleBar).present(partial(clipped, title))
        if self._rows:
            states.show_rows([self._row(row) for row in self._rows], head=table_head)
        else:
            states.show_text(partial(wrapped, (Run(empty_text(snapshot), "muted"),)))
        self.query_one(Panel).present(snapshot)
        self.query_one("#cache-prompt", LinesView).present(partial(reuse_lines, snapshot))
        notes = snapshot.cache_log
        self.query_one("#cache-log", LinesView).present(
            lambda width: log_lines(notes, width, self._owners, self._titles)
        )
        self._present_detail()

    def _present_detail(self) -> None:
        row, now = self._marked(), time.time()

        detail = self.query_one("#cache-detail", LinesView)

        def render(width: int) -> list[Line]:
            match row:
                case CachedChat():
                    return chat_detail(row, self._titles, width, now, detail.symbols)
                case CacheEntry():
                    return state_detail(row, self._titles, width, now)
                case None:
                    return wrapped((Run("no row is highlighted", "muted"),), width)

        detail.present(render)

    def _row(self, row: CachedChat | CacheEntry) -> Row[str]:
        titles, now = self._titles, time.time()
        if isinstance(row, CachedChat):
            return Row(row.owner, lambda width: chat_line(row, titles, width, now))
        return Row(row.key, lambda width: state_line(row, titles, width, now))

    def _find_titles(self) -> None:
        """Read the titles of chats if an owner has none."""
        entries = self._report.entries if self._report is not None else ()
        self._owners |= {entry.key: entry.owners for entry in entries}
        owners = {owner for entry in entries for owner in entry.owners}
        missing = owners - self._titles.keys() - self._unknown
        if not missing:
            return
        try:
            chats = self._conversation.history.store.list_chats(MAX_TITLES, archived=None)
        except StoreError as error:
            report(self, error)
            chats = []
        self._titles = {owner_of(chat.id): chat.title for chat in chats}
        self._unknown = frozenset(owners - self._titles.keys())

    def on_select_list_marked(self) -> None:
        self._present_detail()

    def _marked(self) -> CachedChat | CacheEntry | None:
        index = self.query_one(SelectList).index
        return self._rows[index] if index < len(self._rows) else None

    # --- what is done ---

    def action_why(self) -> None:
        """Scroll the lines of the last prompt; from their end to their start."""
        lines = self.query_one("#cache-prompt", LinesView)
        if lines.is_vertical_scroll_end:
            lines.scroll_home(animate=False)
        else:
            lines.page(1)

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_turn(self) -> None:
        """List by chat, or state by state; the mark goes to the chat's first state and back."""
        row = self._marked()
        self._is_by_chat = not self._is_by_chat
        self._present(self._conversation.snapshot())
        states = self.query_one(SelectList)
        if isinstance(row, CachedChat):
            states.mark(row.entries[0].key)
        elif row is not None:
            states.mark(row.owners[0] if row.owners else NOBODY)

    def action_pin(self) -> None:
        """Pin the marked states, or unpin them if all are pinned."""
        states = self._marked_states()
        is_pinned = all(state.is_pinned for state in states)
        for state in states:
            if is_pinned or not state.is_pinned:
                self._conversation.client.manage_cache("unpin" if is_pinned else "pin", state.key)

    def action_drop(self) -> None:
        row = self._marked()
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
        if not self._rows:
            self.notify(NOTHING_SAVED)
        else:
            confirm(
                self,
                "Delete all states saved for this model and its settings, including pinned ones? "
                "The next reply in each chat then needs a full prefill.",
                lambda: self._conversation.client.manage_cache("clear"),
            )

    def _marked_states(self) -> Sequence[CacheEntry]:
        """The states of the marked row; a notice explains why there are none."""
        row = self._marked()
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
