"""The chat that is shown: its path through the tree of messages, its settings, its lock."""

from collections import defaultdict
from dataclasses import replace

from app.chat.entries import (
    Entry,
    Speaker,
    can_go_on,
    conversation,
    divider,
    entry_of,
    is_cut,
    is_out_of_room,
    place_of,
)
from app.chat.trimming import Room, room
from app.store.chats import ChatStore
from app.store.database import ChatLock
from app.store.records import Chat, StoredMessage
from app.store.statements import NewTurn
from engine.configuration import SamplingSettings
from engine.requests import Message

MAX_TITLE_CHARS = 60
GOES_ON = "enter goes on"
"""Said behind a reply that was cut."""
MAKES_ROOM = "enter shows what can be done"
"""Said behind a reply that had no room."""
ANSWERS_ANEW = "ctrl+g answers once more"
"""Said behind a reply that was cut and whose tokens the loaded model cannot go on behind."""
ANSWERS = "not answered yet: enter asks"
"""Said behind a question that has no reply."""


def title_of(text: str) -> str:
    """The first line of a text that says something, short enough for a list."""
    first = next((part.strip() for part in text.splitlines() if part.strip()), "New chat")
    return first if len(first) <= MAX_TITLE_CHARS else first[: MAX_TITLE_CHARS - 1] + "…"


def _hint(last: StoredMessage, vocabulary_id: str | None) -> str:
    if is_out_of_room(last):
        return MAKES_ROOM
    if not is_cut(last):
        return ANSWERS
    return GOES_ON if can_go_on(last, vocabulary_id) else ANSWERS_ANEW


class ChatHistory:
    """Reads and writes one chat at a time; a new chat is created with its first message."""

    def __init__(self, store: ChatStore, *, sampling: SamplingSettings, system_prompt: str) -> None:
        self.store = store
        self._default_sampling = sampling
        self._default_system_prompt = system_prompt
        self._model_path: str | None = None
        self._lock: ChatLock | None = None
        self.begin()

    # --- which chat ---

    def begin_like(self, chat: Chat) -> None:
        """Show an empty chat with the system prompt and the sampling of another."""
        self.begin()
        self.system_prompt, self.sampling = chat.system_prompt, chat.sampling

    def begin(self) -> None:
        """Show an empty chat."""
        self.chat: Chat | None = None
        self.is_read_only = False
        """Another kvchat writes this chat."""
        self.sampling = self._default_sampling
        self.system_prompt = self._default_system_prompt
        self._path: list[StoredMessage] = []
        self._siblings: dict[int, list[int]] = {}
        self._entries: dict[int, tuple[StoredMessage, list[int], Entry]] = {}
        """Entries by message, and what each was made of."""
        self._asides: list[tuple[int | None, Entry]] = []
        """Asides, each with the message that it stands behind."""

    def open(self, chat_id: int, lock: ChatLock | None = None) -> None:
        """Show a stored chat, read-only while another kvchat writes it.

        Args:
            chat_id: The chat.
            lock: A lock on it that this kvchat holds already.

        Raises:
            StoreError: If the chat is gone.
        """
        chat = self.store.chat(chat_id)
        self.begin()
        self._lock = lock or self.store.lock_chat(chat_id)
        self.is_read_only = self._lock is None
        self.chat = chat
        self.sampling = chat.sampling
        self.system_prompt = chat.system_prompt
        self.refresh()

    def beside(self, chat_id: int | None) -> "ChatHistory":
        """A chat that is written without being shown; None is a new one.

        Raises:
            StoreError: If the chat is gone.
        """
        other = ChatHistory(
            self.store,
            sampling=self._default_sampling,
            system_prompt=self._default_system_prompt,
        )
        other._model_path = self._model_path
        if chat_id is not None:
            other.open(chat_id)
        return other

    def refresh(self) -> None:
        """Read the shown path again."""
        if self.chat is None:
            return
        self.chat = self.store.chat(self.chat.id)
        head = self.chat.head_id
        self._path = self.store.path_to(head) if head is not None else []
        self._siblings = self.store.variant_ids(self.chat.id)

    def discard(self) -> None:
        """Delete the shown chat, which held one question; its settings and asides stay.

        Raises:
            StoreError: If it could not be deleted.
        """
        if self.chat is not None:
            self.delete(self.chat.id)
            self.close()
            self.chat = None
            self._path, self._siblings = [], {}

    def delete(self, chat_id: int) -> None:
        """Delete the shown chat or any other.

        Raises:
            StoreError: If another kvchat writes it, or it could not be deleted.
        """
        self.store.delete_chat(chat_id, self._lock if self.is_shown(chat_id) else None)

    def take_over(self) -> bool:
        """Write the shown chat where the kvchat that wrote it has let it go; False where not.

        Raises:
            StoreError: If the chat cannot be read.
        """
        if self.chat is None or not self.is_read_only:
            return False
        self._lock = self.store.lock_chat(self.chat.id)
        self.is_read_only = self._lock is None
        if not self.is_read_only:
            self.refresh()
        return not self.is_read_only

    def take_lock(self) -> ChatLock | None:
        """Hand the lock of the shown chat over to the caller."""
        lock, self._lock = self._lock, None
        return lock

    def close(self) -> None:
        """Let the chat go."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_shown(self, chat_id: int) -> bool:
        """Whether this is the chat on the screen."""
        return self.chat is not None and self.chat.id == chat_id

    @property
    def title(self) -> str:
        """The title of the chat."""
        return self.chat.title if self.chat else "New chat"

    @property
    def head_id(self) -> int | None:
        """The last message that is shown."""
        return self._path[-1].id if self._path else None

    # --- what is in it ---

    def message(self, message_id: int) -> StoredMessage:
        """One message.

        Raises:
            StoreError: If there is none with this id.
        """
        return self.store.message(message_id)

    def shown(self, message_id: int) -> StoredMessage | None:
        """One of the messages on the screen."""
        place = self._place_of(message_id)
        return None if place is None else self._path[place]

    def last(self, speaker: Speaker) -> StoredMessage | None:
        """The last shown message of the user or of the model."""
        role = "user" if speaker is Speaker.USER else "assistant"
        return next((m for m in reversed(self._path) if m.role == role), None)

    def unfinished(self) -> StoredMessage | None:
        """What the shown chat ends with, if that is a reply that was cut, or an open question."""
        last = self._path[-1] if self._path else None
        if last is None or self.is_read_only:
            return None
        return last if last.role == "user" or is_cut(last) else None

    def question_for(self, message_id: int | None) -> int | None:
        """The question behind a message: the one that a reply answers, or the message itself.

        Args:
            message_id: A shown message; the last one if None.
        """
        message = self.shown(message_id if message_id is not None else self.head_id or 0)
        if message is None:
            return None
        return message.id if message.role == "user" else message.parent_id

    def entries(
        self,
        *,
        live_id: int | None = None,
        live_text: str = "",
        vocabulary_id: str | None = None,
    ) -> list[Entry]:
        """Messages and asides in their order.

        Args:
            live_id: The message that is being written.
            live_text: Its text so far, newer than what is stored.
            vocabulary_id: That of the loaded model, if one is.
        """
        asides: dict[int | None, list[Entry]] = defaultdict(list)
        for anchor, aside in self._asides:
            asides[anchor].append(aside)
        entries = [*asides[None]]
        last = self.unfinished()
        n_hidden = self.n_hidden
        for place, message in enumerate(self._path):
            if n_hidden and place == n_hidden:
                entries.append(divider(self.chat.summary if self.chat else None))
            entry = self._entry(message)
            if message.id == live_id:
                entry = replace(entry, content=live_text, ending="", is_live=True)
            elif message is last:
                hint = _hint(message, vocabulary_id)
                entry = replace(entry, ending=f"{entry.ending} · {hint}".removeprefix(" · "))
            if self.is_read_only and message.role == "assistant" and message.finish_reason is None:
                entry = replace(entry, ending="another kvchat writes this")
            entries.append(entry)
            entries += asides.get(message.id, ())
        return entries

    def _entry(self, message: StoredMessage) -> Entry:
        """A message as an entry; it is made once, for a long chat is shown often."""
        siblings = self._siblings.get(message.id, [message.id])
        known = self._entries.get(message.id)
        if known is not None and known[0] is message and known[1] is siblings:
            return known[2]
        entry = entry_of(message, siblings)
        self._entries[message.id] = (message, siblings, entry)
        return entry

    def request_messages(self, question_id: int) -> tuple[Message, ...]:
        """The conversation up to a shown question, as the engine wants it."""
        place = self._place_of(question_id)
        return conversation(
            self.system_prompt,
            self._path[: 0 if place is None else place + 1],
            kept_from=self.chat.kept_from if self.chat else None,
            summary=self.chat.summary if self.chat else None,
        )

    @property
    def n_hidden(self) -> int:
        """How many messages at the start of the shown path the model does not see."""
        return place_of(self.chat.kept_from if self.chat else None, self._path)

    @property
    def is_shifted(self) -> bool:
        """Whether messages were dropped with nothing in their place."""
        return bool(self.n_hidden) and self.chat is not None and not self.chat.summary

    def seen(self) -> list[StoredMessage]:
        """The shown messages that the model sees."""
        return self._path[self.n_hidden :]

    def room(self, n_ctx: int) -> Room | None:
        """Which turns would have to go, None where there are none that could.

        Args:
            n_ctx: Cells of the context.
        """
        chat = self.chat
        if chat is None:
            return None
        summary = chat.summary if self.n_hidden else None
        fixed = f"{self.system_prompt}{summary or ''}"
        return room(self._path, n_ctx=n_ctx, fixed_text=fixed, kept_from=chat.kept_from)

    def path_before(self, message_id: int) -> list[StoredMessage]:
        """The shown messages before one of them."""
        return self._path[: place_of(message_id, self._path)]

    def see_from(self, message_id: int | None, summary: str | None = None) -> None:
        """Let the model see the shown chat from a message on, or all of it again.

        Args:
            message_id: The first message that it sees; None is all.
            summary: What stands for those before.

        Raises:
            StoreError: If it could not be saved.
        """
        if self.chat is not None:
            self.store.set_kept_from(self.chat.id, message_id)
            self.store.set_summary(self.chat.id, summary)
            self.refresh()

    def messages_with(self, question: str) -> tuple[Message, ...]:
        """The shown conversation and one question more, which is not saved."""
        asked = Message("user", question)
        if self.head_id is None:
            prompt = self.system_prompt.strip()
            return (Message("system", prompt), asked) if prompt else (asked,)
        messages = self.request_messages(self.head_id)
        if messages and messages[-1].role == "user":
            # Many templates refuse two turns of one speaker.
            asked = Message("user", f"{messages[-1].content}\n\n{question}")
            messages = messages[:-1]
        return (*messages, asked)

    # --- changing it ---

    def say(self, text: str) -> Entry:
        """Add an aside behind the last message."""
        aside = self._aside(text)
        self._asides.append((self.head_id, aside))
        return aside

    def unsay(self, aside: Entry) -> None:
        """Take an aside away, if it is still there."""
        self._asides = [each for each in self._asides if each[1] is not aside]

    def toggle_note(self, message_id: int, text: str) -> None:
        """Add an aside behind a message, or take it away where it stands there already."""
        kept = [each for each in self._asides if (each[0], each[1].content) != (message_id, text)]
        if len(kept) == len(self._asides):
            kept.append((message_id, self._aside(text)))
        self._asides = kept

    def forget_remarks(self, message_id: int) -> None:
        """Take every aside behind a message away."""
        self._asides = [each for each in self._asides if each[0] != message_id]

    def _aside(self, text: str) -> Entry:
        lowest = min((entry.key for _, entry in self._asides), default=0)
        return Entry(lowest - 1, Speaker.NOTE, text)

    def add_turn(
        self,
        question: str | None,
        *,
        parent_id: int | None,
        model_name: str | None,
        vocabulary_id: str | None,
    ) -> StoredMessage:
        """Save a question with the place of its reply, show both and give the reply.

        Args:
            question: What the user asks; None answers a question that is there.
            parent_id: The shown message that the question hangs below; without one, the question.
            model_name: Who answers.
            vocabulary_id: In which vocabulary.

        Raises:
            StoreError: If it could not be saved; nothing was saved then.
        """
        new = NewTurn(
            self.chat,
            question,
            parent_id,
            self._model_path,
            model_name,
            vocabulary_id,
            title=title_of(question or ""),
            system_prompt=self.system_prompt,
            sampling=self.sampling,
        )
        turn = self.store.add_turn(new)
        if self.chat is None:
            self._lock = self.store.lock_chat(turn.chat.id)
        self.chat = turn.chat
        above = self._place_of(parent_id)
        self._path = self._path[: 0 if above is None else above + 1]
        for message in turn.messages:
            self._path.append(message)
            self._siblings |= self.store.variant_ids_beside(message.id)
        return turn.messages[-1]

    def change(self, message: StoredMessage) -> None:
        """Show one of the shown messages as it is now.

        Raises:
            StoreError: If the chat cannot be read.
        """
        place = self._place_of(message.id)
        if self.chat is None or place is None:
            return
        self.chat = self.store.chat(self.chat.id)
        self._path[place] = message
        self._siblings |= self.store.variant_ids_beside(message.id)

    def _place_of(self, message_id: int | None) -> int | None:
        """Where a message stands on the shown path; most are looked for at its end."""
        places = reversed(range(len(self._path)))
        return next((i for i in places if self._path[i].id == message_id), None)

    def switch_variant(self, message_id: int, step: int) -> bool:
        """Show the path through another variant of a message; False if there is none."""
        siblings = self._siblings.get(message_id, [])
        if self.chat is None or self.is_read_only or message_id not in siblings:
            return False
        place = siblings.index(message_id) + step
        if not 0 <= place < len(siblings):
            return False
        self.store.set_head(self.chat.id, self.store.leaf_of(siblings[place]))
        self.refresh()
        return True

    def change_settings(self, *, system_prompt: str, sampling: SamplingSettings) -> None:
        """Use another system prompt and sampling in this chat.

        Raises:
            StoreError: If the change could not be saved.
        """
        if self.chat is not None:
            self.chat = self.store.update_chat(
                self.chat.id, system_prompt=system_prompt, sampling=sampling
            )
        self.system_prompt = system_prompt
        self.sampling = sampling

    def use_preset(self, sampling: SamplingSettings, system_prompt: str) -> None:
        """Begin new chats like this; a chat that is saved keeps its own settings.

        A preset without a system prompt leaves the one that is there.
        """
        self._default_sampling = sampling
        self._default_system_prompt = system_prompt or self._default_system_prompt
        if self.chat is None:
            self.sampling = sampling
            self.system_prompt = self._default_system_prompt

    def uses_model(self, path: str) -> None:
        """Chats are saved with this model from their next question on."""
        self._model_path = path
