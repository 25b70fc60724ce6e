"""The chat: transcript and composer, and the cockpit beside them.

One timer drives everything: it polls the conversation, appends text at a reader's pace and lets the
panels sample the counters.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual._styles_cache import StylesCache
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from app.bindings import CHAT_KEYS, with_keys
from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.chat.entries import Speaker, thinking_text
from app.chat.snapshot import NO_MODEL, CockpitSnapshot, Phase
from app.chat.spans import TokenSpan
from app.chat.update import ChatUpdate
from app.clipboard import copy
from app.faults import Faults, Steps
from app.render.markdown import code_blocks
from app.render.reply_stats import reply_stats_text
from app.render.status import model_facts, status_line
from app.render.transcript import TINT_MEANINGS, TINT_MODES, TintMode
from app.sanitize import visible
from app.screens.asking import Asking, message_of
from app.screens.beginning import N_RECENT, BeginningList, Example
from app.screens.completion import Commands, Completion
from app.screens.dialogs import report
from app.screens.drafts import Drafts
from app.screens.find import FindBar
from app.screens.shown_chat import UNSAVED, ShownChat
from app.screens.sidebar import ChatSidebar
from app.screens.speculation_switch import SpeculationSwitch
from app.startup import Services
from app.store.errors import StoreError
from app.store.records import StoredMessage
from app.widgets.bars import KeyBar, TabStrip, TitleBar
from app.widgets.composer import PLACEHOLDER, Composer
from app.widgets.ink import InkLines
from app.widgets.panels import PANELS, Panel
from app.widgets.select_list import SelectList
from app.widgets.transcript import Transcript
from engine.clock import Pacer
from engine.errors import EngineError
from engine.generation.reasoning import answer_of

FRAME_S = 0.08
TEXT_S = 0.16
"""Text comes six times a second: more often costs more and reads no better."""
PANEL_S = 0.32
IDLE_PANEL_S = 1.0
MEMORY_S = 2.0
MAX_TEXT_SHARE = 0.06
"""Share of the time that laying out and painting a long reply may take."""

INVITATION = {
    "{model-list}": "opens or installs a model, or adds a file",
    "{model-plan}": "plans the memory and speed of a model",
    "{app-help}": "all keys, and a glossary",
}
"""What can be done without a model."""

NEEDS_MODEL = (
    "engine-restart", "compare-open", "speculation-predictor", "reply-regenerate",
    "message-regenerate", "message-continue",
)  # fmt: skip
NEEDS_REPLY = ("message-copy", "message-copy-code", "message-statistics")
NEEDS_QUESTION = ("reply-regenerate", "message-regenerate")
"""Ids of keys that can do nothing without these."""

TABS = ("chat", "speculation", "memory")
MIN_SIZE = (60, 16)
WIDTHS = [(0, "-tiny"), (MIN_SIZE[0], "-narrow"), (100, "-wide"), (160, "-huge")]
HEIGHTS = [(0, "-flat"), (MIN_SIZE[1], "-low"), (32, "-tall")]


class ChatScreen(Screen[None]):
    """The main screen."""

    AUTO_FOCUS = "#composer"
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = CHAT_KEYS

    def __init__(
        self, controller: Conversation, services: Services, commands: Commands, faults: Faults
    ) -> None:
        super().__init__()
        self.controller = controller
        self.services = services
        self.transcript = Transcript(id="transcript")
        self.composer = Composer(id="composer")
        self.context = ContextFull(controller)
        self.speculation = SpeculationSwitch(self, controller, services.settings)
        self.beside = InkLines(id="beside")
        self.sidebar = ChatSidebar(controller, id="sidebar")
        self.find = FindBar(self.transcript, id="find")
        self.beginning = BeginningList(
            id="beginning", title="begin with", note="press ↓ to choose, enter to use"
        )
        self.choices = SelectList(click_picks=True, id="completion")
        self.choices.can_focus = False
        self.completion = Completion(self.composer, self.choices, commands)
        self.drafts = Drafts(self.composer, self.beside, controller)
        self.asking = Asking(
            self,
            controller,
            self.drafts,
            self.context,
            asked=self.transcript.action_follow,
        )
        self.shown = ShownChat(self, controller, self.sidebar, services, turned=self._turned)
        self._unpainted = ""
        """Text of the reply that is to be painted with the next frame that is due."""
        self._unpainted_spans: list[TokenSpan] = []
        self._n_told: int | None = 0
        """Tokens of what is written, as the status line has them."""
        self._copied_code: tuple[int, int] | None = None
        """The message whose code was copied last, and which block from its end."""
        self._frame = Steps(
            faults,
            (
                self._poll,
                self._ask_next,
                self._paint_text,
                self._save_and_sample,
                self._present_if_due,
            ),
        )
        self.set_class(services.settings.settings.ui.sidebar, "-sidebar", update=False)
        self._text_pacer = Pacer(TEXT_S, max_share=MAX_TEXT_SHARE)
        self._panel_pacer = Pacer(PANEL_S)
        self._memory_pacer = Pacer(MEMORY_S)

    def compose(self) -> ComposeResult:
        yield TitleBar(id="status")
        yield TabStrip(TABS, with_keys("{screen-tab} next", self.app), id="tabs")
        with Horizontal(id="main"):
            yield self.sidebar
            with Vertical(id="chat-column"):
                yield self.find
                yield self.transcript
                yield self.beginning
                yield self.choices
                yield self.beside
                yield self.composer
            with VerticalScroll(id="cockpit", can_focus=False):
                for name in PANELS:
                    yield Panel(name)
        yield Static(
            f"kvchat needs {MIN_SIZE[0]} columns and {MIN_SIZE[1]} rows: make the window larger",
            id="too-small",
            markup=False,
        )
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        try:
            self.drafts.recall()
        except StoreError as error:
            report(self, error)
        self.asking.describe()
        self.composer.focus()
        ui = self.services.settings.settings.ui
        self.transcript.set_tint(ui.tint)
        self._offer_beginning()
        self.composer.move_in_list = self._move_in_list
        self.composer.complete = self._complete
        self.choices.display = self.find.display = False
        self.show_sidebar(is_on=ui.sidebar)
        self.set_interval(FRAME_S, self._frame.run)
        self.call_after_refresh(self._frame.run)

    def on_unmount(self) -> None:
        self.drafts.save()

    def on_resize(self) -> None:
        self.call_after_refresh(self._keep_focus)

    def _keep_focus(self) -> None:
        """Focus the composer again after a window too small for the chat took the focus away."""
        self.asking.describe()
        self.sidebar.look()
        if self.focused is None and self.composer.size.width:
            self.composer.focus()

    # --- one frame ---

    @property
    def has_unpainted_text(self) -> bool:
        """Whether text of the reply waits for the next frame."""
        return bool(self._unpainted)

    def _poll(self) -> None:
        self.take(self.controller.poll())

    def _ask_next(self) -> None:
        self.asking.ask_next()
        if self.drafts.is_counting:
            self.asking.describe()
        if self.drafts.n_tokens != self._n_told:
            self._n_told = self.drafts.n_tokens
            self._tell_status(self._snapshot())

    def _paint_text(self) -> None:
        if self.has_unpainted_text and self._text_pacer.is_due():
            with self._text_pacer.work():
                text, spans = self._unpainted, self._unpainted_spans
                self._unpainted, self._unpainted_spans = "", []
                self.transcript.append(text, spans)

    def _save_and_sample(self) -> None:
        if self._memory_pacer.is_due():
            self._read_memory()

    def _present_if_due(self) -> None:
        # Together with text, so that both are painted in one frame.
        if self._panel_pacer.is_due() and not self.has_unpainted_text:
            self._panel_pacer.interval_s = (
                PANEL_S if self.controller.client.is_busy else IDLE_PANEL_S
            )
            with self._panel_pacer.work():
                self.present()

    def _read_memory(self) -> None:
        self.drafts.save()
        with self._memory_pacer.work():
            self.controller.meters.set_process_bytes(self.controller.client.process_memory_bytes())

    def take(self, update: ChatUpdate) -> None:
        """Show what a poll changed."""
        if update.is_rebuilt:
            self._rebuild()
        if self.shown.jump is not None:
            self.query_one(TabStrip).active = 0
            if self.transcript.jump_to(*self.shown.jump):
                self.transcript.focus()
            self.shown.jump = None
        self._unpainted += update.text
        self._unpainted_spans += update.spans
        can_see = self.is_current and self.transcript.is_following
        for notice in update.notices:
            if not (notice.is_in_transcript and can_see):
                self.notify(notice.message, title=notice.title, severity=notice.severity)
        if update.draft is not None:
            self.asking.take_back(update.draft)
        if update.context_full is not None:
            self.asking.take_back_waiting()
            self.asking.offer_room(update.context_full)
        if update.loaded is not None:
            self._read_memory()
            self.on_text_area_changed()
            self.present()

    def _rebuild(self) -> None:
        """Show the entries, the title and the draft of the shown chat anew."""
        self._unpainted, self._unpainted_spans = "", []
        history = self.controller.history
        self.transcript.show(self.controller.entries())
        self.transcript.set_frame(title=visible(history.title.replace("\n", " ")))
        self._follow_chat()
        self._offer_beginning()
        self.sidebar.look()
        self._invite()
        self.present()

    def _invite(self) -> None:
        """Say in the empty composer what can be done there."""
        self.composer.placeholder = with_keys(PLACEHOLDER, self.app)

    def _offer_beginning(self) -> None:
        """Show what a chat without messages can begin with."""
        is_empty = not self.transcript.has_messages
        if is_empty:
            with suppress(StoreError):  # the sidebar tells it
                self.beginning.offer(self.controller.history.store.list_chats(N_RECENT))
        if self.beginning.has_focus and not is_empty:
            self.composer.focus()
        self.set_class(is_empty, "-begin")

    def _follow_chat(self) -> None:
        self.drafts.follow_chat()
        self.asking.describe()

    def present(self) -> None:
        """Show the counters in every panel that is in sight."""
        snapshot = self._snapshot()
        self.transcript.set_invitation(self._invitation(snapshot))
        if snapshot.thinking is not None and snapshot.background_title is None:
            self.transcript.set_progress(thinking_text(snapshot.thinking))
        self._tell_status(snapshot)
        for panel in self.query(Panel):
            panel.present(snapshot)

    def _invitation(self, snapshot: CockpitSnapshot) -> str:
        """What a chat without messages shows: the loaded model, or how to get one."""
        if snapshot.phase is Phase.READY and snapshot.n_ctx:
            return "\n".join(model_facts(snapshot))
        if snapshot.phase is not Phase.EMPTY:
            return ""
        rows = (f"{with_keys(key, self.app):<8}{what}" for key, what in INVITATION.items())
        return "\n".join(("No model is loaded.", "", *rows))

    def _snapshot(self) -> CockpitSnapshot:
        drafts = self.drafts
        n_written = drafts.n_tokens if drafts.is_counting else drafts.n_tokens or 0
        return replace(self.controller.snapshot(), n_written=n_written)

    def _tell_status(self, snapshot: CockpitSnapshot) -> None:
        self.query_one("#status", TitleBar).present(partial(status_line, snapshot))

    def on_text_area_changed(self) -> None:
        """Keep what is written, say how long a long text is, and what a word may become."""
        if self.composer.text:
            self._invite()
        self.drafts.measure()
        self.completion.look()
        self.asking.describe()

    def on_select_list_picked(self) -> None:
        """Take the completion that was clicked."""
        self.completion.run()
        self.composer.focus()

    def obstacles(self) -> dict[str, str]:
        """Why some of the keys can do nothing now, by their ids."""
        controller, history = self.controller, self.controller.history
        has_model = controller.configuration is not None
        no_model = {} if has_model else dict.fromkeys(NEEDS_MODEL, NO_MODEL)
        no_reply = "there is no reply yet" if history.last(Speaker.MODEL) is None else ""
        no_question = "there is no question yet" if history.last(Speaker.USER) is None else ""
        is_busy = controller.is_replying or controller.meters.phase is Phase.LOADING
        why = {
            **dict.fromkeys(NEEDS_REPLY, no_reply),
            **dict.fromkeys(NEEDS_QUESTION, no_question),
            "message-continue": ""
            if history.unfinished() or is_busy
            else "the last reply is complete",
            "message-see-all": "" if history.n_hidden else "the model already has the whole chat",
            "reply-stop": "" if is_busy else "no reply is running",
            "chat-export": UNSAVED if history.chat is None else "",
            "message-edit": self._why_not_edit(Speaker.USER) or no_question,
            "message-edit-reply": self._why_not_edit(Speaker.MODEL) or no_reply,
        }
        return {name: text for name, text in {**why, **no_model}.items() if text}

    # --- asking ---

    def action_send(self) -> None:
        """Ask what is written, or run it as a command; without a text, continue a cut reply."""
        if self.completion.run():
            return
        self.transcript.selected = None  # what is asked next is of the end of the chat
        self.asking.send()

    def action_continue_reply(self) -> None:
        """Continue the last reply where it was cut."""
        self.asking.continue_reply()

    def action_regenerate(self) -> None:
        """Answer once more."""
        self.asking.regenerate(self.transcript.selected)

    def action_edit(self) -> None:
        """Take the selected question, or the last, into the composer."""
        self._take_into_composer(Speaker.USER)

    def action_edit_reply(self) -> None:
        """Take the selected reply, or the last, into the composer: the model goes on behind it."""
        self._take_into_composer(Speaker.MODEL)

    def _take_into_composer(self, speaker: Speaker) -> None:
        if self.asking.edit(self._message_of(speaker)):
            self.composer.focus()

    def _why_not_edit(self, speaker: Speaker) -> str:
        return self.asking.why_not_edit(self._message_of(speaker))

    def _message_of(self, speaker: Speaker) -> StoredMessage | None:
        return message_of(self.controller, speaker, self.transcript.selected)

    def action_fork(self) -> None:
        """Copy the chat up to the selected message, or to its end, into a new chat."""
        self.shown.fork(self.transcript.selected)

    def action_stop(self) -> None:
        """Take back what waits, else stop the reply, else leave an edit; and go to the composer."""
        if self.completion.close() or self.find.close():
            return
        if self.sidebar.has_focus_within and self.sidebar.end_search():
            return
        if self.asking.stop(is_composer_focused=self.composer.has_focus):
            self.composer.focus()

    def action_variant(self, step: int) -> None:
        """Show another variant of the selected message, or of the last that has some."""
        selected = self.transcript.selected or self.controller.history.last_varied()
        if selected is None:
            self.notify("No message has variants yet: {reply-regenerate} generates another reply.")
            return
        try:
            if not self.controller.switch_variant(selected, step):
                self.notify(self.asking.why_no_variant())
        except StoreError as error:
            report(self, error)

    def action_export(self) -> None:
        """Write this chat to a file."""
        self.shown.ask_export()

    def action_see_all(self) -> None:
        """Let the model see the whole chat again."""
        self.asking.see_all()

    # --- chats ---

    def _turned(self) -> None:
        """Go to the end of the chat that is shown now, and write there."""
        self._follow_chat()
        self.transcript.action_follow()
        self.composer.focus()

    def open_chat(self, chat_id: int) -> None:
        """Show a stored chat."""
        self.shown.open(chat_id)

    def action_new_chat(self) -> None:
        """Begin a new chat."""
        self.shown.begin()

    def action_chats(self) -> None:
        """List the chats."""
        self.shown.list_all()

    def action_search(self) -> None:
        """Search all chats."""
        self.shown.list_all(is_searching=True)

    def action_chat_settings(self) -> None:
        """Ask for system prompt and sampling, and how drafts are verified."""
        self.shown.ask_settings()

    # --- speculation ---

    def action_next_predictor(self) -> None:
        """Switch to the next predictor that is there."""
        self.speculation.next_predictor()

    def action_next_controller(self) -> None:
        """Switch to the next rule of the draft length."""
        self.speculation.next_controller()

    def action_draft_length(self, step: int) -> None:
        """Make drafts longer or shorter."""
        self.speculation.longer(step)

    # --- beside the messages ---

    def _complete(self) -> bool:
        """Write the marked completion; without any, go to the messages."""
        if not self.completion.complete():
            self.set_focus(self.transcript)  # at once: the next key may wait already
        return True

    def _move_in_list(self, step: int) -> bool:
        """Move in the completions, or from an empty composer to what an empty chat offers."""
        if self.completion.move(step):
            return True
        is_offered = step > 0 and self.beginning.display and not self.composer.text
        if is_offered:
            self.beginning.focus()
        return is_offered

    def action_sidebar(self) -> None:
        """Show the sidebar or hide it, and remember that; on a narrow screen, list the chats."""
        if self.has_class("-narrow"):
            self.action_chats()
            return
        is_on = not self.sidebar.display
        self.show_sidebar(is_on=is_on)
        self.set_class(is_on, "-asked")
        try:
            self.services.settings.change("ui", "sidebar", is_on)
        except EngineError as error:
            report(self, error)
        shown = self.sidebar.chats if is_on else self.composer
        self.call_after_refresh(shown.focus)

    def show_sidebar(self, *, is_on: bool) -> None:
        """Show the chats beside the transcript where the screen is wide, or hide them."""
        self.set_class(is_on, "-sidebar")
        self.call_after_refresh(self.sidebar.look)

    def on_screen_resume(self) -> None:
        # Textual keeps the last 1,024 painted widgets by this function, with every line that they
        # had: those of screens that are closed would take 50 MiB after a hundred of them.
        StylesCache.get_inner_outer.cache_clear()
        self.sidebar.look()
        self._offer_beginning()
        self._invite()

    def on_chat_sidebar_opened(self, message: ChatSidebar.Opened) -> None:
        self.shown.open_at(message.place)

    def on_beginning_list_chosen(self, message: BeginningList.Chosen) -> None:
        match message.key:
            case Example(text):
                self.composer.put(text)
                self.composer.focus()
            case int(chat_id):
                self.open_chat(chat_id)

    def action_to_list(self) -> None:
        """Go from the search of the sidebar to its list."""
        self.sidebar.chats.focus()

    def action_find(self) -> None:
        """Find in this chat."""
        self.query_one(TabStrip).active = 0
        self.find.open()

    def find_text(self, text: str) -> None:
        """Find a text in this chat."""
        self.query_one(TabStrip).active = 0
        self.find.open(text)

    def action_find_next(self, step: int) -> None:
        """Go to the next place with the text, or the one before."""
        self.find.next(step)

    # --- messages ---

    def action_copy_message(self) -> None:
        """Copy the selected message, or the last reply."""
        message = self._message_of(Speaker.MODEL)
        if message is None or not message.content:
            self.notify("There is no reply to copy yet.")
        else:
            copy(self.app, answer_of(message.content))

    def action_copy_code(self) -> None:
        """Copy the last code block of a reply; the one before when pressed again."""
        message = self._message_of(Speaker.MODEL)
        blocks = code_blocks(answer_of(message.content)) if message else []
        if message is None or not blocks:
            self.notify("There is no code block in this reply.")
            return
        back = 0
        if self._copied_code is not None and self._copied_code[0] == message.id:
            back = (self._copied_code[1] + 1) % len(blocks)
        self._copied_code = (message.id, back)
        copy(self.app, blocks[-1 - back], f"code block {len(blocks) - back} of {len(blocks)}")

    def action_statistics(self) -> None:
        """Show what was counted and timed of the selected reply, or the last one; or hide it."""
        message = self._message_of(Speaker.MODEL)
        text = reply_stats_text(message) if message else None
        if message is None or text is None:
            self.notify("This reply has no statistics.")
        else:
            self.controller.toggle_note(message.id, text)

    def on_transcript_clicked(self, message: Transcript.Clicked) -> None:
        self.transcript.selected = message.key

    def action_next_tint(self) -> None:
        """Colour tokens in the next way, and remember it."""
        self.set_tint(TINT_MODES[(TINT_MODES.index(self.transcript.tint) + 1) % len(TINT_MODES)])

    def set_tint(self, mode: TintMode) -> None:
        """Colour tokens in this way, and remember it."""
        self.transcript.set_tint(mode)
        try:
            self.services.settings.change("ui", "tint", mode)
        except EngineError as error:
            report(self, error)
        self.notify(f"Token colours: {TINT_MEANINGS[mode]}", timeout=3)

    # --- tabs of a narrow screen ---

    def action_next_tab(self) -> None:
        """Go to the next tab of a narrow screen."""
        self.query_one(TabStrip).next()

    def on_tab_strip_chosen(self, message: TabStrip.Chosen) -> None:
        for index, name in enumerate(TABS):
            self.set_class(index == message.index, f"-tab-{name}")
