"""The unsent text of each chat, and the messages that wait for the engine.

No Textual here. Every text is saved at all times: as unsent text of its chat, or as a message.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from app.chat.attachments import (
    AttachmentError,
    as_written,
    is_file,
    message_with,
    names_in,
    pieces,
    read_file,
    written_message,
)
from app.chat.context_full import ContextFull
from app.chat.conversation import Conversation
from app.chat.history import short_title
from app.chat.snapshot import NO_MODEL, Phase
from app.chat.update import Notice
from app.store.errors import ChatGoneError, StoreError
from app.store.records import StoredMessage, UnsentText
from engine.errors import EngineError

NOTHING_TO_CONTINUE = "The last reply is complete: there is nothing to continue."
NO_QUESTION = "There is no question to answer yet."
STOPPED = "The engine has stopped: {engine-restart} restarts it."
NOTHING = UnsentText()


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that is sent when the engine is free; without text the last reply continues."""

    chat_id: int | None
    """None is the new chat, which has no id before its first question is saved."""
    unsent: UnsentText = NOTHING


@dataclass(frozen=True, slots=True)
class Part:
    """A paste or file that is attached to a message."""

    label: str
    """`paste 1`, or the name of a file."""
    text: str = ""
    problem: str = ""
    """Why it cannot go with it."""


class Outbox:
    """Measures and sends messages, or queues them while the engine is busy.

    Errors are notices of the conversation, and the text stays unsent.

    Attributes:
        folder: Directory in which `@path` names of a text begin.
        chat_id: The chat whose text is in the composer; None is the new chat.
        queue: Waiting messages of all chats, oldest first.
        parts: Pastes and files of the text in the composer.
    """

    def __init__(self, conversation: Conversation, context: ContextFull) -> None:
        self.folder = Path()
        self.chat_id: int | None = None
        self.queue: list[QueuedMessage] = []
        self.parts: list[Part] = []
        self._conversation = conversation
        self._context = context
        self._store = conversation.history.store
        self._store.unsent_of = self._stays_unsent
        self._typed = ""
        self._texts: dict[int | None, UnsentText] = {}
        self._saved: dict[int | None, UnsentText] = {}
        self._failed: deque[int | None] = deque()
        """Chats whose text could not be saved, filled by the thread of the store."""
        self._sent = (NOTHING, "")
        """The text sent last and the message it became: the engine may refuse it."""

    # --- the composer's text ---

    @property
    def unsent(self) -> UnsentText:
        return self._texts.get(self.chat_id, NOTHING)

    @property
    def is_edit(self) -> bool:
        return self.unsent.edited is not None

    @property
    def queued(self) -> list[QueuedMessage]:
        return self._queued_in(self.chat_id)

    def _queued_in(self, chat_id: int | None) -> list[QueuedMessage]:
        return [message for message in self.queue if message.chat_id == chat_id]

    def write(self, text: str) -> None:
        self._set(self.chat_id, replace(self.unsent, text=text))

    def _set(self, chat_id: int | None, unsent: UnsentText) -> None:
        self._texts.pop(chat_id, None)
        if unsent:
            self._texts[chat_id] = unsent

    def edit(self, message: StoredMessage) -> None:
        """Edit a message; the earlier text of the composer returns after the edit."""
        unsent, content = self.unsent, message.content
        before = unsent.before if self.is_edit else unsent.text
        text = content if message.role == "assistant" else as_written(content, self.folder)
        self._set(self.chat_id, UnsentText(text, message.id, before))

    def cancel_edit(self) -> None:
        self._set(self.chat_id, UnsentText(self.unsent.before))

    # --- its size ---

    def measure(self, pastes: Sequence[tuple[str, str]]) -> None:
        """Read the files that the text names; `pastes` are those in it, by label."""
        unsent, folder = self.unsent, self.folder
        self._typed = "".join(part for part, is_paste in pieces(unsent.text) if not is_paste)
        named = names_in(unsent.text) if self._has_files(unsent) else ()
        known = {part.label: part for part in self.parts}
        files = [known.get(f"@{n}") or self._read(n) for n in named if is_file(n, folder)]
        self.parts = [*(Part(*paste) for paste in pastes), *files]

    def _read(self, name: str) -> Part:
        try:
            file = read_file(name, self.folder)
        except AttachmentError as error:
            return Part(f"@{name}", problem=str(error))
        if file.image is not None and (blindness := self._conversation.blindness):
            return Part(f"@{name}", problem=f"is an image, but {blindness}")
        return Part(f"@{name}", file.text)

    def count(self) -> tuple[int | None, bool]:
        """Tokens of the message, None if not all are known, and whether some are being counted."""
        counts = self._conversation.counts
        texts = (self._typed, *(part.text for part in self.parts))
        counted = [counts.of(text) for text in texts]
        known = [n for n in counted if n is not None]
        is_counting = any(map(counts.is_counting, texts))
        return (sum(known) if len(known) == len(counted) else None), is_counting

    def _has_files(self, unsent: UnsentText) -> bool:
        """Whether files named in a text go with it; none go with an edited reply."""
        with suppress(StoreError):  # sending reports that the message is gone
            if unsent.edited is not None:
                return self._conversation.history.message(unsent.edited).role == "user"
        return True

    def _message_of(self, unsent: UnsentText) -> str:
        """The message for the model, with pastes and the present content of named files."""
        if not self._has_files(unsent):
            return message_with(unsent.text, ())
        return written_message(unsent.text, self.folder, self._conversation.blindness)

    # --- saved texts ---

    def load(self) -> None:
        self.chat_id = self._conversation.history.chat_id
        self._saved = self._store.unsent_texts()
        self._texts = dict(self._saved)

    def save(self) -> None:
        """Save the unsent texts that changed, the queued ones among them."""
        chats = {*self._texts, *(message.chat_id for message in self.queue)}
        unsent = {chat_id: text for chat_id in chats if (text := self._unsent_in(chat_id))}
        failed = {self._failed.popleft() for _ in range(len(self._failed))}
        changed = {
            chat_id: unsent.get(chat_id, NOTHING)
            for chat_id in {*unsent, *self._saved, *failed}
            if chat_id in failed or unsent.get(chat_id) != self._saved.get(chat_id)
        }
        if changed:
            self._store.save_unsent(changed, lambda: self._failed.extend(changed))
            self._saved = unsent

    def _unsent_in(self, chat_id: int | None) -> UnsentText:
        queued = [message.unsent for message in self._queued_in(chat_id)]
        return together(*queued, self._texts.get(chat_id, NOTHING))

    def _stays_unsent(self, chat_id: int | None) -> UnsentText:
        """The text that stays unsent in a chat once its question is saved; the store asks this."""
        self._saved.pop(chat_id, None)
        return self._unsent_in(chat_id)

    def follow_chat(self) -> bool:
        """Switch to the text of the shown chat; False if the composer already has it."""
        old, new = self.chat_id, self._conversation.history.chat_id
        if old == new:
            return False
        self.chat_id = new
        if old is not None and self._is_gone(old):
            self._move(old, new)
        if new is not None:
            self._read_again(new)
        return True

    def _read_again(self, chat_id: int) -> None:
        """Read the text that another kvchat process saved, unless there is a newer one here."""
        is_changed = self._texts.get(chat_id, NOTHING) != self._saved.get(chat_id, NOTHING)
        if is_changed or self._queued_in(chat_id):
            return
        with suppress(StoreError):  # the known text stays
            stored = self._store.unsent_texts().get(chat_id, NOTHING)
            self._set(chat_id, stored)
            self._saved[chat_id] = stored

    def _is_gone(self, chat_id: int) -> bool:
        """Whether a chat was deleted; False too if the database cannot be read now."""
        try:
            self._store.chat(chat_id)
        except ChatGoneError:
            return True
        except StoreError:
            return False
        return False

    def _move(self, old: int | None, new: int | None) -> None:
        """Move unsent text and queued messages of a chat to another, before those there."""
        moved = self._texts.pop(old, NOTHING)
        self._set(new, together(moved, self._texts.get(new, NOTHING)))
        self.queue = [replace(m, chat_id=new) if m.chat_id == old else m for m in self.queue]

    # --- sending ---

    def send(self) -> bool:
        """Send or queue the text; without text, continue a reply that was cut off.

        False if the text stays in the composer.
        """
        unsent, conversation = self.unsent, self._conversation
        if not unsent.text.strip():
            if not unsent and conversation.live is None and conversation.history.unfinished():
                self.continue_reply()
            return False
        try:
            text = self._message_of(unsent)
        except EngineError as error:
            conversation.report(error)
            return False
        self._set(self.chat_id, UnsentText(unsent.before))
        message = QueuedMessage(self.chat_id, replace(unsent, before=""))
        is_sent = self._queue(message) or self._send(message, text)
        if not is_sent:
            self._set(self.chat_id, unsent)
        return is_sent

    def continue_reply(self) -> None:
        """Continue the last reply of the shown chat, now or when the engine is free."""
        message = QueuedMessage(self.chat_id)
        if not self._queue(message):
            self._send(message)

    def regenerate(self, message_id: int | None) -> None:
        """Generate another reply to a message, or to the last one if None."""
        blocked_by = self.blocked_by(self.chat_id)
        if blocked_by is not None:
            self._notify(f"Another reply can be generated when {blocked_by}.")
        elif self._is_engine_ready() and not self._conversation.regenerate(message_id):
            self._notify(NO_QUESTION)

    def send_next(self) -> bool:
        """Send the oldest queued message that nothing blocks; whether one left the queue."""
        message = next((m for m in self.queue if self.blocked_by(m.chat_id) is None), None)
        if message is None:
            return False
        self.queue.remove(message)
        is_sent = False
        try:
            is_sent = self._send(message)
        finally:
            if not is_sent:
                self._return(message.chat_id, message.unsent)
        return True

    def unqueue(self) -> bool:
        """Return the newest queued message to the composer; False if none waits in this chat."""
        if not self.queued:
            return False
        message = self.queued[-1]
        self.queue.remove(message)
        self._set(self.chat_id, together(message.unsent, self.unsent))
        return True

    def return_refused(self, message: str) -> None:
        """Return a message that the engine refused, and those queued after it, to the composer."""
        unsent, sent = self._sent
        unsent = unsent if sent == message else UnsentText(as_written(message, self.folder))
        self._return(self.chat_id, unsent)

    def return_queued(self) -> None:
        self._return(self.chat_id, NOTHING)

    def _return(self, chat_id: int | None, first: UnsentText) -> None:
        """Return a text and those queued after it to their chat, or to the shown one."""
        queued = [message.unsent for message in self._queued_in(chat_id)]
        self.queue = [message for message in self.queue if message.chat_id != chat_id]
        is_there = chat_id is None or chat_id == self.chat_id or not self._is_gone(chat_id)
        target = chat_id if is_there else self.chat_id
        self._set(target, together(first, *queued, self._texts.get(target, NOTHING)))

    def blocked_by(self, chat_id: int | None) -> str | None:
        """What has to happen before a message can be sent in a chat, such as `the model is loaded`.

        None if nothing blocks it.
        """
        conversation = self._conversation
        if conversation.reply_in(chat_id) is not None:
            return "this reply is done" if chat_id == self.chat_id else "its reply is done"
        if conversation.has_task:
            return "the model is free"
        if conversation.is_replying and not conversation.has_free_slot:
            answered = next(iter(conversation.running.values()))
            return f"“{short_title(answered.chat_title)}” is answered"
        return "the model is loaded" if conversation.meters.phase is Phase.LOADING else None

    def _queue(self, message: QueuedMessage) -> bool:
        """Queue a message if it is blocked; False if it can be sent now."""
        if self.blocked_by(message.chat_id) is None:
            return False
        if message.unsent or message not in self.queue:
            self.queue.append(message)
        try:
            self.save()
            self._store.flush()  # the user is shown that it waits
        except StoreError as error:
            self._conversation.report(error)
        return True

    def _send(self, message: QueuedMessage, text: str | None = None) -> bool:
        """Send a message, or continue the last reply; False, with a notice, if that fails."""
        conversation, unsent = self._conversation, message.unsent
        if not self._is_engine_ready():
            return False
        is_shown = message.chat_id == conversation.history.chat_id
        if not unsent.text and is_shown and self._context.is_needed():
            conversation.offer_space("this reply ended because the context is full")
            return True
        try:
            history = conversation.history if is_shown else conversation.history_of(message.chat_id)
            if not unsent.text:
                if conversation.continue_reply(history) is None:
                    self._notify(
                        NOTHING_TO_CONTINUE, "" if is_shown else short_title(history.title)
                    )
                return True
            text = self._message_of(unsent) if text is None else text
            if is_shown:
                self._sent = (unsent, text)
            if unsent.edited is None:
                reply = conversation.send(text, history)
            else:
                reply = conversation.edit(unsent.edited, text, history)
        except EngineError as error:
            conversation.report(error)
            return False
        if message.chat_id is None:
            self._move(None, reply.chat_id)
            self.chat_id = reply.chat_id if is_shown else self.chat_id
        return True

    def _is_engine_ready(self) -> bool:
        conversation = self._conversation
        if conversation.has_free_slot:
            return True
        self._notify(NO_MODEL if conversation.meters.phase is Phase.EMPTY else STOPPED)
        return False

    def _notify(self, message: str, title: str = "") -> None:
        self._conversation.notify(Notice(message, title))


def together(*texts: UnsentText) -> UnsentText:
    """Several unsent texts as one, in their order."""
    whole = NOTHING
    for text in texts:
        whole = whole.and_then(text)
    return whole


class InputHistory:
    """Earlier questions, newest first, reached step by step from the text in the composer.

    `as_written` turns a question into its unsent text when it is shown.
    """

    def __init__(
        self, questions: Sequence[str], written: str, as_written: Callable[[str], str] = str
    ) -> None:
        self._questions = list(dict.fromkeys(filter(None, questions)))
        self._as_written = as_written
        self._texts = [written]
        self._index = 0

    @property
    def shown(self) -> str:
        """The text of the present step."""
        return self._texts[self._index]

    def step(self, n: int) -> str | None:
        """The text `n` steps earlier, or later if negative; None at either end."""
        index = self._index + n
        while index >= len(self._texts) and self._questions:
            text = self._as_written(self._questions.pop(0))
            if text and text not in self._texts:
                self._texts.append(text)
        if not 0 <= index < len(self._texts):
            return None
        self._index = index
        return self.shown
