"""Asking from the chat: what is written in each chat's composer, and what waits for the engine.

There is one rule for all that is asked: while the engine has something else to do, it waits, and
esc takes it back.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from textual.screen import Screen

from app import format as fmt
from app.chat.attachments import AttachmentError, as_written, message_with, written_message
from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from app.chat.history import ChatHistory
from app.chat.reply import RunningReply
from app.chat.snapshot import NO_MODEL, Phase
from app.render.status import short_title
from app.screens.dialogs import report
from app.screens.drafts import Drafts, shown_chat_id
from app.screens.pending import Kind, QueuedQuestion
from app.store.errors import StoreError
from app.store.records import StoredMessage, UnsentText
from engine.errors import EngineError

BEING_WRITTEN = "A reply is running: {reply-stop} stops it."
NOTHING_TO_ASK: Mapping[Kind, str] = {
    "go on": "The last reply is complete: there is nothing to continue.",
    "again": "There is no question to answer yet.",
}


class Asking:
    """Asks what the user wants to be asked: at once, or when the engine is free."""

    def __init__(
        self,
        screen: Screen[None],
        conversation: Conversation,
        drafts: Drafts,
        context: ContextFull,
        *,
        asked: Callable[[], None],
    ) -> None:
        """Ask in a conversation.

        Args:
            screen: Shows notices.
            conversation: Takes what is asked.
            drafts: Get back what cannot be asked.
            context: Knows whether there is room for more of the last reply.
            asked: Called when something was asked in the shown chat.
        """
        self._screen = screen
        self._conversation = conversation
        self._drafts = drafts
        self._context = context
        self._when_asked = asked
        self._asked = (UnsentText(), "")
        """What was sent last, and as which message: the engine may refuse it."""
        self._is_choosing = False
        """The user is asked what goes from a full context: nothing else is asked meanwhile."""
        self._has_told_slots = False

    # --- what the keys ask ---

    def send(self) -> None:
        """Ask what is written; with nothing written, continue a reply that was cut."""
        if not self._can_be_sent():
            return
        is_edit = self._drafts.is_edit
        draft, before = self._drafts.take()
        if draft.text.strip():
            if not self._request(QueuedQuestion(self._chat_id, "text", draft)):
                self._drafts.put_first(replace(draft, before=before))
            elif before:
                self._drafts.put_first(UnsentText(before))
        elif not draft.text and not is_edit and self._is_cut():
            self.continue_reply()
        self.describe()

    def _can_be_sent(self) -> bool:
        """Whether what is written can be a message; where not, a notice says why."""
        if self._drafts.is_too_long:
            self._screen.notify(
                "The message is longer than the context: shorten it, or load the model with a "
                "larger context ({model-plan}).",
                title="The message does not fit",
                severity="warning",
            )
            return False
        try:
            self._message(self._drafts.pending.draft(self._chat_id))
        except AttachmentError as error:
            report(self._screen, error)
            return False
        return True

    def continue_reply(self) -> None:
        """Continue the last reply where it was cut."""
        self._request(QueuedQuestion(self._chat_id, "go on"))

    def regenerate(self, message_id: int | None) -> None:
        """Answer once more: a message, or the last one where it is None."""
        self._request(QueuedQuestion(self._chat_id, "again", message_id=message_id))

    def edit(self, message: StoredMessage | None) -> bool:
        """Take a message into the composer; False, after a notice, where that cannot be."""
        if message is None or (why := self.why_not_edit(message)):
            self._screen.notify("There is nothing to edit yet." if message is None else why)
            return False
        self._drafts.edit(message)
        self.describe()
        return True

    def why_not_edit(self, message: StoredMessage | None) -> str:
        """Why a message cannot be written anew now; empty where it can."""
        live = self._conversation.replies.shown
        is_live = live is not None and message is not None and live.message_id == message.id
        return BEING_WRITTEN if is_live else ""

    def why_no_variant(self) -> str:
        """Why no other variant can be shown now."""
        is_live = self._conversation.replies.shown is not None
        return BEING_WRITTEN if is_live else "There are no more variants."

    def stop(self, *, is_composer_focused: bool) -> bool:
        """Take back what waits, else stop the reply, else leave an edit.

        Args:
            is_composer_focused: Whether the user is there already, where all of this leads to.

        Returns:
            Whether the user should write next: not where a reply is stopped.
        """
        drafts, elsewhere = self._drafts, self._conversation.background_title
        if drafts.pending.of(self._chat_id):
            drafts.put_first(drafts.pending.take_newest(self._chat_id))
        elif self._conversation.stop() or self._conversation.replies.shown is not None:
            return False
        elif drafts.is_edit:
            drafts.leave_edit()
        elif elsewhere is not None and is_composer_focused:
            title = short_title(elsewhere)
            self._screen.notify(
                f"A reply is running in “{title}”: open that chat "
                f"({{chat-list}}) to stop the reply."
            )
        self.describe()
        return True

    # --- a full context ---

    def offer_room(self, why: str) -> None:
        """Let the user choose what to do where the context is full.

        Args:
            why: What is full, in words.
        """
        from app.screens.dialogs import ContextFullScreen

        if not self._screen.is_current:
            # Another screen is in front: the hint behind the reply leads here later.
            self._screen.notify(why, title="The context is full", severity="warning")
            return
        self._is_choosing = True
        screen = ContextFullScreen(why, self._context.options())
        self._screen.app.push_screen(screen, self._make_room)

    def _make_room(self, choice: Literal["shift", "summarise", "branch", "stop"] | None) -> None:
        self._is_choosing = False
        try:
            match choice:
                case "shift":
                    self._context.shift()
                case "summarise":
                    self._context.summarise()
                case "branch":
                    self._context.branch_off()
                case _:
                    self._conversation.replies.take_back_refused()
        except EngineError as error:
            report(self._screen, error)

    def see_all(self) -> None:
        """Let the model see the whole chat again."""
        try:
            if not self._context.see_all():
                self._screen.notify("The model sees the whole chat again.")
        except StoreError as error:
            report(self._screen, error)

    def describe(self) -> None:
        """Show in the composer's frame how things are."""
        self._drafts.describe(self._awaited(self._chat_id) or "its turn comes")

    # --- at once or later ---

    def ask_next(self) -> None:
        """Ask what came first of what waits and need not wait any more."""
        if self._is_choosing:
            return
        queue = self._drafts.pending.queue
        request = next((each for each in queue if self._awaited(each.chat_id) is None), None)
        if request is not None:
            queue.remove(request)
            if not self._ask_waiting(request):
                self._return(request.chat_id, request.draft)
        self.describe()

    def take_back(self, text: str) -> None:
        """Put a text that was refused back where it was written, with what waits behind it."""
        asked, message = self._asked
        draft = asked if message == text else UnsentText(as_written(text, self._drafts.folder))
        self._return(self._chat_id, replace(draft, before=""))
        self.describe()

    def take_back_waiting(self) -> None:
        """Put what waits in the shown chat back: there is no room for it."""
        self._return(self._chat_id, UnsentText())
        self.describe()

    def _request(self, request: QueuedQuestion) -> bool:
        """Ask now, or when the engine is free; False, after a notice, where that cannot be."""
        is_awaiting = self._awaited(request.chat_id) is not None
        if not is_awaiting:
            return self._can_ask() and self._ask(request)
        self._drafts.pending.add(request)
        try:
            self._drafts.save_now()
        except StoreError as error:
            report(self._screen, error)
        self._tell_slots(request.chat_id)
        self.describe()
        return True

    def _ask(self, request: QueuedQuestion) -> bool:
        conversation = self._conversation
        try:
            match request.kind:
                case "text":
                    self._ask_text(request.draft)
                case "go on":
                    if self._context.is_needed():
                        self.offer_room("this reply ended because the context is full")
                    elif not conversation.continue_reply():
                        self._screen.notify(NOTHING_TO_ASK[request.kind])
                case "again":
                    if not conversation.regenerate(request.message_id):
                        self._screen.notify(NOTHING_TO_ASK[request.kind])
        except EngineError as error:
            report(self._screen, error)
            return False
        self._when_asked()
        self.describe()
        return True

    def _ask_text(self, draft: UnsentText) -> None:
        conversation, message = self._conversation, self._message(draft)
        self._asked = (draft, message)
        if draft.edited is not None:
            conversation.edit(draft.edited, message)
        else:
            conversation.send(message)
        if self._chat_id is not None:
            self._drafts.asked_in_new_chat(self._chat_id)

    def _message(self, draft: UnsentText) -> str:
        """What is written as the model gets it, with its pastes and the files as they are now.

        Raises:
            AttachmentError: If a file cannot go with it.
        """
        if not self._drafts.takes_files(draft):
            return message_with(draft.text, ())
        return written_message(draft.text, self._drafts.folder, self._conversation.blindness)

    def _ask_waiting(self, request: QueuedQuestion) -> bool:
        conversation = self._conversation
        if request.chat_id == self._chat_id:
            return self._can_ask() and self._ask(request)
        if not conversation.has_free_slot:
            return self._can_ask()
        try:
            reply = conversation.replies.ask_in(request.chat_id, self._beginning(request))
            if reply is None and request.chat_id is not None:
                title = short_title(conversation.history.store.chat(request.chat_id).title)
                self._screen.notify(NOTHING_TO_ASK[request.kind], title=title)
        except EngineError as error:
            report(self._screen, error)
            return False
        if reply is not None and request.chat_id is None:
            self._drafts.pending.move(None, reply.chat_id)
        return True

    def _beginning(self, request: QueuedQuestion) -> Callable[[ChatHistory], RunningReply | None]:
        """What asks a request in a chat that is not shown."""
        replies, draft = self._conversation.replies, request.draft
        match request.kind:
            case "text":
                return partial(replies.send, text=self._message(draft), edited=draft.edited)
            case "go on":
                return replies.continue_last
            case "again":
                return partial(replies.regenerate, message_id=request.message_id)

    def _awaited(self, chat_id: int | None) -> str | None:
        """What has to end before something can be asked in a chat; None where nothing has."""
        conversation = self._conversation
        running = conversation.replies.running
        if conversation.replies.of_chat(chat_id) is not None:
            return "this reply is done" if chat_id == self._chat_id else "its reply is done"
        if conversation.is_leased:
            return "the model is free"
        if running and not conversation.has_free_slot:
            return f"“{short_title(next(iter(running.values())).chat_title)}” is answered"
        return "the model is loaded" if conversation.meters.phase is Phase.LOADING else None

    @property
    def _chat_id(self) -> int | None:
        return shown_chat_id(self._conversation)

    def _tell_slots(self, chat_id: int | None) -> None:
        """Say once what lets two chats be answered at once, where one waits for the other."""
        conversation = self._conversation
        loaded, running = conversation.loaded, conversation.replies.running
        is_of_slots = loaded is not None and loaded.configuration.server is None
        is_own = conversation.replies.of_chat(chat_id) is not None
        if loaded is None or self._has_told_slots or not is_of_slots or is_own or not running:
            return
        self._has_told_slots = True
        n_slots = loaded.configuration.n_slots
        kv = [b.nbytes for b in loaded.buffers if b.kind == "KV" and b.owner == "target"]
        cost = f", for {fmt.nbytes(sum(kv) // n_slots)} more memory" if kv else ""
        self._screen.notify(
            f"With one more slot, both chats are answered at once{cost}: set slots = {n_slots + 1} "
            "under cache in the settings ({settings-open}), or n_slots in the preset, and load the "
            "model again.",
            title=f"“{short_title(next(iter(running.values())).chat_title)}” is answered first",
        )

    def _is_cut(self) -> bool:
        conversation = self._conversation
        is_open = conversation.history.unfinished() is not None
        return is_open and conversation.replies.shown is None

    def _can_ask(self) -> bool:
        """Whether the engine can be asked; where not, a notice says why."""
        conversation = self._conversation
        if conversation.can_ask:
            return True
        if conversation.meters.phase is Phase.EMPTY:
            self._screen.notify(NO_MODEL)
        else:
            text = "The engine has stopped: {engine-restart} restarts it."
            self._screen.notify(text, severity="warning")
        return False

    def _return(self, chat_id: int | None, first: UnsentText) -> None:
        """Put a text that cannot be sent, and those that wait after it, into its composer."""
        drafts = self._drafts
        draft = first.and_then(drafts.pending.take_all(chat_id))
        is_gone = chat_id is not None and not drafts.is_stored(chat_id)
        if chat_id == drafts.chat_id or is_gone:
            drafts.put_first(draft)
        else:
            drafts.pending.keep(chat_id, draft.and_then(drafts.pending.draft(chat_id)))


def message_of(
    conversation: Conversation, speaker: Speaker, selected: int | None
) -> StoredMessage | None:
    """The selected message if it is that speaker's, else the speaker's last, with its live text."""
    role = "user" if speaker is Speaker.USER else "assistant"
    message = conversation.history.shown(selected) if selected is not None else None
    if message is None or message.role != role:
        message = conversation.history.last(speaker)
    live = conversation.replies.shown
    if message is not None and live is not None and live.message_id == message.id:
        return replace(message, content=live.text)
    return message
