"""The chat: transcript, composer and panels.

One timer drives everything: it polls the conversation, appends text at a reader's pace and lets the
panels sample the counters.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

from textual._styles_cache import StylesCache
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from app.bindings import CHAT_KEYS, with_keys
from app.chat.attachments import as_written
from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.chat.entries import Speaker, thinking_text
from app.chat.history import short_title
from app.chat.outbox import InputHistory, Outbox
from app.chat.snapshot import NO_MODEL, CockpitSnapshot, Phase
from app.chat.spans import TokenSpan
from app.chat.update import ChatUpdate
from app.clipboard import copy
from app.faults import Faults
from app.render.markdown import code_blocks
from app.render.reply_stats import reply_stats_text
from app.render.status import model_facts, status_line
from app.render.transcript import TINT_MEANINGS, TINT_MODES, TintMode
from app.sanitize import visible
from app.screens.chat_list import N_RECENT, ChatList, ChatTarget, Example, beginnings
from app.screens.completion import Commands, Completion
from app.screens.composer_frame import lines_above, title_above, title_below
from app.screens.dialogs import ContextChoice, ContextFullScreen, ask, report
from app.screens.find import FindBar
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
from engine.configuration import MAX_DRAFT, ControllerName, PredictorName, SpeculationSettings
from engine.generation.reasoning import answer_of

FRAME_S = 0.08
TEXT_S = 0.16
"""Text comes six times a second: more often costs more and reads no better."""
PANEL_S = 0.32
IDLE_PANEL_S = 1.0
MEMORY_S = 2.0
MAX_TEXT_SHARE = 0.06
"""Share of the time that laying out and painting a long reply may take."""
N_QUESTIONS = 200
"""Earlier questions that the up key shows."""

WITHOUT_MODEL = {
    "{model-list}": "opens or installs a model, or opens a GGUF file",
    "{model-plan}": "plans the memory and speed of a model",
    "{app-help}": "shows all keys and a glossary",
}
"""Hints for a chat without a model."""
UNSAVED = "this chat is empty: send a question first"
BEING_WRITTEN = "A reply is running: {reply-stop} stops it."

NEEDS_MODEL = (
    "engine-restart", "compare-open", "speculation-predictor", "reply-regenerate",
    "message-regenerate", "message-continue",
)  # fmt: skip
NEEDS_REPLY = ("message-copy", "message-copy-code", "message-statistics", "message-edit-reply")
NEEDS_QUESTION = ("reply-regenerate", "message-regenerate", "message-edit")
"""Ids of keys that can do nothing without these."""
NOT_REMEMBERED = (PredictorName.DRAFT, PredictorName.CUSTOM)
"""Predictors that need a file: the next start may not have it."""

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
        self, conversation: Conversation, services: Services, commands: Commands, faults: Faults
    ) -> None:
        super().__init__()
        self.conversation = conversation
        self.services = services
        self.context = ContextFull(conversation)
        self.outbox = Outbox(conversation, self.context)
        self.transcript = Transcript(id="transcript")
        self.composer = Composer(id="composer")
        self.beside = InkLines(id="beside")
        self.sidebar = ChatList(conversation, services.forget_on_disk, id="sidebar")
        self.find = FindBar(self.transcript, id="find")
        self.beginning = SelectList(
            id="beginning",
            title="begin with",
            note="press ↓ to choose, enter to use",
            click_picks=True,
        )
        self.panels = [Panel(name) for name in PANELS]
        self.choices = SelectList(click_picks=True, id="completion")
        self.choices.can_focus = False
        self.completion = Completion(self.composer, self.choices, commands)
        self._faults = faults
        self._questions: InputHistory | None = None
        """Earlier questions, once the up key was pressed."""
        self._found: ChatTarget | None = None
        """A message to scroll to once the chat is painted."""
        self._is_choosing = False
        """The user is asked what goes from a full context: nothing is sent meanwhile."""
        self._unpainted: list[TokenSpan] = []
        """Text of the reply that is to be painted with the next frame that is due."""
        self._counted: tuple[int | None, bool] = (0, False)
        """Tokens of the composer's text as the status line shows them."""
        self._copied_code: tuple[int, int] | None = None
        """The message whose code was copied last, and which block from its end."""
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
                yield from self.panels
        yield Static(
            f"kvchat needs {MIN_SIZE[0]} columns and {MIN_SIZE[1]} rows: make the window larger",
            id="too-small",
            markup=False,
        )
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        try:
            self.outbox.load()
        except StoreError as error:  # the chat opens without unsent texts
            report(self, error)
        self._begin_text()
        self.composer.focus()
        ui = self.services.settings.settings.ui
        self.transcript.set_tint(ui.tint)
        self._offer_beginning()
        self.composer.recall = self._recall
        self.composer.move_in_list = self._move_in_list
        self.composer.complete = self._complete
        self.choices.display = self.find.display = False
        self.show_sidebar(is_on=ui.sidebar)
        self.set_interval(FRAME_S, self._on_frame)
        self.call_after_refresh(self._on_frame)

    def on_unmount(self) -> None:
        self.outbox.save()

    def on_resize(self) -> None:
        self.call_after_refresh(self._restore_focus)

    def _restore_focus(self) -> None:
        """Focus the composer again after a window too small for the chat took the focus away."""
        self._frame_composer()
        self.sidebar.show_current()
        if self.focused is None and self.composer.size.width:
            self.composer.focus()

    def on_screen_resume(self) -> None:
        # Textual keeps the last 1,024 painted widgets by this function, with every line that they
        # had: those of screens that are closed would take 50 MiB after a hundred of them.
        StylesCache.get_inner_outer.cache_clear()
        self.sidebar.show_current()
        self._offer_beginning()
        self._show_placeholder()

    # --- one frame ---

    @property
    def has_unpainted_text(self) -> bool:
        return bool(self._unpainted)

    def _on_frame(self) -> None:
        steps = (
            self._poll, self._send_next, self._paint_text, self._save_and_sample,
            self._present_if_due,
        )  # fmt: skip
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001  the other steps continue
                self._faults.handle(error)

    def _poll(self) -> None:
        self._show_update(self.conversation.poll())

    def _send_next(self) -> None:
        if self.outbox.queue and not self._is_choosing:
            with self._composing(), self._sending():
                self.outbox.send_next()
        if self._counted[1]:
            self._frame_composer()
        if self.outbox.count() != self._counted:
            self._show_status(self._snapshot())

    def _paint_text(self) -> None:
        if self._unpainted and self._text_pacer.is_due():
            with self._text_pacer.work():
                spans, self._unpainted = self._unpainted, []
                self.transcript.append("".join(span.text for span in spans), spans)

    def _save_and_sample(self) -> None:
        if self._memory_pacer.is_due():
            self._read_memory()

    def _read_memory(self) -> None:
        self.outbox.save()
        client = self.conversation.client
        with self._memory_pacer.work():
            self.conversation.meters.show(process_bytes=client.process_memory_bytes())

    def _present_if_due(self) -> None:
        # Together with text, so that both are painted in one frame.
        if self._panel_pacer.is_due() and not self._unpainted:
            is_busy = self.conversation.client.is_busy
            self._panel_pacer.interval_s = PANEL_S if is_busy else IDLE_PANEL_S
            with self._panel_pacer.work():
                self.present()

    def _show_update(self, update: ChatUpdate) -> None:
        if update.is_rebuilt:
            self._rebuild()
        if (found := self._found) is not None and found.message_id is not None:
            self._found = None
            self.query_one(TabStrip).active = 0
            if self.transcript.jump_to(found.message_id, found.found):
                self.transcript.focus()
        self._unpainted += update.spans
        can_see = self.is_current and self.transcript.is_following
        for notice in update.notices:
            if not (notice.is_in_transcript and can_see):
                self.notify(notice.message, title=notice.title, severity=notice.severity)
        if update.returned_text is not None:
            with self._composing():
                self.outbox.return_refused(update.returned_text)
        if update.context_full is not None:
            with self._composing():
                self.outbox.return_queued()
            self._offer_space(update.context_full)
        if update.loaded is not None:
            self._read_memory()
            self.on_text_area_changed()
            self.present()

    def _rebuild(self) -> None:
        self._unpainted = []
        self.transcript.show(self.conversation.entries())
        title = visible(self.conversation.history.title.replace("\n", " "))
        self.transcript.set_frame(title=title)
        self._follow_chat()
        self._offer_beginning()
        self.sidebar.show_current()
        self._show_placeholder()
        self.present()

    def _show_placeholder(self) -> None:
        self.composer.placeholder = with_keys(PLACEHOLDER, self.app)

    def _offer_beginning(self) -> None:
        """Show recent chats and examples in a chat without messages."""
        is_empty = not self.transcript.has_messages
        if is_empty:
            with suppress(StoreError):  # the sidebar reports it
                rows = beginnings(self.conversation.history.store.list_chats(N_RECENT))
                self.beginning.show_rows(rows, None if self.beginning.has_focus else rows[0].key)
        elif self.beginning.has_focus:
            self.composer.focus()
        self.set_class(is_empty, "-begin")

    def present(self) -> None:
        snapshot = self._snapshot()
        self.transcript.set_invitation(self._empty_state(snapshot))
        if snapshot.thinking is not None and snapshot.background_title is None:
            self.transcript.set_progress(thinking_text(snapshot.thinking))
        self._show_status(snapshot)
        self._frame_composer()
        for panel in self.panels:
            panel.present(snapshot)

    def _empty_state(self, snapshot: CockpitSnapshot) -> str:
        """Text in a chat without messages: the loaded model, or how to get one."""
        if snapshot.phase is Phase.READY and snapshot.n_ctx:
            return "\n".join(model_facts(snapshot))
        if snapshot.phase is not Phase.EMPTY:
            return ""
        rows = (f"{with_keys(key, self.app):<8}{what}" for key, what in WITHOUT_MODEL.items())
        return "\n".join(("No model is loaded.", "", *rows))

    def _snapshot(self) -> CockpitSnapshot:
        n_tokens, is_counting = self._counted = self.outbox.count()
        n_written = n_tokens if is_counting else n_tokens or 0
        return replace(self.conversation.snapshot(), n_written=n_written)

    def _show_status(self, snapshot: CockpitSnapshot) -> None:
        self.query_one("#status", TitleBar).present(partial(status_line, snapshot))

    # --- the composer ---

    @contextmanager
    def _composing(self) -> Iterator[None]:
        """Let the outbox change the text in the composer."""
        self.outbox.write(self.composer.written)
        try:
            yield
        finally:  # no fault loses a text
            if self.outbox.unsent.text != self.composer.written:
                self.composer.put(self.outbox.unsent.text)
        self._frame_composer()

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Scroll to the reply that is requested meanwhile in the shown chat."""
        before = self.conversation.live
        yield
        reply = self.conversation.live
        if reply is not None and reply is not before:
            self.transcript.action_follow()
        self._frame_composer()

    def _begin_text(self) -> None:
        """Show another text in the composer, from which undo does not lead back."""
        self._questions = None
        self.composer.begin(self.outbox.unsent.text)
        self.outbox.measure(self.composer.pastes)
        self._frame_composer()

    def _follow_chat(self) -> None:
        self.outbox.write(self.composer.written)
        if self.outbox.follow_chat():
            self._begin_text()
        self._frame_composer()

    def _frame_composer(self) -> None:
        """Show queued messages, attachments, the size of the text, and what esc does."""
        composer = self.composer
        lines = lines_above(self.outbox, self.conversation, composer.outer_size.width)
        if len(lines) != len(self.beside.lines):
            self.beside.styles.height = len(lines)
        self.beside.show(lines)
        above = with_keys(title_above(self.outbox), self.app)
        below = with_keys(title_below(self.outbox, self.conversation), self.app)
        shown = (str(composer.border_title or ""), str(composer.border_subtitle or ""))
        if (above, below) != shown:
            composer.border_title, composer.border_subtitle = Content(above), Content(below)

    def on_text_area_changed(self) -> None:
        """Measure the text, and offer completions."""
        if self.composer.text:
            self._show_placeholder()
        self.outbox.write(self.composer.written)
        if self._questions is not None and self.outbox.unsent.text != self._questions.shown:
            self._questions = None
        self.outbox.measure(self.composer.pastes)
        self.completion.refresh()
        self._frame_composer()

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        """Use an example, a recent chat, or the completion that was clicked."""
        match message.key:
            case Example(text):
                self.composer.put(text)
                self.composer.focus()
            case ChatTarget():
                self.open_at(message.key)
            case _:
                self.completion.run()
                self.composer.focus()

    def _recall(self, n: int) -> bool:
        """Show a queued message, else the question `n` steps earlier; False if there is none."""
        if n > 0 and not self.composer.text and self.outbox.queued:
            with self._composing():
                self.outbox.unqueue()
            return True
        if self._questions is None:
            if n < 0:
                return False
            with suppress(StoreError):  # there is nothing to go back to then
                store = self.conversation.history.store
                asked = store.newest_questions(self.outbox.chat_id, limit=N_QUESTIONS)
                to_text = partial(as_written, folder=self.outbox.folder)
                self._questions = InputHistory(asked, self.composer.written, to_text)
        text = self._questions.step(n) if self._questions is not None else None
        if text is not None:
            self.composer.put(text)
        return text is not None

    def _complete(self) -> bool:
        """Insert the marked completion; without any, go to the messages."""
        if not self.completion.complete():
            self.set_focus(self.transcript)  # at once: the next key may wait already
        return True

    def _move_in_list(self, step: int) -> bool:
        """Move in the completions, or from an empty composer to the examples of an empty chat."""
        if self.completion.move(step):
            return True
        is_offered = step > 0 and self.beginning.display and not self.composer.text
        if is_offered:
            self.beginning.focus()
        return is_offered

    # --- sending ---

    def action_send(self) -> None:
        """Send the text, or run it as a command; without text, continue a cut reply."""
        if self.completion.run():
            return
        self.transcript.selected = None  # what is sent next is at the end of the chat
        self.outbox.write(self.composer.written)
        n_ctx, n_tokens = self.conversation.n_ctx, self.outbox.count()[0]
        if n_ctx and (n_tokens or 0) >= n_ctx:
            self.notify(
                "The message is longer than the context: shorten the message, or load the model "
                "with a larger context ({model-plan}).",
                title="The message does not fit",
                severity="warning",
            )
            return
        with self._sending():
            if self.outbox.send():
                self._begin_text()
        self._poll()

    def action_continue_reply(self) -> None:
        with self._sending():
            self.outbox.continue_reply()
        self._poll()

    def action_regenerate(self) -> None:
        with self._sending():
            self.outbox.regenerate(self.transcript.selected)
        self._poll()

    def action_edit(self) -> None:
        self._edit(Speaker.USER)

    def action_edit_reply(self) -> None:
        self._edit(Speaker.MODEL)

    def _edit(self, speaker: Speaker) -> None:
        message = self._message_of(speaker)
        if message is None or self._is_live(message):
            self.notify("There is nothing to edit yet." if message is None else BEING_WRITTEN)
            return
        with self._composing():
            self.outbox.edit(message)
        self.composer.focus()

    def _is_live(self, message: StoredMessage | None) -> bool:
        live = self.conversation.live
        return live is not None and message is not None and live.message_id == message.id

    def _message_of(self, speaker: Speaker) -> StoredMessage | None:
        """The selected message if it is that speaker's, else the last, with its live text."""
        role = "user" if speaker is Speaker.USER else "assistant"
        history, selected = self.conversation.history, self.transcript.selected
        message = history.shown(selected) if selected is not None else None
        if message is None or message.role != role:
            message = history.last(speaker)
        live = self.conversation.live
        if message is not None and live is not None and live.message_id == message.id:
            return replace(message, content=live.text)
        return message

    def action_stop(self) -> None:
        """Unqueue a message, else stop the reply, else cancel an edit; and go to the composer."""
        if self.completion.close() or self.find.close():
            return
        if self.sidebar.has_focus_within and self.sidebar.end_search():
            return
        conversation, outbox = self.conversation, self.outbox
        with self._composing():
            if outbox.unqueue():
                pass
            elif conversation.stop() or conversation.live is not None:
                return
            elif outbox.is_edit:
                outbox.cancel_edit()
            elif conversation.background_title is not None and self.composer.has_focus:
                title = short_title(conversation.background_title)
                self.notify(
                    f"A reply is running in “{title}”: open that chat "
                    "({chat-list}) to stop the reply."
                )
        self.composer.focus()

    def action_variant(self, step: int) -> None:
        """Show another variant of the selected message, or of the last that has some."""
        selected = self.transcript.selected or self.conversation.history.last_varied()
        if selected is None:
            self.notify("No message has variants yet: {reply-regenerate} generates another reply.")
            return
        if not self.conversation.switch_variant(selected, step):
            is_live = self.conversation.live is not None
            self.notify(BEING_WRITTEN if is_live else "There are no more variants.")

    def obstacles(self) -> dict[str, str]:
        """Reasons why some of the keys can do nothing now, by their ids."""
        conversation, history = self.conversation, self.conversation.history
        is_busy = conversation.is_replying or conversation.meters.phase is Phase.LOADING
        last_question, last_reply = history.last(Speaker.USER), history.last(Speaker.MODEL)
        why: dict[str, str] = {}
        if not history.unfinished() and not is_busy:
            why["message-continue"] = "the last reply is complete"
        if not history.n_hidden:
            why["message-see-all"] = "the model already sees the whole chat"
        if not is_busy:
            why["reply-stop"] = "no reply is running"
        if history.chat is None:
            why["chat-export"] = UNSAVED
        if self._is_live(self._message_of(Speaker.MODEL)):
            why["message-edit-reply"] = BEING_WRITTEN
        if last_reply is None:
            why |= dict.fromkeys(NEEDS_REPLY, "there is no reply yet")
        if last_question is None:
            why |= dict.fromkeys(NEEDS_QUESTION, "there is no question yet")
        if conversation.configuration is None:
            why |= dict.fromkeys(NEEDS_MODEL, NO_MODEL)
        return why

    # --- a full context ---

    def _offer_space(self, why: str) -> None:
        if not self.is_current:
            # Another screen is in front: the hint after the reply leads here later.
            self.notify(why, title="The context is full", severity="warning")
            return
        self._is_choosing = True
        self.app.push_screen(ContextFullScreen(why, self.context.options()), self._make_space)

    def _make_space(self, choice: ContextChoice | None) -> None:
        self._is_choosing = False
        match choice:
            case "shift":
                self.context.shift()
            case "summarise":
                self.context.summarise()
            case "branch":
                self.context.branch_off()
            case _:
                self.conversation.undo_refused()

    def action_see_all(self) -> None:
        if not self.context.see_all():
            self.notify("The model already sees the whole chat.")

    # --- chats ---

    def _show_chat(self) -> None:
        """Go to the end of the chat that is shown now, and to its composer."""
        self._follow_chat()
        self.transcript.action_follow()
        self.composer.focus()

    def open_chat(self, chat_id: int) -> None:
        self.conversation.open_chat(chat_id)
        self._show_chat()

    def open_at(self, target: ChatTarget) -> None:
        """Show a stored chat, or a message of it, on whichever branch that is."""
        if target.chat_id != self.conversation.history.chat_id:
            self.open_chat(target.chat_id)
        if target.message_id is None:
            return
        if self.conversation.show_message(target.message_id):
            self._found = target
        else:
            self.notify(
                "The message is on another branch, which can be shown when the running reply is "
                "complete."
            )

    def action_new_chat(self) -> None:
        self.conversation.new_chat()
        self._show_chat()

    def action_chats(self) -> None:
        self._list_chats()

    def action_search(self) -> None:
        self._list_chats(is_searching=True)

    def _list_chats(self, *, is_searching: bool = False) -> None:
        """List all chats, or search them, and show the one that is chosen."""
        from app.screens.chats import ChatsScreen

        shown = self.conversation.history.chat_id

        def closed(target: ChatTarget | None) -> None:
            if target is None or target.chat_id == shown:
                self.conversation.refresh_or_leave()
            if target is not None:
                self.open_at(target)

        forget = self.services.forget_on_disk
        screen = ChatsScreen(self.conversation, is_searching=is_searching, forget_on_disk=forget)
        self.app.push_screen(screen, closed)

    def action_fork(self) -> None:
        """Copy the chat up to the selected message, or to its end, into a new chat."""
        chosen = self.transcript.selected or self.conversation.history.head_id
        if chosen is None or chosen < 0:
            self.notify("There is no message yet at which to fork.")
            return
        self.conversation.fork(chosen)
        self._show_chat()
        self.notify("This chat is a copy; the original chat is unchanged.")

    def action_chat_settings(self) -> None:
        from app.screens.chat_settings import ChatSettings, ChatSettingsScreen

        conversation, history = self.conversation, self.conversation.history
        now = ChatSettings(history.system_prompt, history.sampling, conversation.speculation)

        def changed(settings: ChatSettings) -> None:
            if settings.speculation != now.speculation:
                conversation.set_speculation(settings.speculation)
            history.change_settings(
                system_prompt=settings.system_prompt, sampling=settings.sampling
            )

        ask(self, ChatSettingsScreen(now, self.services.settings.settings.prompts), changed)

    def action_export(self) -> None:
        from app.screens.chats import ask_export

        history = self.conversation.history
        if history.chat is not None:
            ask_export(self, history.store, history.chat)
        else:
            self.notify("This chat is empty: send a question first.")

    def action_sidebar(self) -> None:
        """Show the sidebar or hide it, and remember that; on a narrow screen, list the chats."""
        if self.has_class("-narrow"):
            self.action_chats()
            return
        is_on = not self.sidebar.display
        self.show_sidebar(is_on=is_on)
        self.set_class(is_on, "-asked")
        shown = self.sidebar.chats if is_on else self.composer
        self.call_after_refresh(shown.focus)
        self._remember("ui", "sidebar", is_on)

    def show_sidebar(self, *, is_on: bool) -> None:
        self.set_class(is_on, "-sidebar")
        self.call_after_refresh(self.sidebar.show_current)

    def on_chat_list_opened(self, message: ChatList.Opened) -> None:
        self.open_at(message.target)

    # --- speculation ---

    def action_next_predictor(self) -> None:
        loaded = self.conversation.loaded
        if loaded is None:
            self.notify("No model is loaded.")
            return
        now = self.conversation.speculation.predictor
        # A server has none to choose from, and reports that when it is asked to switch.
        names = [PredictorName(name) for name in loaded.predictors] or [now]
        index = names.index(now) + 1 if now in names else 0
        self.use_speculation(predictor=names[index % len(names)])

    def action_next_controller(self) -> None:
        names = list(ControllerName)
        index = names.index(self.conversation.speculation.controller) + 1
        self.use_speculation(controller=names[index % len(names)])

    def action_draft_length(self, step: int) -> None:
        n_draft = self.conversation.speculation.n_draft + step
        self.use_speculation(n_draft=min(max(n_draft, 1), MAX_DRAFT))

    def use_speculation(self, **changes: Any) -> None:
        """Change predictor, controller or n_draft, now and for the next start."""
        new = replace(self.conversation.speculation, **changes)
        self.conversation.set_speculation(new)
        self.notify(speculation_text(new), title="Speculation", timeout=2)
        for key, value in changes.items():
            if value not in NOT_REMEMBERED:
                self._remember("speculation", key, value)

    def _remember(self, section: str, key: str, value: str | int | bool) -> None:
        plain = value.value if isinstance(value, StrEnum) else value
        self.services.settings.change(section, key, plain)

    # --- messages ---

    def action_find(self, text: str | None = None) -> None:
        """Find a text in this chat; None finds the last one again."""
        self.query_one(TabStrip).active = 0
        self.find.open(text)

    def action_copy_message(self) -> None:
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
        """Show counts and times of the selected reply, or the last one; or hide them."""
        message = self._message_of(Speaker.MODEL)
        text = reply_stats_text(message) if message else None
        if message is None or text is None:
            self.notify("This reply has no statistics.")
        else:
            self.conversation.history.notes.toggle(message.id, text)

    def on_transcript_clicked(self, message: Transcript.Clicked) -> None:
        self.transcript.selected = message.key

    def action_next_tint(self) -> None:
        self.set_tint(TINT_MODES[(TINT_MODES.index(self.transcript.tint) + 1) % len(TINT_MODES)])

    def set_tint(self, mode: TintMode) -> None:
        self.transcript.set_tint(mode)
        self.notify(f"Token colours: {TINT_MEANINGS[mode]}", timeout=3)
        self._remember("ui", "tint", mode)

    # --- tabs of a narrow screen ---

    def action_next_tab(self) -> None:
        self.query_one(TabStrip).next()

    def on_tab_strip_chosen(self, message: TabStrip.Chosen) -> None:
        for index, name in enumerate(TABS):
            self.set_class(index == message.index, f"-tab-{name}")


def speculation_text(settings: SpeculationSettings) -> str:
    """The settings in words, such as `lookup, auto draft length`."""
    if settings.predictor is PredictorName.OFF:
        return "off: plain decoding"
    is_fixed = settings.controller is ControllerName.FIXED
    rule = f"fixed at {settings.n_draft} tokens" if is_fixed else "auto draft length"
    return f"{settings.predictor}, {rule}"
