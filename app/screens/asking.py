"""Asking from the chat: what is written in each chat's composer, and what waits for the engine.

There is one rule for all that is asked: while the engine has something else to do, it waits, and
esc takes it back.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from textual.content import Content
from textual.widget import Widget

from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from app.chat.snapshot import NO_MODEL, Phase
from app.render.status import short_title
from app.screens.dialogs import report
from app.screens.pending import Pending, Waiting, esc_text, size_text, state_text
from app.store.errors import StoreError
from app.store.records import Draft, StoredMessage
from app.widgets.composer import Composer
from engine.errors import EngineError

READ_ONLY = "Another kvchat writes this chat: it is read-only here."


class Drafts:
    """The text in the composer, which follows the chat that is shown."""

    def __init__(self, composer: Composer, conversation: Conversation) -> None:
        self._composer = composer
        self._conversation = conversation
        self.pending = Pending()
        self.chat_id: int | None = None
        """The chat whose text stands in the composer; None is the new one."""
        self._edited: int | None = None
        """The question that the composer's text takes the place of."""
        self._before_edit = ""
        self._saved: dict[int | None, Draft] = {}
        """The unsent texts as the store has them."""
        self._text_size = ""
        """Of a long text in the composer."""

    @property
    def is_edit(self) -> bool:
        """Whether a question is written anew."""
        return self._edited is not None

    def recall(self) -> None:
        """Show what was written and not sent when kvchat was closed.

        Raises:
            StoreError: The texts cannot be read; the composer is empty then.
        """
        self.chat_id = shown_chat_id(self._conversation)
        try:
            self._saved = self._conversation.history.store.drafts()
        finally:
            self.pending = Pending(self._saved)
            self._show(self.pending.draft(self.chat_id))

    def save(self) -> None:
        """Keep what was written and not sent for the next start, as far as it changed."""
        unsent = self.pending.unsent()
        chats = {*unsent, *self._saved}
        changed = {c: unsent.get(c, Draft()) for c in chats if unsent.get(c) != self._saved.get(c)}
        if changed:
            self._conversation.history.store.save_drafts(changed)
            self._saved = unsent

    def follow_chat(self) -> None:
        """Put the text of the chat that is shown into the composer, and keep that of the other."""
        old, new = self.chat_id, shown_chat_id(self._conversation)
        if old == new:
            return
        self.chat_id, draft = new, self._written()
        if old is None or self.is_stored(old):
            self.pending.keep(old, draft)
            draft = Draft()
        else:
            self.pending.keep(old, Draft())
            self.pending.move(old, new)
        if new is not None:
            self._read_again(new)
        self._show(draft.and_then(self.pending.draft(new)))

    def _read_again(self, chat_id: int) -> None:
        """Read what another kvchat has left in a chat meanwhile, unless something is written here.

        Where it cannot be read the text that is known stays.
        """
        known = self._saved.get(chat_id, Draft())
        if self.pending.of(chat_id) or self.pending.draft(chat_id) != known:
            return
        with suppress(StoreError):
            stored = self._conversation.history.store.draft(chat_id)
            self.pending.keep(chat_id, stored)
            self._saved = {**self._saved, chat_id: stored}

    def is_stored(self, chat_id: int) -> bool:
        """Whether there still is a chat."""
        try:
            self._conversation.history.store.chat(chat_id)
        except StoreError:
            return False
        return True

    def take(self) -> tuple[Draft, str]:
        """What is written, and what was written before an edit; the composer is empty then."""
        draft, before = Draft(self._composer.take(), self._edited), self._before_edit
        if draft.text.strip():
            self._edited, self._before_edit = None, ""
        return draft, before

    def put_first(self, draft: Draft) -> None:
        """Put something that was not sent before what stands in the composer."""
        whole = draft.and_then(self._written())
        self._edited, self._before_edit = whole.edited, whole.before
        self._composer.put(whole.text)

    def edit(self, message: StoredMessage) -> None:
        """Write a question anew, in the place of what is written now."""
        if self._edited is None:
            self._before_edit = self._composer.text
        self._edited = message.id
        self._composer.put(message.content)

    def leave_edit(self) -> None:
        """Go back to what was written before."""
        text, self._edited, self._before_edit = self._before_edit, None, ""
        self._composer.put(text)

    def asked_in_new_chat(self, chat_id: int) -> None:
        """Take the number that the new chat got with its first question."""
        if self.chat_id is None:
            self.pending.move(None, chat_id)
            self.pending.keep(None, Draft())
            self.chat_id = chat_id

    def measure(self) -> None:
        """Keep what is written, and see whether it is more than the model can read."""
        loaded = self._conversation.loaded
        self.pending.keep(self.chat_id, self._written())
        self._text_size = size_text(self._composer.text, loaded.n_ctx if loaded else None)

    def describe(self, awaited: str) -> None:
        """Show in the composer's frame what waits, what esc does, and how long a long text is.

        Args:
            awaited: What it waits for, in words.
        """
        conversation, composer = self._conversation, self._composer
        waiting = self.pending.of(self.chat_id)
        is_replying = conversation.is_replying and conversation.background_title is None
        above = state_text(waiting, awaited, is_edit=self.is_edit)
        esc = esc_text(waiting, is_replying=is_replying, is_edit=self.is_edit)
        below = " · ".join(filter(None, (self._text_size, esc)))
        shown = (str(composer.border_title or ""), str(composer.border_subtitle or ""))
        if (above, below) != shown:
            composer.border_title, composer.border_subtitle = Content(above), Content(below)

    def _written(self) -> Draft:
        return Draft(self._composer.text, self._edited, self._before_edit)

    def _show(self, draft: Draft) -> None:
        self._edited, self._before_edit = draft.edited, draft.before
        self._composer.begin(draft.text)
        self.pending.keep(self.chat_id, draft)


class Asking:
    """Asks what the user wants to be asked: at once, or when the engine is free."""

    def __init__(
        self,
        screen: Widget,
        conversation: Conversation,
        drafts: Drafts,
        context: ContextFull,
        *,
        offer_room: Callable[[str], None],
        asked: Callable[[], None],
    ) -> None:
        """Ask in a conversation.

        Args:
            screen: Shows notices.
            conversation: Takes what is asked.
            drafts: Get back what cannot be asked.
            context: Knows whether there is room for more of the last reply.
            offer_room: Lets the user choose what goes from a full context; takes why it is full.
            asked: Called when something was asked in the shown chat.
        """
        self._screen = screen
        self._conversation = conversation
        self._drafts = drafts
        self._context = context
        self._offer_room = offer_room
        self._when_asked = asked
        self._asked = Draft()
        """What was sent last: the engine may refuse it."""

    # --- what the keys ask ---

    def send(self) -> None:
        """Ask what is written; with nothing written, continue a reply that was cut."""
        is_edit = self._drafts.is_edit
        draft, before = self._drafts.take()
        if draft.text.strip():
            if not self._request(Waiting(self._chat_id, "text", draft)):
                self._drafts.put_first(replace(draft, before=before))
            elif before:
                self._drafts.put_first(Draft(before))
        elif not draft.text and not is_edit and self._is_cut():
            self.continue_reply()
        self.describe()

    def continue_reply(self) -> None:
        """Continue the last reply where it was cut."""
        self._request(Waiting(self._chat_id, "go on"))

    def regenerate(self, message_id: int | None) -> None:
        """Answer once more: a message, or the last one where it is None."""
        self._request(Waiting(self._chat_id, "again", message_id=message_id))

    def edit(self, message: StoredMessage | None) -> None:
        """Take a question into the composer."""
        if message is None:
            self._screen.notify("There is no question to edit yet.")
        else:
            self._drafts.edit(message)
            self.describe()

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
        elif elsewhere is None and (self._conversation.stop() or self._conversation.is_replying):
            return False
        elif drafts.is_edit:
            drafts.leave_edit()
        elif elsewhere is not None and is_composer_focused:
            title = short_title(elsewhere)
            self._screen.notify(f"“{title}” is being answered: open it (ctrl+l) to stop it.")
        self.describe()
        return True

    def describe(self) -> None:
        """Show in the composer's frame how things are."""
        self._drafts.describe(self._awaited() or "its turn comes")

    # --- at once or later ---

    def ask_next(self) -> None:
        """Ask what came first of what waits, once the engine is free."""
        if self._awaited() is not None:
            return
        if self._drafts.pending.queue:
            request = self._drafts.pending.queue.pop(0)
            if not self._ask_waiting(request):
                self._return(request.chat_id, request.draft)
        self.describe()

    def take_back(self, text: str) -> None:
        """Put a text that was refused back where it was written, with what waits behind it."""
        draft = self._asked if self._asked.text == text else Draft(text)
        self._return(self._chat_id, replace(draft, before=""))
        self.describe()

    def take_back_waiting(self) -> None:
        """Put what waits in the shown chat back: there is no room for it."""
        self._return(self._chat_id, Draft())
        self.describe()

    def _request(self, request: Waiting) -> bool:
        """Ask now, or when the engine is free; False, after a notice, where that cannot be."""
        if self._awaited() is None or self._conversation.history.is_read_only:
            return self._can_ask() and self._ask(request)
        self._drafts.pending.add(request)
        self.describe()
        return True

    def _ask(self, request: Waiting) -> bool:
        conversation = self._conversation
        try:
            match request.kind:
                case "text":
                    self._ask_text(request.draft)
                case "go on":
                    if self._context.is_needed():
                        self._offer_room("this reply ended because the context is full")
                    elif not conversation.continue_reply():
                        self._screen.notify(
                            "The last reply is whole: there is nothing to continue."
                        )
                case "again":
                    if not conversation.regenerate(request.message_id):
                        self._screen.notify("There is no question to answer yet.")
        except EngineError as error:
            report(self._screen, error)
            return False
        self._when_asked()
        self.describe()
        return True

    def _ask_text(self, draft: Draft) -> None:
        self._asked = draft
        conversation = self._conversation
        if draft.edited is not None:
            conversation.edit(draft.edited, draft.text)
        else:
            conversation.send(draft.text)
        if self._chat_id is not None:
            self._drafts.asked_in_new_chat(self._chat_id)

    def _ask_waiting(self, request: Waiting) -> bool:
        conversation = self._conversation
        if request.chat_id == self._chat_id:
            return self._can_ask() and self._ask(request)
        if not conversation.is_free:
            return self._can_ask()
        if request.kind != "text":
            return True  # the reply that it was of is out of sight, and has no text to lose
        draft = request.draft
        try:
            chat_id = conversation.ask_in(request.chat_id, draft.text, draft.edited)
        except EngineError as error:
            report(self._screen, error)
            return False
        if request.chat_id is None:
            self._drafts.pending.move(None, chat_id)
        return True

    def _awaited(self) -> str | None:
        """What has to end before something can be asked; None where nothing has."""
        conversation = self._conversation
        if conversation.background_title is not None:
            return f"“{short_title(conversation.background_title)}” is answered"
        if conversation.is_replying:
            return "this reply is done"
        if conversation.is_leased:
            return "the model is free"
        return "the model is loaded" if conversation.meters.phase is Phase.LOADING else None

    @property
    def _chat_id(self) -> int | None:
        return shown_chat_id(self._conversation)

    def _is_cut(self) -> bool:
        conversation = self._conversation
        return not conversation.is_replying and conversation.history.unfinished() is not None

    def _can_ask(self) -> bool:
        """Whether the engine can be asked; where not, a notice says why."""
        conversation = self._conversation
        if conversation.can_ask:
            return True
        if conversation.history.is_read_only:
            self._screen.notify(READ_ONLY)
        elif conversation.meters.phase is Phase.EMPTY:
            self._screen.notify(NO_MODEL)
        else:
            text = "The engine has stopped: ctrl+r starts it again."
            self._screen.notify(text, severity="warning")
        return False

    def _return(self, chat_id: int | None, first: Draft) -> None:
        """Put a text that cannot be sent, and those that wait after it, into its composer."""
        drafts = self._drafts
        draft = first.and_then(drafts.pending.take_all(chat_id))
        is_gone = chat_id is not None and not drafts.is_stored(chat_id)
        if chat_id == drafts.chat_id or is_gone:
            drafts.put_first(draft)
        else:
            drafts.pending.keep(chat_id, draft.and_then(drafts.pending.draft(chat_id)))


def shown_chat_id(conversation: Conversation) -> int | None:
    """The chat that is shown; None is the new one, which is not stored yet."""
    chat = conversation.history.chat
    return chat.id if chat is not None else None


def message_of(
    conversation: Conversation, speaker: Speaker, selected: int | None
) -> StoredMessage | None:
    """The selected message if it is that speaker's, else the speaker's last one."""
    role = "user" if speaker is Speaker.USER else "assistant"
    message = conversation.history.shown(selected) if selected is not None else None
    if message is not None and message.role == role:
        return message
    return conversation.history.last(speaker)
