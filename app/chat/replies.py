"""The replies under way: asked for, saved as they come, and shown where their chat is shown."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from app.cache import owner_of
from app.chat.entries import FAILED, Entry, Speaker, is_out_of_room
from app.chat.history import ChatHistory
from app.chat.meters import Meters
from app.chat.reply import RunningReply
from app.chat.spans import SpanCache, TokenSpan
from app.chat.trimming import is_surely_longer
from app.chat.update import Notice, UpdateBuilder
from app.config import ChatDefaults
from app.store.errors import ChatInUseError, StoreError
from app.store.records import StoredMessage
from engine.configuration import SpeculationSettings
from engine.errors import ContextFullError
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    PromptReady,
    RoundFinished,
    TokensCommitted,
)
from engine.model.ollama import model_title
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

ReplyOrNone = TypeVar("ReplyOrNone", RunningReply, RunningReply | None)
LEASED = 0
"""Instead of the number of a chat, which is never 0: the context holds something else."""


class Replies:
    """Asks for replies and writes them into the store, at most one in each chat.

    The engine knows each by the number of its message.

    Args:
        client: The engine.
        history: The chat on the screen.
        meters: Counts what they do.
        updates: Collects what the screen has to show.
        clock: Time in seconds.

    Attributes:
        loaded: The model that is asked; None without one.
        speculation: How it drafts, as far as that was set since it was loaded.
        limits: Where every reply ends, and its seed.
    """

    def __init__(
        self,
        client: EngineClient,
        history: ChatHistory,
        meters: Meters,
        updates: UpdateBuilder,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.loaded: Loaded | None = None
        self.speculation = SpeculationSettings()
        self.running: dict[int, RunningReply] = {}
        """By message, in the order in which they were asked for."""
        self.refused: RunningReply | None = None
        """The reply for which the context was full before its first token."""
        self.spans = SpanCache()
        self.prompts: dict[int, PromptReady] = {}
        """The last prompt of each chat since the model was loaded."""
        self.chat_in_context: int | None = None
        """The chat that the context holds, as far as that was told last; None while it is empty."""
        self._client = client
        self._history = history
        self._meters = meters
        self._store = history.store
        self._updates = updates
        self.limits = ChatDefaults()
        self._clock = clock

    @property
    def shown(self) -> RunningReply | None:
        """The reply in the chat on the screen."""
        return self.of_chat(self._history.chat.id) if self._history.chat else None

    @property
    def elsewhere(self) -> tuple[RunningReply, ...]:
        """Those in other chats, oldest first."""
        return tuple(r for r in self.running.values() if not self._history.is_shown(r.chat_id))

    def of_chat(self, chat_id: int | None) -> RunningReply | None:
        """The reply that is being written in a chat."""
        return next((r for r in self.running.values() if r.chat_id == chat_id), None)

    def entries(self) -> list[Entry]:
        """What the transcript shows, oldest first."""
        reply = self.shown
        if reply is None:
            entries = self._history.entries()
        else:
            self.spans.keep(reply.message_id, reply.spans, reply.text)
            entries = self._history.entries(live_id=reply.message_id, live_text=reply.text)
        return [
            replace(entry, spans=spans) if (spans := self.spans.get(entry.key)) else entry
            for entry in entries
        ]

    # --- asking for them ---

    def _ask(
        self,
        history: ChatHistory,
        question: str | None,
        *,
        parent_id: int | None,
        start: StoredMessage | None = None,
    ) -> RunningReply:
        """Save a question, if there is one, and ask for the reply to it.

        Args:
            history: The chat.
            question: What is asked; None answers a question that is there.
            parent_id: The message above the question; without a new one, the question.
            start: What the reply begins with; its token ids may be those of a similar text.

        Raises:
            StoreError: If it could not be saved; nothing was asked then.
        """
        head, loaded = history.head_id, self.loaded
        message = history.add_turn(
            question,
            parent_id=parent_id,
            model_name=model_title(loaded.configuration.address) if loaded else None,
            vocabulary_id=loaded.vocabulary_id if loaded else None,
        )
        reply = RunningReply(
            message,
            prompt=question or "",
            parent_head=head,
            resumed=start,
            resumed_spans=(TokenSpan(start.content),) if start else (),
            chat_title=history.title,
        )
        if start is not None:
            reply.forget_ids()
            self._store.write_partial(message.id, start.content, ())
        self._begin(history, reply)
        return reply

    def history_of(self, chat_id: int | None) -> ChatHistory:
        """A chat that is not shown, to ask in; None begins one.

        Raises:
            StoreError: If the chat is gone.
            ContextFullError: If the context had no space for its last reply.
        """
        other = self._history.of_another(chat_id)
        last = other.unfinished()
        if last is not None and is_out_of_room(last):
            raise ContextFullError(
                f"the context of “{other.title}” is full: open that chat ({{chat-list}})"
            )
        return other

    def _under_lock(self, history: ChatHistory, begin: Callable[[], ReplyOrNone]) -> ReplyOrNone:
        """Ask in a chat, which no other kvchat answers until the reply has ended.

        Raises:
            ChatInUseError: Another kvchat answers in it.
            StoreError: If it could not be saved.
        """
        lock = None if history.chat is None else self._store.lock_chat(history.chat.id)
        if history.chat is not None and lock is None:
            raise ChatInUseError(
                f"another kvchat is answering in “{history.title}”: wait for the end of its reply"
            )
        reply: RunningReply | None = None
        try:
            self._updates.is_rebuilt |= history.catch_up()
            reply = begin()
        finally:
            if reply is not None:
                reply.lock = lock or self._store.lock_chat(reply.chat_id)
            elif lock is not None:
                lock.close()
        return reply

    def send(self, history: ChatHistory, text: str, edited: int | None = None) -> RunningReply:
        """Ask at the end of a chat, or in the place of an earlier message.

        Raises:
            StoreError: If it could not be saved; nothing was asked then.
        """
        if edited is not None:
            return self.edit(history, edited, text)
        return self._under_lock(
            history, lambda: self._ask(history, text, parent_id=history.head_id)
        )

    def edit(self, history: ChatHistory, message_id: int, text: str) -> RunningReply:
        """Ask a question in another way, or go on behind a reply that reads otherwise now.

        Raises:
            StoreError: If it could not be saved; nothing was asked then.
        """
        message = history.message(message_id)
        is_question = message.role == "user"
        question = text if is_question else None
        changed = replace(message, content=text, stats=None, finish_reason=None)
        start = None if is_question else changed
        parent_id = message.parent_id
        return self._under_lock(
            history, lambda: self._ask(history, question, parent_id=parent_id, start=start)
        )

    def regenerate(
        self, history: ChatHistory, message_id: int | None = None
    ) -> RunningReply | None:
        """Answer once more, beside the reply that is there; None if nothing was asked.

        Args:
            history: The chat.
            message_id: A reply, or a question to answer; the last of the chat if None.

        Raises:
            StoreError: If the new reply could not be saved; nothing was asked then.
        """
        return self._under_lock(history, lambda: self._answer_again(history, message_id))

    def _answer_again(self, history: ChatHistory, message_id: int | None) -> RunningReply | None:
        question = history.question_for(message_id)
        return None if question is None else self._ask(history, None, parent_id=question)

    def continue_last(self, history: ChatHistory) -> RunningReply | None:
        """Continue the reply that a chat ends with, or answer its open question.

        Returns:
            None where the chat ends with neither.

        Raises:
            StoreError: If the reply could not be opened again; nothing was asked then.
        """
        return self._under_lock(history, lambda: self._continue_last(history))

    def _continue_last(self, history: ChatHistory) -> RunningReply | None:
        last = history.unfinished()
        if last is None or self.loaded is None:
            return None
        if last.role == "user" or last.parent_id is None:
            return self._answer_again(history, last.id)
        return self._go_on(history, last)

    def _go_on(self, history: ChatHistory, last: StoredMessage) -> RunningReply:
        """Go on with a reply that was cut, in the same message."""
        self._store.reopen_message(last.id)
        opened = replace(
            last,
            finish_reason=None,
            vocabulary_id=self.loaded.vocabulary_id if self.loaded else None,
        )
        history.replace_message(opened)
        reply = RunningReply(
            opened,
            parent_head=history.head_id,
            resumed=last,
            resumed_spans=self.spans.spelling(last.id, last.content) if last.content else (),
            chat_title=history.title,
        )
        self._begin(history, reply)
        return reply

    def _begin(self, history: ChatHistory, reply: RunningReply) -> None:
        self.refused = None
        self.running[reply.message_id] = reply
        self._meters.start_reply(reply.message_id, reply.stats_before)
        self._updates.is_rebuilt = True
        request = GenerationRequest(
            messages=history.request_messages(reply.message.parent_id),
            sampling=history.sampling,
            max_tokens=self.limits.max_tokens,
            stop=self.limits.stop,
            seed=self.limits.seed,
            owner=owner_of(reply.chat_id),
            continues=reply.known_ids,
            continues_text=reply.resumed_text,
            is_trimmed=history.is_trimmed,
        )
        self._client.generate(request, reply.message_id)

    # --- what the engine tells ---

    def take(self, message_id: int, event: Event) -> None:
        """Handle what the engine tells of one of them.

        Args:
            message_id: The number that it was asked for with.
            event: What is told; of a reply that is not under way any more it changes nothing.
        """
        reply = self.running.get(message_id)
        try:
            self._meters.feed(event, message_id)
            if reply is not None:
                self._take(reply, event)
        except BaseException:
            if reply is not None and isinstance(event, Finished | Failed):
                self._abandon(reply)
            raise

    def _take(self, reply: RunningReply, event: Event) -> None:
        match event:
            case TokensCommitted():
                added = reply.add(event)
                if reply is self.shown:
                    self._updates.text.append(event.text)
                    self._updates.spans += added
            case PromptReady():
                self.prompts[reply.chat_id] = event
                reply.count(event)
            case RoundFinished():
                reply.count(event)
            case CacheChanged():
                self.chat_in_context = reply.chat_id
            case Finished():
                self._end(reply, event.reason, event)
            case Failed():
                self._fail(reply, event)
            case _:
                pass

    def _abandon(self, reply: RunningReply) -> None:
        """End a reply whose end could not be handled; it can be continued from the text so far."""
        self.running.pop(reply.message_id, None)
        self._store.write_partial(reply.message_id, reply.text, reply.token_ids)
        self._release(reply, replace(reply.message, content=reply.text))

    def save_if_due(self) -> None:
        """Save the texts so far, every now and then."""
        for reply in self.running.values():
            if reply.is_due(self._clock()):
                self._store.write_partial(reply.message_id, reply.text, reply.token_ids)

    def cut(self, reason: str) -> None:
        """End every reply with the text so far; the engine holds none of them then."""
        self.chat_in_context = None
        self.prompts.clear()
        for reply in tuple(self.running.values()):
            self._end(reply, reason, None)

    def _end(self, reply: RunningReply, reason: str, event: Finished | None) -> None:
        is_shown = reply is self.shown
        del self.running[reply.message_id]
        ended = reply.ended(reason, event)
        self.spans.keep(reply.message_id, reply.spans, ended.content)
        try:
            ended = self._store.finish_message(ended) or ended
        except StoreError as error:
            self._updates.add_fault(error)
        if event is not None:
            self._tell_end(reply, event, is_shown=is_shown)
        self._release(reply, ended)

    def _tell_end(self, reply: RunningReply, event: Finished, *, is_shown: bool) -> None:
        is_full = event.reason is FinishReason.CONTEXT
        if not is_shown:
            what = "has a full context" if is_full else "is answered"
            text = f"“{reply.chat_title}” {what}: {{chat-list}} opens that chat."
            self._updates.notices.append(Notice(text))
        elif is_full:
            self._updates.context_full = f"all {event.n_cells:,} cells of the context are used"

    # --- what the engine refuses ---

    def _fail(self, reply: RunningReply, event: Failed) -> None:
        is_full = event.title == ContextFullError.title
        if reply is not self.shown:
            title = f"{event.title}: {reply.chat_title}"
            self._updates.notices.append(Notice(event.message, title, "error"))
            self._end(reply, FinishReason.CONTEXT if is_full else FAILED, None)
        elif is_full and not reply.has_begun and self._can_trim():
            self.refused = reply if reply.resumed is None else None
            self._updates.context_full = event.message
            self._end(reply, FinishReason.CONTEXT, None)
        else:
            can_grow = can_have_a_larger_context(self.loaded)
            hint = ". {model-plan} plans a larger context" if is_full and can_grow else ""
            self._tell_failure(reply, replace(event, message=event.message + hint))

    def _tell_failure(self, reply: RunningReply, event: Failed) -> None:
        notice = Notice(event.message, event.title, "error", is_in_transcript=True)
        self._updates.notices.append(notice)
        if reply.has_begun:
            self._end(reply, FAILED, None)
        elif reply.resumed is not None:
            self._end(reply, reply.resumed.finish_reason or FAILED, None)
        else:
            self._take_back(reply)
        self._history.notes.add(self._history.head_id, f"{event.title}: {event.message}")
        self._updates.is_rebuilt = True

    def _can_trim(self) -> bool:
        """Whether the shown chat has more than its last question, and that has room alone."""
        has_turns = len(self._history.visible()) > len(("question", "reply"))
        question = self._history.last(Speaker.USER)
        loaded = self.loaded
        n_ctx = loaded.n_ctx if loaded else None
        is_hopeless = question and n_ctx and is_surely_longer(question.content, n_ctx)
        return has_turns and not is_hopeless

    def take_back_refused(self, *, returns_text: bool = True) -> None:
        """Undo the question for which the context was full.

        Args:
            returns_text: Whether its text returns to the composer.
        """
        reply, self.refused = self.refused, None
        if reply is not None and self._history.head_id == reply.message_id:
            self._take_back(reply, returns_text=returns_text)

    def _take_back(self, reply: RunningReply, *, returns_text: bool = True) -> None:
        """Undo a question that the engine refused."""
        self.running.pop(reply.message_id, None)
        try:
            if reply.parent_head is None and self._history.is_shown(reply.chat_id):
                self._history.discard(reply.lock)
            else:
                self._store.set_head(reply.chat_id, reply.parent_head)
        except StoreError as error:
            self._updates.add_fault(error)
        if reply.prompt and returns_text:
            self._updates.draft = reply.prompt
        self._updates.is_rebuilt = True
        self._release(reply)

    def _release(self, reply: RunningReply, ended: StoredMessage | None = None) -> None:
        if reply.lock is not None:
            reply.lock.close()
        if not self._history.is_shown(reply.chat_id):
            return
        self._updates.is_rebuilt = True
        try:
            if ended is None:
                self._history.refresh()
            else:
                self._history.replace_message(ended)
        except StoreError as error:
            self._updates.add_fault(error)


def can_have_a_larger_context(loaded: Loaded | None) -> bool:
    """Whether a model was trained on more tokens than its context has."""
    if loaded is None or loaded.n_ctx is None or loaded.n_ctx_train is None:
        return False
    return loaded.configuration.server is None and loaded.n_ctx < loaded.n_ctx_train
