"""The chat that is shown: its path through the tree of messages, and its settings."""

from copy import copy
from dataclasses import replace
from typing import Literal

from app.chat.attachments import without_references
from app.chat.context import Trim, trim_of
from app.chat.entries import (
    CUT_BY_CLOSE,
    CUT_BY_CRASH,
    ChatNotes,
    Entry,
    Speaker,
    divider,
    entry_of,
    hint_of,
    index_of,
    is_cut,
    prompt_messages,
    with_question,
)
from app.sanitize import visible
from app.store.chats import ChatStore
from app.store.records import Chat, StoredMessage
from engine.configuration import SamplingSettings
from engine.files import FileLock
from engine.model.ollama import model_title
from engine.requests import Message

MAX_TITLE_CHARS = 60
SHORT_TITLE_CHARS = 20
RestoreRule = Literal["cut", "last", "never"]
"""Which chat a start shows: the last if its reply was cut, the last, or a new one."""


def title_of(text: str) -> str:
    """The first line of a text that is not blank, short enough for a list."""
    lines = without_references(text).splitlines()
    first = next((line.strip() for line in lines if line.strip()), "New chat")
    return _clipped(first, MAX_TITLE_CHARS)


def short_title(title: str) -> str:
    """A title on one line, cut to a few words."""
    return _clipped(visible(title.replace("\n", " ")), SHORT_TITLE_CHARS)


def _clipped(text: str, n: int) -> str:
    return text if len(text) <= n else f"{text[: n - 1]}…"


class ChatHistory:
    """Reads and writes one chat at a time; a new chat is created with its first message.

    Methods raise `StoreError` if the chat is gone or the database fails; nothing is changed then.
    """

    def __init__(self, store: ChatStore, *, sampling: SamplingSettings, system_prompt: str) -> None:
        self.store = store
        self._model_path: str | None = None
        self._default_sampling = sampling
        self._default_system_prompt = system_prompt
        self.begin()

    # --- which chat ---

    def begin(self, like: Chat | None = None) -> None:
        """Show an empty chat with the settings of another, or the defaults."""
        self._is_changed = True
        self.chat: Chat | None = None
        self.sampling = like.sampling if like else self._default_sampling
        self.system_prompt = like.system_prompt if like else self._default_system_prompt
        self.notes = ChatNotes()
        self._path: list[StoredMessage] = []
        self._siblings: dict[int, list[int]] = {}
        self._entries: dict[int, tuple[StoredMessage, list[int], Entry]] = {}
        """Entries by message, each with what it was made of."""

    def open(self, chat_id: int) -> None:
        chat = self.store.chat(chat_id)
        self.begin(like=chat)
        self.chat = chat
        self.refresh()

    def to_reopen(self, rule: RestoreRule) -> Chat | None:
        """The chat used last, if a start is to show it and no other kvchat answers in it."""
        chat = next(iter(self.store.list_chats(limit=1)), None)
        if chat is None or rule == "never" or (rule == "cut" and not self._was_cut(chat)):
            return None
        lock = self.store.lock_chat(chat.id)
        if lock is not None:
            lock.close()
        return chat if lock is not None else None

    def _was_cut(self, chat: Chat) -> bool:
        if chat.head_id is None:
            return False
        last = self.store.message(chat.head_id)
        return last.role == "user" or last.finish_reason in (None, CUT_BY_CLOSE, CUT_BY_CRASH)

    def of_another(self, chat_id: int | None) -> "ChatHistory":
        """A chat to write without showing it; None is a new one."""
        other = copy(self)
        other.begin()
        if chat_id is not None:
            other.open(chat_id)
        return other

    def refresh(self) -> None:
        self._is_changed = True
        if self.chat is None:
            return
        self.chat = self.store.chat(self.chat.id)
        head = self.chat.head_id
        self._path = self.store.path_to(head) if head is not None else []
        self._siblings = self.store.variant_ids(self.chat.id)

    def discard(self, lock: FileLock | None) -> None:
        """Delete the shown chat, which held one question; its settings and notes stay."""
        if self.chat is not None:
            self.store.delete_chat(self.chat.id, lock)
            self.chat = None
            self._path, self._siblings = [], {}

    def catch_up(self) -> None:
        """Read the chat again if another kvchat process changed it."""
        if self.chat is not None and self.store.chat(self.chat.id) != self.chat:
            self.refresh()

    def pop_change(self) -> bool:
        """Whether the entries changed since the last call."""
        is_changed = self._is_changed or self.notes.is_changed
        self._is_changed = self.notes.is_changed = False
        return is_changed

    def is_shown(self, chat_id: int) -> bool:
        return self.chat is not None and self.chat.id == chat_id

    @property
    def chat_id(self) -> int | None:
        """The chat on the screen; None is the new one, which is not stored yet."""
        return self.chat.id if self.chat is not None else None

    @property
    def title(self) -> str:
        return self.chat.title if self.chat else "New chat"

    @property
    def head_id(self) -> int | None:
        return self._path[-1].id if self._path else None

    # --- what is in it ---

    def message(self, message_id: int) -> StoredMessage:
        return self.store.message(message_id)

    def shown(self, message_id: int) -> StoredMessage | None:
        index = self._index_of(message_id)
        return None if index is None else self._path[index]

    def last(self, speaker: Speaker) -> StoredMessage | None:
        role = "user" if speaker is Speaker.USER else "assistant"
        return next((m for m in reversed(self._path) if m.role == role), None)

    def last_varied(self) -> int | None:
        ids = (message.id for message in reversed(self._path))
        return next((each for each in ids if len(self._siblings.get(each, ())) > 1), None)

    def unfinished(self) -> StoredMessage | None:
        """The last message, if it is a reply that was cut or an open question."""
        last = self._path[-1] if self._path else None
        if last is None:
            return None
        return last if last.role == "user" or is_cut(last) else None

    def question_for(self, message_id: int | None) -> int | None:
        """The question of a shown message, by default the last; itself if it is a question."""
        message = self.shown(message_id if message_id is not None else self.head_id or 0)
        if message is None:
            return None
        return message.id if message.role == "user" else message.parent_id

    def entries(self, *, live_id: int | None = None, live_text: str = "") -> list[Entry]:
        """Messages and notes in their order; `live_text` is the text of `live_id` so far."""
        notes = self.notes.by_message()
        entries = [*notes.get(None, ())]
        last, n_hidden = self.unfinished(), self.n_hidden
        for index, message in enumerate(self._path):
            if index and index == n_hidden:
                entries.append(divider(self.chat.summary if self.chat else None))
            entry = self._entry(message)
            if message.id == live_id:
                entry = replace(entry, content=live_text, ending="", thinking="", is_live=True)
            else:
                author, hint = (
                    self._other_model(message),
                    hint_of(message) if message is last else "",
                )
                if author or hint:
                    ending = " · ".join(filter(None, (author, entry.ending, hint)))
                    entry = replace(entry, ending=ending)
            entries += (entry, *notes.get(message.id, ()))
        return entries

    def _other_model(self, message: StoredMessage) -> str:
        """`by` and the model that wrote a reply, if another one is loaded."""
        name, path = message.model_name, self._model_path
        is_other = name and path and message.role == "assistant" and name != model_title(path)
        return f"by {name}" if is_other else ""

    def _entry(self, message: StoredMessage) -> Entry:
        """A message as an entry; made once, as a long chat is shown often."""
        siblings = self._siblings.get(message.id, [message.id])
        known = self._entries.get(message.id)
        if known is not None and known[0] is message and known[1] is siblings:
            return known[2]
        entry = entry_of(message, siblings)
        self._entries[message.id] = (message, siblings, entry)
        return entry

    # --- what the model sees ---

    @property
    def n_hidden(self) -> int:
        """Messages at the start of the shown path that the model does not see."""
        return index_of(self.chat.context_start if self.chat else None, self._path)

    @property
    def is_trimmed(self) -> bool:
        """Whether messages were dropped without a summary."""
        return bool(self.n_hidden) and self.chat is not None and not self.chat.summary

    def visible(self) -> list[StoredMessage]:
        return self._path[self.n_hidden :]

    def path_before(self, message_id: int) -> list[StoredMessage]:
        return self._path[: index_of(message_id, self._path)]

    def trim(self, n_ctx: int) -> Trim | None:
        """The turns that do not fit into `n_ctx` cells; None if there are no earlier turns."""
        chat = self.chat
        if chat is None:
            return None
        summary = chat.summary if self.n_hidden else None
        fixed = f"{self.system_prompt}{summary or ''}"
        return trim_of(self._path, n_ctx=n_ctx, fixed_text=fixed, context_start=chat.context_start)

    def see_from(self, message_id: int | None) -> None:
        """Show the model the chat from a message on, without a summary; None shows it all."""
        if self.chat is not None:
            self.store.update_chat(self.chat.id, context_start=message_id, summary=None)
            self.refresh()

    def request_messages(self, message_id: int | None) -> tuple[Message, ...]:
        """The prompt up to a shown message; None is the start of the chat."""
        index = self._index_of(message_id)
        return prompt_messages(
            self.system_prompt,
            self._path[: 0 if index is None else index + 1],
            context_start=self.chat.context_start if self.chat else None,
            summary=self.chat.summary if self.chat else None,
        )

    def messages_with(self, question: str) -> tuple[Message, ...]:
        """The prompt of the shown chat and a question that is not saved."""
        return with_question(self.request_messages(self.head_id), question)

    # --- changing it ---

    def add_turn(
        self,
        question: str | None,
        *,
        parent_id: int | None,
        model_name: str | None,
        vocabulary_id: str | None,
    ) -> StoredMessage:
        """Save and show a question and an empty reply of a model, which is returned.

        Without a question the reply answers the message `parent_id`.
        """
        chat = self.chat or Chat(
            title=title_of(question or ""),
            system_prompt=self.system_prompt,
            sampling=self.sampling,
        )
        reply = StoredMessage(
            0, chat.id, parent_id, "assistant", "",
            model_name=model_name, vocabulary_id=vocabulary_id,
        )  # fmt: skip
        asked = () if question is None else (replace(reply, role="user", content=question),)
        self.chat, added = self.store.add_messages(
            replace(chat, model_path=self._model_path), (*asked, reply)
        )
        above = self._index_of(parent_id)
        self._is_changed = True
        self._path = [*self._path[: 0 if above is None else above + 1], *added]
        for each in added:
            self._siblings |= self.store.variant_ids(self.chat.id, each)
        return added[-1]

    def replace_message(self, message: StoredMessage) -> None:
        self._is_changed = True
        index = self._index_of(message.id)
        if self.chat is None or index is None:
            return
        self.chat = self.store.chat(self.chat.id)
        self._path[index] = message
        self._siblings |= self.store.variant_ids(self.chat.id, message)

    def _index_of(self, message_id: int | None) -> int | None:
        indices = reversed(range(len(self._path)))
        return next((i for i in indices if self._path[i].id == message_id), None)

    def switch_variant(self, message_id: int, step: int) -> bool:
        """Show another variant of a message; False if there is none."""
        siblings = self._siblings.get(message_id, [])
        if self.chat is None or message_id not in siblings:
            return False
        index = siblings.index(message_id) + step
        if not 0 <= index < len(siblings):
            return False
        self.store.update_chat(self.chat.id, head_id=self.store.leaf_of(siblings[index]))
        self.refresh()
        return True

    def change_settings(self, *, system_prompt: str, sampling: SamplingSettings) -> None:
        if self.chat is not None:
            self.chat = self.store.update_chat(
                self.chat.id, system_prompt=system_prompt, sampling=sampling
            )
        self.system_prompt = system_prompt
        self.sampling = sampling

    def use_defaults(self, sampling: SamplingSettings, system_prompt: str) -> None:
        """Set the settings of new chats; a saved chat has its own."""
        self._default_sampling = sampling
        self._default_system_prompt = system_prompt
        if self.chat is None:
            self.sampling = sampling
            self.system_prompt = system_prompt

    def use_model(self, path: str) -> None:
        """Set the model of the next questions; replies of others then name theirs."""
        self._model_path = path
        self._is_changed = True
