"""Asking from the chat: send, wait for the engine, go on, stop, regenerate, edit."""

from typing import Literal

from textual.content import Content

from app.chat.controller import ChatController
from app.chat.entries import Speaker
from app.chat.snapshot import NO_MODEL, Phase
from app.render.status import short_title
from app.screens.chat_dialogs import ChatDialogs
from app.services import Services
from app.store.errors import StoreError
from app.store.records import StoredMessage
from app.widgets.composer import Composer
from app.widgets.transcript import Transcript
from engine.errors import EngineError

EDITING = "editing: enter sends, esc forgets"

Waiting = Literal["text", "reply"]
"""What is asked as soon as the engine is free: the composer's text, or that a reply goes on."""


class ChatAsking(ChatDialogs):
    """What the user asks of the model, and what it is asked of: transcript and composer."""

    def __init__(self, controller: ChatController, services: Services) -> None:
        super().__init__(controller, services)
        self._edited: int | None = None
        """The question that the composer's text takes the place of."""
        self._waits: Waiting | None = None

    @property
    def transcript(self) -> Transcript:
        """The messages."""
        return self.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        """Where the user writes."""
        return self.query_one(Composer)

    # --- asking ---

    def on_composer_submitted(self, message: Composer.Submitted) -> None:
        if self._has_to_wait("text") or not self._may_ask():
            return
        try:
            if self._edited is not None:
                self.controller.edit(self._edited, message.text)
            else:
                self.controller.send(message.text)
        except StoreError as error:
            self.report(error)
            return
        self._edited = None
        self.composer.border_title = None
        self.composer.put("")
        self.transcript.action_follow()

    def on_composer_prompted(self) -> None:
        if self._edited is None and self.controller.history.unfinished() is not None:
            self.action_continue_reply()

    def action_continue_reply(self) -> None:
        """Go on with the last reply where it was cut."""
        if self._has_to_wait("reply") or not self._may_ask():
            return
        if self.room.is_needed():
            self.offer_room("this reply ended because the context is full")
            return
        try:
            if not self.controller.continue_reply():
                self.notify("The last reply is whole: there is nothing to go on with.")
                return
        except EngineError as error:
            self.report(error)
            return
        self.transcript.action_follow()

    # --- waiting for the engine ---

    def _has_to_wait(self, what: Waiting) -> bool:
        """Keep a request for later where the engine is not free yet but will be."""
        reason = self._what_is_awaited()
        self._waits = what if reason is not None else None
        if reason is not None:
            begins = "sent" if what == "text" else "goes on"
            self.composer.border_title = Content(f"{begins} when {reason} · esc takes it back")
        return self._waits is not None

    def _what_is_awaited(self) -> str | None:
        controller = self.controller
        if controller.history.is_read_only:
            return None
        if controller.replying_elsewhere is not None:
            return f"“{short_title(controller.replying_elsewhere)}” is answered"
        if controller.is_lent:
            return "the model is free"
        return "the model is loaded" if controller.meters.phase is Phase.LOADING else None

    def ask_what_waits(self) -> None:
        """Ask what was kept, once the engine is free."""
        if self._waits is None or self._what_is_awaited() is not None:
            return
        what = self._waits
        self._forget_waiting()
        if what == "reply":
            self.action_continue_reply()
        elif self.composer.text.strip():
            self.on_composer_submitted(Composer.Submitted(self.composer.text))

    def _forget_waiting(self) -> None:
        self._waits = None
        self.composer.border_title = EDITING if self._edited is not None else None

    def leave_chat(self) -> None:
        """Forget what belongs to the shown chat; a text in the composer stays."""
        self._edited = None
        self._forget_waiting()

    def give_back(self, text: str) -> None:
        """Put a text that was refused back where it was written, unless something is there."""
        if not self.composer.text:
            self.composer.put(text)

    def action_stop(self) -> None:
        """Stop the reply; without one, forget what waits or an edit, and go to the composer."""
        elsewhere = self.controller.replying_elsewhere
        if elsewhere is None and self.controller.stop():
            return
        if self._waits is not None:
            self._forget_waiting()
        elif self._edited is not None:
            self._edited = None
            self.composer.border_title = None
            self.composer.put("")
        elif elsewhere is not None and self.composer.has_focus:
            self.notify(
                f"“{short_title(elsewhere)}” is being answered: open it (ctrl+l) to stop it."
            )
        self.composer.focus()

    def action_regenerate(self) -> None:
        """Answer once more."""
        if not self._may_ask():
            return
        try:
            if not self.controller.regenerate(self.transcript.selected):
                self.notify("There is no question to answer yet.")
        except StoreError as error:
            self.report(error)

    def action_edit(self) -> None:
        """Take the selected question, or the last, into the composer."""
        message = self._selected(Speaker.USER)
        if message is None:
            self.notify("There is no question to edit yet.")
            return
        self._edited = message.id
        self.composer.put(message.content)
        self.composer.border_title = EDITING
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
        elif controller.replying_elsewhere is not None:
            title = short_title(controller.replying_elsewhere)
            self.notify(f"“{title}” is being answered: wait for it, or stop it there (ctrl+l).")
        elif controller.is_replying:
            self.notify("A reply is under way: esc stops it.")
        elif controller.is_lent:
            self.notify("The model is still busy: try again in a moment.")
        elif controller.meters.phase is Phase.LOADING:
            self.notify("The model is still being loaded.")
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
