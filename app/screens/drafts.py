"""What is written in the composer of each chat, and what goes with it."""

from contextlib import suppress
from pathlib import Path

from textual.content import Content

from app.bindings import with_keys
from app.chat.attachments import AttachmentError, as_written, is_file, names_in, pieces, read_file
from app.chat.conversation import Conversation
from app.screens.pending import (
    InputHistory,
    Part,
    Pending,
    beside_lines,
    esc_text,
    size_text,
    state_text,
)
from app.store.errors import StoreError
from app.store.records import StoredMessage, UnsentText
from app.widgets.composer import Composer
from app.widgets.ink import InkLines

N_QUESTIONS = 200
"""Earlier questions that the up key goes through."""


class Drafts:
    """The text in the composer, which follows the chat that is shown."""

    def __init__(self, composer: Composer, beside: InkLines, conversation: Conversation) -> None:
        """Follow the chat of a conversation.

        Args:
            composer: Shows the text.
            beside: Shows what waits, and what goes with the text.
            conversation: Knows which chat is shown.
        """
        self._composer = composer
        composer.recall = self._recall
        self._beside = beside
        self._conversation = conversation
        self.folder = Path()
        """Where the files lie that a text names."""
        self.pending = Pending()
        self._history: InputHistory | None = None
        """The walk through earlier questions, None before it begins."""
        self._own = ""
        """What was typed of the text."""
        self._parts: list[Part] = []
        """Pastes and files that go with it."""
        self._files: dict[str, Part] = {}
        """The files that the text names, as they were read when it did."""
        self.n_tokens: int | None = 0
        """Of all that goes with the message; None until it is counted, or where nobody can."""
        self.is_counting = False
        """Whether the engine is still to say."""
        self.chat_id: int | None = None
        """The chat whose text stands in the composer; None is the new one."""
        self._edited: int | None = None
        """The question that the composer's text takes the place of."""
        self._before_edit = ""
        self._saved: dict[int | None, UnsentText] = {}
        """The unsent texts as the store has them."""
        conversation.history.store.unsent_of = self._left_by

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
        changed = {
            c: unsent.get(c, UnsentText()) for c in chats if unsent.get(c) != self._saved.get(c)
        }
        if changed:
            self._conversation.history.store.save_drafts(changed)
            self._saved = unsent

    def save_now(self) -> None:
        """Keep it before anything else happens: the user was told that it waits.

        Raises:
            StoreError: It cannot be kept.
        """
        self.save()
        self._conversation.history.store.flush()

    def _left_by(self, chat_id: int | None) -> UnsentText:
        """What stays unsent in a chat of which a question is being saved."""
        self._saved = {known: draft for known, draft in self._saved.items() if known != chat_id}
        return self.pending.unsent().get(chat_id, UnsentText())

    def follow_chat(self) -> None:
        """Put the text of the chat that is shown into the composer, and keep that of the other."""
        old, new = self.chat_id, shown_chat_id(self._conversation)
        if old == new:
            return
        self.chat_id, draft = new, self._written()
        if old is None or self.is_stored(old):
            self.pending.keep(old, draft)
            draft = UnsentText()
        else:
            self.pending.keep(old, UnsentText())
            self.pending.move(old, new)
        if new is not None:
            self._read_again(new)
        self._show(draft.and_then(self.pending.draft(new)))

    def _read_again(self, chat_id: int) -> None:
        """Read what another kvchat has left in a chat meanwhile, unless something is written here.

        Where it cannot be read the text that is known stays.
        """
        known = self._saved.get(chat_id, UnsentText())
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

    def take(self) -> tuple[UnsentText, str]:
        """What is written, and what was written before an edit; the composer is empty then."""
        draft, before = UnsentText(self._composer.take(), self._edited), self._before_edit
        if draft.text.strip():
            self._edited, self._before_edit = None, ""
            self.pending.keep(self.chat_id, UnsentText(before))
        return draft, before

    def put_first(self, draft: UnsentText) -> None:
        """Put something that was not sent before what stands in the composer."""
        whole = draft.and_then(self._written())
        self._edited, self._before_edit = whole.edited, whole.before
        self._composer.put(whole.text)

    def edit(self, message: StoredMessage) -> None:
        """Write a question anew, in the place of what is written now."""
        if self._edited is None:
            self._before_edit = self._composer.written
        self._edited = message.id
        is_reply = message.role == "assistant"
        self._composer.put(message.content if is_reply else self._as_written(message.content))

    def _as_written(self, message: str) -> str:
        return as_written(message, self.folder)

    def leave_edit(self) -> None:
        """Go back to what was written before."""
        text, self._edited, self._before_edit = self._before_edit, None, ""
        self._composer.put(text)

    def asked_in_new_chat(self, chat_id: int) -> None:
        """Take the number that the new chat got with its first question."""
        if self.chat_id is None:
            self.pending.move(None, chat_id)
            self.chat_id = chat_id

    def takes_files(self, draft: UnsentText) -> bool:
        """Whether files that a text names go with it: not with a reply, changed in its middle."""
        with suppress(StoreError):  # sending tells that the message is gone
            if draft.edited is not None:
                return self._conversation.history.message(draft.edited).role == "user"
        return True

    def measure(self) -> None:
        """Keep what is written, and read the files that it names."""
        draft = self._written()
        self.pending.keep(self.chat_id, draft)
        self._own = "".join(part for part, is_paste in pieces(draft.text) if not is_paste)
        if self._history is not None and draft.text != self._history.shown:
            self._history = None
        named = names_in(draft.text) if self.takes_files(draft) else ()
        names = [name for name in named if is_file(name, self.folder)]
        self._files = {name: self._files.get(name) or self._read(name) for name in names}
        self._parts = [*(Part(*paste) for paste in self._composer.pastes), *self._files.values()]

    def _read(self, name: str) -> Part:
        try:
            file = read_file(name, self.folder)
            if file.image is not None and (blindness := self._conversation.blindness):
                return Part(f"@{name}", problem=f"an image, and {blindness}")
            return Part(f"@{name}", file.text)
        except AttachmentError as error:
            return Part(f"@{name}", problem=str(error))

    def count(self) -> None:
        """Add up the tokens of what is written, as far as the engine has counted them."""
        counts = self._conversation.counts
        texts = (self._own, *(part.text for part in self._parts))
        counted = [counts.of(text) for text in texts]
        self.is_counting = any(map(counts.is_counting, texts))
        self.n_tokens = None if None in counted else sum(n for n in counted if n is not None)

    @property
    def is_too_long(self) -> bool:
        """Whether what is written is surely more than the whole context."""
        loaded = self._conversation.loaded
        if loaded is None or loaded.n_ctx is None:
            return False
        return (self.n_tokens or 0) >= loaded.n_ctx

    def _recall(self, n: int) -> bool:
        """Show what waits, else the question so many back; False where there is none."""
        if n > 0 and not self._composer.text and self.pending.of(self.chat_id):
            self.put_first(self.pending.take_newest(self.chat_id))
            return True
        if self._history is None:
            if n < 0:
                return False
            with suppress(StoreError):  # without them there is nothing to go back to
                store = self._conversation.history.store
                asked = store.newest_questions(self.chat_id, limit=N_QUESTIONS)
                self._history = InputHistory(asked, self._composer.written, self._as_written)
        text = self._history.step(n) if self._history is not None else None
        if text is not None:
            self._composer.put(text)
        return text is not None

    def describe(self, awaited: str) -> None:
        """Show around the composer what waits, what goes with the text, and what esc does.

        Args:
            awaited: What it waits for, in words.
        """
        conversation, composer = self._conversation, self._composer
        self.count()
        waiting = self.pending.of(self.chat_id)
        counts = conversation.counts
        parts = [(one, counts.of(one.text), counts.is_counting(one.text)) for one in self._parts]
        lines = beside_lines(waiting, parts, composer.outer_size.width)
        if len(lines) != len(self._beside.lines):
            self._beside.styles.height = len(lines)
        self._beside.show(lines)
        is_replying = conversation.replies.shown is not None
        above = state_text(waiting, awaited, is_edit=self.is_edit)
        esc = esc_text(waiting, is_replying=is_replying, is_edit=self.is_edit)
        loaded = conversation.loaded
        size = size_text(
            self.pending.draft(self.chat_id).text,
            self.n_tokens,
            conversation.n_free,
            loaded.n_ctx if loaded else None,
        )
        above = with_keys(above, composer.app)
        below = with_keys(" · ".join(filter(None, (size, esc))), composer.app)
        shown = (str(composer.border_title or ""), str(composer.border_subtitle or ""))
        if (above, below) != shown:
            composer.border_title, composer.border_subtitle = Content(above), Content(below)

    def _written(self) -> UnsentText:
        return UnsentText(self._composer.written, self._edited, self._before_edit)

    def _show(self, draft: UnsentText) -> None:
        self._edited, self._before_edit = draft.edited, draft.before
        self._history = None
        self._composer.begin(draft.text)
        self.measure()


def shown_chat_id(conversation: Conversation) -> int | None:
    """The chat that is shown; None is the new one, which is not stored yet."""
    chat = conversation.history.chat
    return chat.id if chat is not None else None
