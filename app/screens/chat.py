"""The chat: transcript and composer, and the cockpit beside them.

One timer drives everything: it polls the controller, appends text at a reader's pace and lets the
panels sample the counters. Actions are in `chat_actions`, what they mean is in `app.chat`.
"""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from app.chat.conversation import Conversation
from app.chat.reply import TokenSpan
from app.chat.snapshot import Phase
from app.chat.update import ChatUpdate
from app.sanitize import visible
from app.screens.chat_actions import ChatActions
from app.screens.pacing import Pacer
from app.startup import Services
from app.widgets.composer import PLACEHOLDER, Composer
from app.widgets.key_bar import KeyBar
from app.widgets.panels import (
    CachePanel,
    MemoryPanel,
    Panel,
    SpeculationPanel,
    StatusBar,
    ThroughputPanel,
)
from app.widgets.tab_strip import TabStrip
from app.widgets.transcript import Transcript

FRAME_S = 0.08
TEXT_S = 0.16
"""Text comes six times a second: more often costs more and reads no better."""
PANEL_S = 0.32
IDLE_PANEL_S = 1.0
MEMORY_S = 2.0
MAX_TEXT_SHARE = 0.06
"""Share of the time that laying out and painting a long reply may take."""

INVITATION = """\
No model is loaded.

ctrl+o  opens a model; there, a installs one or opens a file
f2      plans a model of this machine or of the catalogue
f1      all keys, and what the words mean"""

TABS = ("chat", "speculation", "memory")
MIN_SIZE = (60, 16)
WIDTHS = [(0, "-tiny"), (MIN_SIZE[0], "-narrow"), (100, "-wide"), (160, "-huge")]
HEIGHTS = [(0, "-flat"), (MIN_SIZE[1], "-low"), (32, "-tall")]


class ChatScreen(ChatActions):
    """The main screen."""

    AUTO_FOCUS = "#composer"
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def __init__(self, controller: Conversation, services: Services) -> None:
        super().__init__(controller, services)
        self._pending = ""
        self._pending_spans: list[TokenSpan] = []
        self._jump: tuple[int, str] | None = None
        """A message to scroll to, and a text in it, once the chat is shown."""
        self._text_pacer = Pacer(TEXT_S, max_share=MAX_TEXT_SHARE)
        self._panel_pacer = Pacer(PANEL_S)
        self._memory_pacer = Pacer(MEMORY_S)

    def compose(self) -> ComposeResult:
        yield StatusBar(id="status")
        yield TabStrip(TABS, id="tabs")
        with Horizontal(id="main"):
            with Vertical(id="chat-column"):
                yield Transcript(id="transcript")
                yield Composer(id="composer")
            with VerticalScroll(id="cockpit", can_focus=False):
                yield SpeculationPanel(id="speculation")
                yield ThroughputPanel(id="throughput")
                yield CachePanel(id="cache")
                yield MemoryPanel(id="memory")
        yield Static(
            f"kvchat needs {MIN_SIZE[0]} columns and {MIN_SIZE[1]} rows: make the window larger",
            id="too-small",
            markup=False,
        )
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.recall_drafts()
        self.composer.focus()
        self.transcript.set_tint(self.services.tint)
        self.set_interval(FRAME_S, self._tick)
        self.call_after_refresh(self._tick)

    # --- one frame ---

    def _tick(self) -> None:
        self.take(self.controller.poll())
        self.ask_what_waits()
        had_text = bool(self._pending) and self._text_pacer.is_due()
        if had_text:
            with self._text_pacer.work():
                self.transcript.append(self._pending, self._pending_spans)
                self._pending, self._pending_spans = "", []
        if self._memory_pacer.is_due():
            self._read_memory()
        # Together with text, so that both are painted in one frame.
        is_beside_text = had_text or not self._pending
        if self._panel_pacer.is_due() and is_beside_text:
            self._panel_pacer.interval_s = (
                PANEL_S if self.controller.client.is_busy else IDLE_PANEL_S
            )
            with self._panel_pacer.work():
                self.present()

    def _read_memory(self) -> None:
        self.save_drafts()
        with self._memory_pacer.work():
            self.controller.meters.set_process_bytes(self.controller.client.process_memory_bytes())

    def take(self, change: ChatUpdate) -> None:
        """Show what a poll changed."""
        if change.is_rebuilt:
            self._pending, self._pending_spans = "", []
            self.transcript.is_read_only = self.controller.history.is_read_only
            self.transcript.show(self.controller.entries())
            self.follow_chat()
            self._present_chat()
            self.present()
        if self._jump is not None:
            self.transcript.jump_to(*self._jump)
            self._jump = None
        self._pending += change.text
        self._pending_spans += change.spans
        can_see = self.is_current and self.transcript.is_following
        for notice in change.notices:
            if notice.is_in_transcript and can_see:
                continue
            self.notify(notice.message, title=notice.title, severity=notice.severity, markup=False)
        if change.draft is not None:
            self.give_back(change.draft)
        if change.context_full is not None:
            self.give_back_waiting()
            self.offer_room(change.context_full)
        if change.loaded is not None:
            self._read_memory()
            self.measure_text()
            self.present()

    def on_unmount(self) -> None:
        self.save_drafts()

    def on_resize(self) -> None:
        self.call_after_refresh(self._keep_focus)

    def _keep_focus(self) -> None:
        """Give the focus back that a window too small for the chat has taken away."""
        if self.focused is None and self.composer.size.width:
            self.composer.focus()

    def jump_to(self, message_id: int, found: str) -> None:
        self._jump = (message_id, found)

    def present(self) -> None:
        """Show the counters in every panel that is in sight."""
        snapshot = self.controller.snapshot()
        self.transcript.set_invitation(INVITATION if snapshot.phase is Phase.EMPTY else "")
        self.query_one(StatusBar).present(snapshot)
        for panel in self.query(Panel):
            panel.present(snapshot)

    def _present_chat(self) -> None:
        history = self.controller.history
        self.transcript.set_frame(title=visible(history.title.replace("\n", " ")))
        composer = self.composer
        composer.set_class(history.is_read_only, "-read-only")
        composer.read_only = history.is_read_only
        composer.placeholder = (
            "Read-only: another kvchat writes this chat" if history.is_read_only else PLACEHOLDER
        )

    # --- other screens ---

    def action_cache(self) -> None:
        """Show what is kept of computed tokens."""
        from app.screens.cache import CacheScreen

        self.app.push_screen(CacheScreen(self.controller))

    # --- tabs of a narrow screen ---

    def on_tab_strip_chosen(self, message: TabStrip.Chosen) -> None:
        for place, name in enumerate(TABS):
            self.set_class(place == message.place, f"-tab-{name}")
