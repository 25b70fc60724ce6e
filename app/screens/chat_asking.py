"""Asking from the chat: send, wait for the engine, go on, stop, regenerate, edit."""

from dataclasses import replace

from textual.content import Content

from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from app.chat.snapshot import NO_MODEL, Phase
from app.render.status import short_title
from app.screens.chat_dialogs import ChatDialogs
from app.screens.pending import Pending, Waiting, esc_text, size_text, state_text
from app.startup import Services
from app.store.errors import StoreError
from app.store.records import Draft, StoredMessage
from app.widgets.composer import Composer
from app.widgets.transcript import Transcript
from engine.errors import EngineError


class ChatAsking(ChatDialogs):
    """What the user asks of the model, and what it is asked of: transcript and composer.

    There is one rule for all that is asked: while the engine has something else to do, it waits,
    and esc takes it back.
    """

    def __init__(self, controller: Conversation, services: Services) -> None:
        super().__init__(controller, services)
        self.pending = Pending()
        self._composing: int | None = None
        """The chat whose text stands in the composer; None is the new one."""
        self._edited: int | None = None
        """The question that the composer's text takes the place of."""
        self._before_edit = ""
        self._asked = Draft()
        """What was sent last: the engine may refuse it."""
        self._saved: dict[int | None, Draft] = {}
        """The unsent texts as the store has them."""
        self._text_size = ""
        """Of a long text in the composer."""

    @property
    def transcript(self) -> Transcript:
        """The messages."""
        return self.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        """Where the user writes."""
        return self.query_one(Composer)

    @property
    def _chat_id(self) -> int | None:
        chat = self.controller.history.chat
        return chat.id if chat is not None else None

    # --- the text of each chat ---

    def recall_drafts(self) -> None:
        """Show what was written and not sent when kvchat was closed."""
        try:
            self._saved = self.controller.history.store.drafts()
        except StoreError as error:
            self.report(error)
        self.pending = Pending(self._saved)
        self._composing = self._chat_id
        self._show_draft(self.pending.draft(self._composing))

    def save_drafts(self) -> None:
        """Keep what was written and not sent for the next start, as far as it changed."""
        unsent = self.pending.unsent()
        chats = {*unsent, *self._saved}
        changed = {c: unsent.get(c, Draft()) for c in chats if unsent.get(c) != self._saved.get(c)}
        if changed:
            self.controller.history.store.save_drafts(changed)
            self._saved = unsent

    def follow_chat(self) -> None:
        """Put the text of the chat that is shown into the composer, and keep that of the other."""
        old, new = self._composing, self._chat_id
        if old == new:
            return
        self._composing, draft = new, self._draft()
        if old is None or self._is_there(old):
            self.pending.keep(old, draft)
            draft = Draft()
        else:
            self.pending.keep(old, Draft())
            self.pending.move(old, new)
        self._show_draft(draft.and_then(self.pending.draft(new)))

    def _is_there(self, chat_id: int) -> bool:
        try:
            self.controller.history.store.chat(chat_id)
        except StoreError:
            return False
        return True

    def _draft(self) -> Draft:
        return Draft(self.composer.text, self._edited, self._before_edit)

    def _show_draft(self, draft: Draft) -> None:
        self._edited, self._before_edit = draft.edited, draft.before
        self.composer.begin(draft.text)
        self.pending.keep(self._composing, draft)
        self.say_what_waits()

    def _take_up(self, draft: Draft) -> None:
        """Put something that was not sent before what stands in the composer."""
        whole = draft.and_then(self._draft())
        self._edited, self._before_edit = whole.edited, whole.before
        self.composer.put(whole.text)
        self.say_what_waits()

    def on_text_area_changed(self) -> None:
        self.measure_text()

    def measure_text(self) -> None:
        """Say how long a long text is, and whether it is more than the model can read."""
        loaded = self.controller.loaded
        self.pending.keep(self._composing, self._draft())
        self._text_size = size_text(self.composer.text, loaded.n_ctx if loaded else None)
        self.say_what_waits()

    def say_what_waits(self) -> None:
        """Say in the composer's frame what waits, what esc does, and how long a long text is."""
        controller, composer = self.controller, self.composer
        waiting = self.pending.of(self._composing)
        is_edit = self._edited is not None
        is_replying = controller.is_replying and controller.background_title is None
        above = state_text(waiting, self._what_is_awaited() or "its turn comes", is_edit=is_edit)
        esc = esc_text(waiting, is_replying=is_replying, is_edit=is_edit)
        below = " · ".join(filter(None, (self._text_size, esc)))
        if (above, below) != (
            str(composer.border_title or ""),
            str(composer.border_subtitle or ""),
        ):
            composer.border_title, composer.border_subtitle = Content(above), Content(below)

    # --- asking ---

    def action_send(self) -> None:
        """Ask what is written; with nothing written, go on with a reply that was cut."""
        self.transcript.selected = None  # what is asked next is of the end of the chat
        text = self.composer.take()
        if not text:
            self._go_on_if_cut()
        elif text.strip():
            self._submit(Draft(text, self._edited))

    def _submit(self, draft: Draft) -> None:
        before, self._edited, self._before_edit = self._before_edit, None, ""
        if not self._request(Waiting(self._chat_id, "text", draft)):
            self._take_up(replace(draft, before=before))
        elif before:
            self._take_up(Draft(before))

    def _go_on_if_cut(self) -> None:
        is_free = self._edited is None and not self.controller.is_replying
        if is_free and self.controller.history.unfinished() is not None:
            self.action_continue_reply()

    def action_continue_reply(self) -> None:
        """Go on with the last reply where it was cut."""
        self._request(Waiting(self._chat_id, "go on"))

    def action_regenerate(self) -> None:
        """Answer once more."""
        selected = self.transcript.selected
        self._request(Waiting(self._chat_id, "again", message_id=selected))

    def _request(self, request: Waiting) -> bool:
        """Ask now, or when the engine is free; False where that cannot be, and why is told."""
        if self._what_is_awaited() is None or self.controller.history.is_read_only:
            return self._may_ask() and self._ask(request)
        self.pending.add(request)
        self.say_what_waits()
        return True

    def _ask(self, request: Waiting) -> bool:
        try:
            match request.kind:
                case "text":
                    self._ask_text(request.draft)
                case "go on":
                    if self.room.is_needed():
                        self.offer_room("this reply ended because the context is full")
                    elif not self.controller.continue_reply():
                        self.notify("The last reply is whole: there is nothing to go on with.")
                case "again":
                    if not self.controller.regenerate(request.message_id):
                        self.notify("There is no question to answer yet.")
        except EngineError as error:
            self.report(error)
            return False
        self.transcript.action_follow()
        self.say_what_waits()
        return True

    def _ask_text(self, draft: Draft) -> None:
        self._asked = draft
        if draft.edited is not None:
            self.controller.edit(draft.edited, draft.text)
        else:
            self.controller.send(draft.text)
        if self._composing is None and self._chat_id is not None:
            self.pending.move(None, self._chat_id)
            self.pending.keep(None, Draft())
            self._composing = self._chat_id

    # --- waiting for the engine ---

    def _what_is_awaited(self) -> str | None:
        controller = self.controller
        if controller.background_title is not None:
            return f"“{short_title(controller.background_title)}” is answered"
        if controller.is_replying:
            return "this reply is done"
        if controller.is_leased:
            return "the model is free"
        return "the model is loaded" if controller.meters.phase is Phase.LOADING else None

    def ask_what_waits(self) -> None:
        """Ask what came first of what waits, once the engine is free."""
        if self._what_is_awaited() is not None or self.is_choosing:
            return
        if self.pending.queue:
            request = self.pending.queue.pop(0)
            if not self._ask_waiting(request):
                self._return(request.chat_id, request.draft)
        self.say_what_waits()

    def _ask_waiting(self, request: Waiting) -> bool:
        if request.chat_id == self._chat_id:
            return self._may_ask() and self._ask(request)
        if not self.controller.is_free:
            return self._may_ask()
        if request.kind != "text":
            return True  # the reply that it was of is out of sight, and has no text to lose
        draft = request.draft
        try:
            chat_id = self.controller.ask_in(request.chat_id, draft.text, draft.edited)
        except EngineError as error:
            self.report(error)
            return False
        if request.chat_id is None:
            self.pending.move(None, chat_id)
        return True

    def _return(self, chat_id: int | None, first: Draft) -> None:
        """Give a text that cannot be sent, and those behind it, back to the chat's composer."""
        draft = first.and_then(self.pending.take_all(chat_id))
        if chat_id == self._composing or (chat_id is not None and not self._is_there(chat_id)):
            self._take_up(draft)
        else:
            self.pending.keep(chat_id, draft.and_then(self.pending.draft(chat_id)))

    def give_back(self, text: str) -> None:
        """Put a text that was refused back where it was written, with what waits behind it."""
        draft = self._asked if self._asked.text == text else Draft(text)
        self._return(self._chat_id, replace(draft, before=""))

    def give_back_waiting(self) -> None:
        """Put what waits in the shown chat back: there is no room for it."""
        self._return(self._chat_id, Draft())

    def action_stop(self) -> None:
        """Take back what waits, else stop the reply, else leave an edit; and go to the composer."""
        elsewhere = self.controller.background_title
        if self.pending.of(self._chat_id):
            self._take_up(self.pending.take_newest(self._chat_id))
        elif elsewhere is None and (self.controller.stop() or self.controller.is_replying):
            return
        elif self._edited is not None:
            text, self._edited, self._before_edit = self._before_edit, None, ""
            self.composer.put(text)
            self.say_what_waits()
        elif elsewhere is not None and self.composer.has_focus:
            self.notify(
                f"“{short_title(elsewhere)}” is being answered: open it (ctrl+l) to stop it."
            )
        self.composer.focus()

    def action_edit(self) -> None:
        """Take the selected question, or the last, into the composer."""
        message = self._selected(Speaker.USER)
        if message is None:
            self.notify("There is no question to edit yet.")
            return
        if self._edited is None:
            self._before_edit = self.composer.text
        self._edited = message.id
        self.composer.put(message.content)
        self.say_what_waits()
        self.composer.focus()

    def action_variant(self, step: int) -> None:
        """Show another variant of the selected message, or of the last reply."""
        selected = self.transcript.selected
        if selected is None:
            last = self.controller.history.last(Speaker.MODEL)
            selected = last.id if last else None
        if selected is None:
            return
        try:
            if not self.controller.switch_variant(selected, step):
                self.notify("There is no further variant.")
        except StoreError as error:
            self.report(error)

    def _may_ask(self) -> bool:
        controller = self.controller
        if controller.can_ask:
            return True
        if controller.history.is_read_only:
            self.notify("Another kvchat writes this chat: it is read-only here.")
        elif controller.meters.phase is Phase.EMPTY:
            self.notify(NO_MODEL)
        else:
            self.notify("The engine has stopped: ctrl+r starts it again.", severity="warning")
        return False

    def _selected(self, speaker: Speaker) -> StoredMessage | None:
        """The selected message if it is that speaker's, else the speaker's last one."""
        selected = self.transcript.selected
        role = "user" if speaker is Speaker.USER else "assistant"
        message = self.controller.history.shown(selected) if selected is not None else None
        if message is not None and message.role == role:
            return message
        return self.controller.history.last(speaker)
