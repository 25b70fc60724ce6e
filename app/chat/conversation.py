"""The conversation between user, engine and store: what is asked, in which chat, with what outcome.

No Textual here: the screen calls `poll` once a frame and shows what the `ChatUpdate` says.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Literal, Protocol

from app.cache import owner_of
from app.chat.entries import (
    CUT_BY_CLOSE,
    CUT_BY_CRASH,
    FAILED,
    Entry,
    Speaker,
    is_out_of_room,
    prompt_messages,
    tokens_to_continue,
)
from app.chat.history import ChatHistory
from app.chat.meters import Meters
from app.chat.reply import ChatUpdate, Notice, RunningReply, Severity, UpdateBuilder
from app.chat.reply_writer import ReplyWriter
from app.chat.snapshot import CockpitSnapshot, Phase
from app.chat.token_counts import TokenCounts
from app.chat.trimming import Summariser, is_surely_longer, n_tokens_of
from app.config import ChatDefaults
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat
from engine.configuration import (
    Configuration,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import ContextFullError
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    SpeculationChanged,
    TokensCommitted,
    TokensCounted,
    WorkerStopped,
)
from engine.model.ollama import model_name
from engine.process.protocol import CacheAction, EngineClient
from engine.requests import GenerationRequest

RestoreRule = Literal["cut", "last", "never"]
N_PAST_TOKENS = 32_768
"""Tokens of past replies that a request carries as material for drafts."""
LOCK_RETRY_S = 2.0
"""How often the lock of a chat that another kvchat writes is tried again, in seconds."""
LEASED = 0
"""Instead of the number of a chat, which is never 0."""
WITHOUT_ENGINE = "ctrl+r tries once more, ctrl+o opens another model."


class EngineLease(Protocol):
    """Uses the engine for replies of its own while the conversation waits."""

    @property
    def is_running(self) -> bool:
        """A reply of its own is under way."""
        ...

    def revoke(self, why: str) -> None:
        """End it: no event of its replies comes any more."""
        ...

    def take(self, event: Event) -> bool:
        """Handle an event; False for one that the conversation should have."""
        ...


class Conversation:
    """One user's chats with one engine.

    Attributes:
        history: The chat that is shown.
        meters: Counters for the panels.
        replies: The reply that is being written.
        counts: Tokens of what is written in the composer.
        configuration: What was asked to be loaded last.
        loaded: What is loaded.
        lease: Takes the events of replies that are its own.
    """

    def __init__(
        self,
        client: EngineClient,
        store: ChatStore,
        *,
        sampling: SamplingSettings,
        system_prompt: str = "",
        max_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.history = ChatHistory(store, sampling=sampling, system_prompt=system_prompt)
        self.meters = Meters(clock)
        self.counts = TokenCounts(client.count_tokens)
        self._updates = UpdateBuilder()
        self.replies = ReplyWriter(self.history, self._updates, clock)
        self.configuration: Configuration | None = None
        self.loaded: Loaded | None = None
        self.lease: EngineLease | None = None
        self._store = store
        self._clock = clock
        self.limits = ChatDefaults(max_tokens=max_tokens)
        """Where every reply ends, and its seed; sampling is each chat's own."""
        self._speculation: SpeculationSettings | None = None
        self._chat_in_context: int | None = None
        """The chat that the context holds; None while it is empty, `LEASED` for a lease's text."""
        self._store_errors: SimpleQueue[StoreError] = SimpleQueue()
        store.on_error = self._store_errors.put
        self._retry_lock_at = 0.0
        self._engine_note: Entry | None = None
        """What the transcript says of an engine that stopped or could not load."""

    # --- what the screen reads ---

    @property
    def is_replying(self) -> bool:
        """A reply is under way, in whatever chat."""
        return self.replies.running is not None

    @property
    def replying_chat_id(self) -> int | None:
        """The chat that a reply is being written in."""
        reply = self.replies.running
        return reply.chat_id if reply else None

    @property
    def background_title(self) -> str | None:
        """The title of the chat that is being answered while another one is shown."""
        reply = self.replies.running
        return None if reply is None or self.replies.is_shown else reply.chat_title

    @property
    def can_ask(self) -> bool:
        """A message can be sent now."""
        return self.is_free and not self.history.is_read_only

    @property
    def is_free(self) -> bool:
        """The engine has nothing to do."""
        return self.meters.phase is Phase.READY and not self.is_leased

    @property
    def is_leased(self) -> bool:
        """The engine makes a reply that is not the chat's."""
        return self.lease is not None and self.lease.is_running

    @property
    def speculation(self) -> SpeculationSettings:
        """The settings of speculation that were asked for last."""
        if self._speculation is not None:
            return self._speculation
        return self.configuration.speculation if self.configuration else SpeculationSettings()

    @property
    def can_have_a_larger_context(self) -> bool:
        """Whether the model was trained on more tokens than its context has."""
        loaded = self.loaded
        return loaded is not None and loaded.n_ctx < loaded.n_ctx_train

    def entries(self) -> list[Entry]:
        """What the transcript shows, oldest first."""
        return self.replies.entries(self.loaded.vocabulary_id if self.loaded else None)

    def snapshot(self) -> CockpitSnapshot:
        """What the panels show."""
        return replace(
            self.meters.snapshot(),
            background_title=self.background_title,
            is_of_chat=self._is_of_chat,
            n_of_chat=None if self._is_of_chat else self._n_of_chat(),
        )

    @property
    def _is_of_chat(self) -> bool:
        """The context holds the shown chat, or the one that is answered meanwhile."""
        shown = self.history.chat
        is_shown = self._chat_in_context == (shown.id if shown else None)
        return is_shown or self.background_title is not None

    def _n_of_chat(self) -> int:
        """About how many tokens the shown chat has, as far as the model sees it."""
        return sum(map(n_tokens_of, self.history.visible()))

    @property
    def n_free(self) -> int | None:
        """Cells that the shown chat leaves free; None before a model is loaded."""
        if self.loaded is None:
            return None
        is_held = self._is_of_chat and self.background_title is None
        n_used = self.meters.n_used if is_held else self._n_of_chat()
        return self.loaded.n_ctx - n_used

    # --- the engine ---

    def load(self, configuration: Configuration) -> None:
        """Start the engine on a configuration; what it was doing ends."""
        self.replies.cut(FinishReason.CANCELLED)
        if self.lease is not None:
            self.lease.revoke("a model was loaded meanwhile")
            self.lease = None
        self._remove_engine_note()
        self.configuration = configuration
        self.loaded = self._chat_in_context = None
        self._speculation = configuration.speculation
        self.history.use_model(str(configuration.model_path))
        self.meters.start_load(configuration)
        self.client.load(configuration)

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor or controller, in the middle of a reply too."""
        self._speculation = settings
        self.meters.set_speculation(settings)
        self.client.set_speculation(settings)

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        """Pin, unpin, drop or verify a snapshot, or clear all; the cache's log has the outcome."""
        self.client.manage_cache(action, key)

    def stop(self) -> bool:
        """End the running reply, whose text so far stays, or a load. False if neither runs."""
        reply = self.replies.running
        if self.meters.phase is Phase.LOADING:
            self.client.stop()
        elif isinstance(self.lease, Summariser) and self.lease.is_running:
            self.lease.stop()
        elif reply is None or reply.is_stopping:
            return False
        else:
            reply.is_stopping = True
            self.client.stop()
        return True

    def begin_close(self) -> None:
        """Save what came and begin to end the engine; `client.has_ended` says when it is over."""
        self.replies.cut(CUT_BY_CLOSE)
        self.client.begin_close()

    def close(self) -> None:
        """End the engine, save what came, release the chat."""
        self.begin_close()
        self.client.close()
        self.history.close()

    # --- asking ---

    def send(self, text: str) -> None:
        """Ask the model.

        Raises:
            StoreError: If the text could not be saved; nothing was sent then.
        """
        self._ask(self.history, text, parent_id=self.history.head_id)

    def edit(self, message_id: int, text: str) -> None:
        """Ask in another way, beside an earlier question.

        Raises:
            StoreError: If the text could not be saved; nothing was sent then.
        """
        self._ask(self.history, text, parent_id=self.history.message(message_id).parent_id)

    def ask_in(self, chat_id: int | None, text: str, edited: int | None = None) -> int:
        """Ask in a chat that is not shown.

        Args:
            chat_id: The chat; None begins one.
            text: The question.
            edited: The earlier question that it replaces.

        Returns:
            The number of the chat.

        Raises:
            StoreError: If the chat is gone or written by another kvchat, or saving failed.
            ContextFullError: If the reply before had no room.
        """
        other = self.history.of_another(chat_id)
        try:
            last = other.unfinished()
            if other.is_read_only:
                raise StoreError(f"another kvchat writes “{other.title}”: close it there first")
            if last is not None and is_out_of_room(last):
                raise ContextFullError(f"“{other.title}” has no room to continue: open it (ctrl+l)")
            parent_id = other.head_id if edited is None else other.message(edited).parent_id
            reply = self._ask(other, text, parent_id=parent_id)
            reply.lock = other.take_lock()
            return reply.chat_id
        finally:
            other.close()

    def regenerate(self, message_id: int | None = None) -> bool:
        """Answer once more, beside the reply that is there; False if nothing was asked.

        Args:
            message_id: A reply, or a question to answer; the last of the chat if None.

        Raises:
            StoreError: If the new reply could not be saved; nothing was asked then.
        """
        question = self.history.question_for(message_id)
        if question is None:
            return False
        self._ask(self.history, None, parent_id=question)
        return True

    def continue_reply(self) -> bool:
        """Continue the reply that the chat ends with, or answer its open question.

        Returns:
            False where the chat ends with neither.

        Raises:
            CannotContinueError: If the reply is in another vocabulary than the loaded model's.
            StoreError: If the reply could not be opened again; nothing was asked then.
        """
        last = self.history.unfinished()
        if last is None or self.loaded is None:
            return False
        question_id = last.parent_id
        if last.role == "user" or question_id is None:
            return self.regenerate(last.id)
        # A reply without text has none that could be shown as its beginning: it is made anew.
        vocabulary_id = self.loaded.vocabulary_id
        resumed = replace(last, token_ids=tokens_to_continue(last, vocabulary_id))
        self._store.reopen_message(last.id)
        last = replace(last, finish_reason=None)
        self.history.replace_message(last)
        reply = RunningReply(
            last,
            "",
            self.history.head_id,
            vocabulary_id=vocabulary_id,
            resumed=resumed,
            resumed_spans=self.replies.spans.spelling(last.id, last.content)
            if last.content
            else (),
            chat_title=self.history.title,
        )
        self._begin(self.history, reply, question_id)
        return True

    def _ask(
        self, history: ChatHistory, question: str | None, *, parent_id: int | None
    ) -> RunningReply:
        head = history.head_id
        vocabulary_id = self.loaded.vocabulary_id if self.loaded else None
        message = history.add_turn(
            question,
            parent_id=parent_id,
            model_name=model_name(self.configuration.model_path) if self.configuration else None,
            vocabulary_id=vocabulary_id,
        )
        assert message.parent_id is not None
        reply = RunningReply(
            message,
            question or "",
            head,
            vocabulary_id=vocabulary_id,
            chat_title=history.title,
        )
        self._begin(history, reply, message.parent_id)
        return reply

    def _begin(self, history: ChatHistory, reply: RunningReply, question_id: int) -> None:
        messages = history.request_messages(question_id)
        self.replies.begin(reply)
        self.meters.start_reply()
        self.client.generate(
            GenerationRequest(
                messages=messages,
                sampling=history.sampling,
                max_tokens=self.limits.max_tokens,
                stop=self.limits.stop,
                seed=self.limits.seed,
                past_replies=self._past_replies(),
                owner=owner_of(reply.chat_id),
                continues=reply.token_ids,
                may_shift=history.is_shifted,
            )
        )

    def _past_replies(self) -> tuple[tuple[int, ...], ...]:
        """Replies of all chats, for a predictor that learns from them."""
        if self.loaded is None or self.speculation.predictor is not PredictorName.COMBINED:
            return ()
        try:
            return self._store.newest_replies(self.loaded.vocabulary_id, n_tokens=N_PAST_TOKENS)
        except StoreError as error:
            self.notify(Notice(str(error), error.title, "warning"))
            return ()

    # --- chats ---

    def open_chat(self, chat_id: int) -> None:
        """Show another chat; a running reply continues in its own.

        Raises:
            StoreError: If the chat is gone.
        """
        self._store.chat(chat_id)  # before the shown one is left
        self._leave()
        reply = self.replies.running
        lock = reply.take_lock() if reply is not None and reply.chat_id == chat_id else None
        self.history.open(chat_id, lock)
        self._prefetch_shown()

    def new_chat(self, like: Chat | None = None) -> None:
        """Show an empty chat; it is saved with its first message.

        Args:
            like: The chat whose system prompt and sampling it has; None takes the defaults.
        """
        self._leave()
        self.history.begin(like)

    def restore_last_chat(self, rule: RestoreRule) -> None:
        """Show the chat used last where the rule wants it and no other kvchat writes it.

        Args:
            rule: `cut` is only where kvchat ended before the reply did, `last` always.

        Raises:
            StoreError: If the chats cannot be read.
        """
        chat = next(iter(self._store.list_chats(limit=1)), None)
        if chat is None or rule == "never" or (rule == "cut" and not self._was_cut(chat)):
            return
        try:
            self.open_chat(chat.id)
        except StoreError:
            # Another kvchat deleted it just now: the empty chat stays.
            return
        if self.history.is_read_only:
            self.new_chat()

    def _was_cut(self, chat: Chat) -> bool:
        """Whether kvchat or its engine ended before the chat's last question was answered."""
        if chat.head_id is None:
            return False
        last = self._store.message(chat.head_id)
        return last.role == "user" or last.finish_reason in (None, CUT_BY_CLOSE, CUT_BY_CRASH)

    def show_message(self, message_id: int) -> bool:
        """Show the branch of the shown chat that a message is on; False where it must stay hidden.

        Another kvchat, or a reply that is being written, holds a chat at its branch.

        Raises:
            StoreError: If the message is gone.
        """
        if self.history.shown(message_id) is None:
            if self.replies.is_shown or self.history.is_read_only:
                return False
            self._store.show_message(message_id)
            self.refresh()
        return self.history.shown(message_id) is not None

    def switch_variant(self, message_id: int, step: int) -> bool:
        """Show the next or the previous variant of a message; False at the last one."""
        moved = not self.replies.is_shown and self.history.switch_variant(message_id, step)
        self._updates.is_rebuilt |= moved
        return moved

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat, and what the loaded model's cache keeps for it alone.

        Raises:
            StoreError: If another kvchat writes it, or it could not be deleted.
        """
        self.history.delete(chat_id)
        self.client.forget_owner(owner_of(chat_id))

    def refresh(self) -> None:
        """Read the shown chat again.

        Raises:
            StoreError: If the chat is gone.
        """
        self.history.refresh()
        self._updates.is_rebuilt = True

    def prefetch(self, chat_id: int) -> None:
        """Bring the snapshots of a chat from disk into memory, so that its next reply starts soon.

        Raises:
            StoreError: If the chat cannot be read.
        """
        chat = self._store.chat(chat_id)
        if self.loaded is not None and chat.head_id is not None:
            self.client.prefetch(
                prompt_messages(
                    chat.system_prompt,
                    self._store.path_to(chat.head_id),
                    kept_from=chat.kept_from,
                    summary=chat.summary,
                )
            )

    def _prefetch_shown(self) -> None:
        """The same for the shown chat, which is read already."""
        head = self.history.head_id
        if self.loaded is not None and head is not None:
            self.client.prefetch(self.history.request_messages(head))

    def _leave(self) -> None:
        self.replies.refused = None
        lock = self.history.take_lock()
        if self.replies.running is not None and self.replies.is_shown:
            self.replies.running.lock = lock
        elif lock is not None:
            lock.close()
        self._updates.is_rebuilt = True

    # --- notes and notices ---

    def notify(self, notice: Notice) -> None:
        """Show a notice with the next poll."""
        self._updates.notices.append(notice)

    def toggle_note(self, message_id: int, text: str) -> None:
        """Add a note after a message, or remove it where it is there already."""
        self.history.notes.toggle(message_id, text)
        self._updates.is_rebuilt = True

    def _add_note(self, text: str) -> Entry:
        self._updates.is_rebuilt = True
        return self.history.notes.add(self.history.head_id, text)

    def _remove_engine_note(self) -> None:
        """Remove what was said of an engine that did not run: another one is asked for."""
        if self._engine_note is not None:
            self.history.notes.remove(self._engine_note)
            self._engine_note = None
            self._updates.is_rebuilt = True

    # --- events ---

    def poll(self) -> ChatUpdate:
        """Handle what the engine said since the last call, and return what changed."""
        for event in self.client.poll():
            if self.lease is not None and self.lease.take(event):
                continue
            self.meters.feed(event)
            self._take(event)
        self.replies.save_if_due()
        self._retry_lock()
        self._take_store_errors()
        return self._updates.take()

    def _retry_lock(self) -> None:
        """Try now and then whether a chat that another kvchat wrote can be written here."""
        if not self.history.is_read_only or self._clock() < self._retry_lock_at:
            return
        self._retry_lock_at = self._clock() + LOCK_RETRY_S
        try:
            if self.history.take_over():
                self._updates.is_rebuilt = True
                self.notify(Notice("No other kvchat writes this chat any more."))
        except StoreError as error:
            self._updates.add_fault(error)

    def _take_store_errors(self) -> None:
        try:
            while True:
                self._updates.add_fault(self._store_errors.get_nowait())
        except Empty:
            return

    def _take(self, event: Event) -> None:
        match event:
            case CacheChanged() if self.is_leased:
                self._chat_in_context = LEASED
            case CacheChanged() if self.replies.running is not None:
                self._chat_in_context = self.replies.running.chat_id
            case Loaded():
                self._take_loaded(event)
            case TokensCommitted():
                self.replies.add(event)
            case Finished():
                self.replies.end(event.reason, event)
            case TokensCounted():
                self.counts.take(event.key, event.n_tokens)
            case SpeculationChanged(note=str(note)):
                self.notify(Notice(note, "Speculation"))
            case Failed():
                self._take_failed(event)
            case WorkerStopped():
                self._take_stopped(event)
            case _:
                pass

    def _take_loaded(self, event: Loaded) -> None:
        self.loaded = self._updates.loaded = event
        self.counts.forget()
        self._remove_engine_note()
        self._updates.is_rebuilt = True  # what can be continued depends on the model
        self._prefetch_shown()
        self._updates.notices += [Notice(note) for note in event.notes]

    def _take_failed(self, event: Failed) -> None:
        is_full = event.title == ContextFullError.title
        background, reply = self.background_title, self.replies.running
        if background is not None:
            self.notify(Notice(event.message, f"{event.title}: {background}", "error"))
            self.replies.cut(FinishReason.CONTEXT if is_full else FAILED)
        elif is_full and reply is not None and not reply.has_begun and self._can_trim():
            self.replies.refused = reply if reply.resumed is None else None
            self._updates.context_full = event.message
            self.replies.cut(FinishReason.CONTEXT)
        else:
            self._show_failure(event, reply, is_full=is_full)

    def _show_failure(self, event: Failed, reply: RunningReply | None, *, is_full: bool) -> None:
        message = event.message
        if is_full and self.can_have_a_larger_context:
            message += ". F2 plans a larger context"
        self.notify(Notice(message, event.title, "error", is_in_transcript=True))
        if reply is None or reply.has_begun:
            self.replies.cut(FAILED)
        elif reply.resumed is not None:
            self.replies.cut(reply.resumed.finish_reason or FAILED)
        else:
            self.replies.take_back(reply)
        if self.loaded is None:
            self._engine_note = self._add_note(f"{event.title}: {message}\n{WITHOUT_ENGINE}")
        else:
            self._add_note(f"{event.title}: {message}")

    def _can_trim(self) -> bool:
        """Whether the shown chat has more than its last question, and that has room alone."""
        visible, loaded = self.history.visible(), self.loaded
        has_turns = len(visible) > len(("question", "reply"))
        question = self.history.last(Speaker.USER)
        is_hopeless = question and loaded and is_surely_longer(question.content, loaded.n_ctx)
        return has_turns and not is_hopeless

    def _take_stopped(self, event: WorkerStopped) -> None:
        self.loaded = self._chat_in_context = None
        self.replies.cut(CUT_BY_CRASH)
        severity: Severity = "warning" if event.will_restart else "error"
        todo = "It starts again by itself." if event.will_restart else "ctrl+r starts it again."
        self.notify(Notice(todo, event.title, severity, is_in_transcript=True))
        self._engine_note = self._add_note(f"{event.title}: {event.message}\n{todo}")
