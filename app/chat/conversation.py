"""The conversation between user, engine and store: what is asked, in which chat, and the replies.

No Textual here: the screen calls `poll` once a frame and shows the `ChatUpdate`.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TypeVar

from app.cache import owner_of
from app.chat.entries import (
    CUT_BY_CLOSE,
    CUT_BY_CRASH,
    FAILED,
    Entry,
    Speaker,
    did_not_fit,
    prompt_messages,
)
from app.chat.history import ChatHistory, RestoreRule
from app.chat.meters import Meters
from app.chat.reply import RunningReply
from app.chat.snapshot import CockpitSnapshot, Phase
from app.chat.spans import SpanCache, TokenSpan
from app.chat.trimming import Summariser, TokenCounts, is_surely_longer, n_tokens_of
from app.chat.update import PRELOAD, ChatUpdate, EngineLease, Notice, Severity
from app.config import ChatDefaults
from app.store.chats import ChatStore
from app.store.errors import ChatGoneError, ChatInUseError, StoreError
from app.store.records import Chat, StoredMessage
from engine.configuration import Configuration, SamplingSettings, SpeculationSettings
from engine.errors import ContextFullError, EngineError
from engine.events import (
    ENGINE_EVENTS,
    CacheChanged,
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    OfReply,
    PromptReady,
    RoundFinished,
    SpeculationChanged,
    TokensCommitted,
    TokensCounted,
    WorkerStopped,
)
from engine.model.ollama import model_title
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

WITHOUT_ENGINE = "{engine-restart} restarts the engine, {model-list} opens another model."
RESTARTS = "The engine restarts automatically."
STOPPED = "{engine-restart} restarts the engine."
NO_CHAT = 0
RETRY_S = 2.0
"""Interval between attempts to save an ended reply."""
"""In place of a chat's id: the context holds something else."""
ReplyOrNone = TypeVar("ReplyOrNone", RunningReply, RunningReply | None)


class Conversation:
    """One user's chats with one engine; at most one reply is written in each chat.

    Methods raise `StoreError` if a chat is gone or cannot be read or written; nothing is asked or
    changed then. Those that ask do so in the shown chat, or in the given history of another.

    Attributes:
        history: The chat that is shown.
        meters: Counters for the panels.
        counts: Tokens of what is written in the composer.
        configuration: What was asked to be loaded last.
        loaded: The model; None without one.
        speculation: The settings of speculation that were asked for last.
        limits: Where every reply ends, and its seed; sampling is each chat's own.
        running: Replies by message, in the order in which they were asked for.
        refused: The reply for which the context was full before its first token.
        lease: Handles the events of replies that are its own.
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
        self.configuration: Configuration | None = None
        self.loaded: Loaded | None = None
        self.speculation = SpeculationSettings()
        self.limits = ChatDefaults(max_tokens=max_tokens)
        self.running: dict[int, RunningReply] = {}
        self.refused: RunningReply | None = None
        self.lease: EngineLease | None = None
        self._update = ChatUpdate(is_rebuilt=True)
        self._store = store
        self._clock = clock
        self._unsaved: dict[int, StoredMessage] = {}
        """Ended replies that could not be saved, by their ids."""
        self._retry_at = 0.0
        self._store_errors: SimpleQueue[StoreError] = SimpleQueue()
        store.writer.on_error = self._store_errors.put
        self._events: deque[Event] = deque()
        self._is_preloading = False
        self._engine_note: Entry | None = None
        """The transcript's note on an engine that stopped or could not load."""
        self._spans = SpanCache()
        self._prompts: dict[int, PromptReady] = {}
        """The last prompt of each chat since the model was loaded."""
        self._chat_in_context: int | None = None
        """The chat whose tokens the context holds; None while it is empty."""

    # --- what the screen reads ---

    @property
    def blindness(self) -> str:
        """Why no image can go with a message; empty if one can, or before a model is loaded."""
        return "" if self.loaded is None else self.loaded.blindness

    @property
    def live(self) -> RunningReply | None:
        """The reply that is being written in the shown chat."""
        return self.reply_in(self.history.chat.id) if self.history.chat else None

    def reply_in(self, chat_id: int | None) -> RunningReply | None:
        """The reply that is being written in a chat."""
        return next((r for r in self.running.values() if r.chat_id == chat_id), None)

    @property
    def is_replying(self) -> bool:
        """A reply is being written in some chat."""
        return bool(self.running)

    @property
    def background_title(self) -> str | None:
        """The chat whose reply the panels show, if the shown chat has none."""
        titles = [reply.chat_title for reply in self.running.values()]
        return titles[-1] if titles and self.live is None else None

    @property
    def can_ask(self) -> bool:
        """A message can be sent in the shown chat now."""
        return self.has_free_slot and not self.is_leased and self.live is None

    @property
    def has_free_slot(self) -> bool:
        """A model is loaded, and its context has a sequence without a reply."""
        loaded = self.loaded
        return loaded is not None and len(self.running) < loaded.configuration.n_slots

    @property
    def is_leased(self) -> bool:
        """The engine makes a reply that is not a chat's."""
        return self.lease is not None and self.lease.is_running

    @property
    def can_grow(self) -> bool:
        """Whether the model was trained on more tokens than its context has."""
        loaded = self.loaded
        if loaded is None or loaded.n_ctx is None or loaded.n_ctx_train is None:
            return False
        return loaded.configuration.server is None and loaded.n_ctx < loaded.n_ctx_train

    def entries(self) -> list[Entry]:
        """What the transcript shows, oldest first."""
        reply = self.live
        if reply is None:
            entries = self.history.entries()
        else:
            self._spans.keep(reply.message_id, reply.spans, reply.text)
            entries = self.history.entries(live_id=reply.message_id, live_text=reply.text)
        return [
            replace(entry, spans=spans) if (spans := self._spans.get(entry.key)) else entry
            for entry in entries
        ]

    def snapshot(self) -> CockpitSnapshot:
        """What the panels show."""
        reply, is_of_chat = self.live, self._is_of_chat
        return replace(
            self.meters.snapshot(reply.message_id if reply else None),
            background_title=self.background_title,
            n_beside=max(len(self.running) - 1, 0),
            is_of_chat=is_of_chat,
            n_of_chat=None if is_of_chat else self._n_of_chat(),
            prompt=self._prompts.get(self.history.chat.id) if self.history.chat else None,
        )

    @property
    def _is_of_chat(self) -> bool:
        """Whether the context holds the shown chat, or a chat that is being answered."""
        return self.is_replying or self._chat_in_context == self.history.chat_id

    def _n_of_chat(self) -> int:
        """Estimated tokens of the shown chat, as far as the model sees it."""
        return sum(map(n_tokens_of, self.history.visible()))

    @property
    def n_free(self) -> int | None:
        """Cells that the shown chat leaves free; None before a model is loaded."""
        if self.loaded is None or self.loaded.n_ctx is None:
            return None
        cache = self.meters.cache
        is_of_shown = self._is_of_chat and self.background_title is None
        n_used = (cache.n_used if cache else 0) if is_of_shown else self._n_of_chat()
        return self.loaded.n_ctx - n_used

    # --- the engine ---

    def load(self, configuration: Configuration) -> None:
        """Start the engine on a configuration; what it was doing ends."""
        self._cut(FinishReason.CANCELLED)
        if self.lease is not None:
            self.lease.revoke("another model was loaded in the meantime")
            self.lease = None
        self._remove_engine_note()
        self.configuration, self.loaded = configuration, None
        self._is_preloading = False
        self.speculation = configuration.speculation
        self.history.use_model(configuration.address)
        self._update.is_rebuilt = True  # replies show which of them another model wrote
        self.meters.start_load(configuration)
        self.client.load(configuration)

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor or controller, in the middle of a reply too."""
        self.speculation = settings
        self.meters.set_speculation(settings)
        self.client.set_speculation(settings)

    def stop(self) -> bool:
        """Stop a load, or the reply or the summary of the shown chat; False if none runs."""
        reply, lease = self.live, self.lease
        if self.meters.phase is Phase.LOADING:
            self.client.stop()
        elif reply is not None and not reply.is_stopping:
            reply.is_stopping = True
            self.client.stop(reply.message_id)
        elif isinstance(lease, Summariser) and lease.is_running_in(self.history.chat_id):
            lease.stop()
        else:
            return False
        return True

    def begin_close(self) -> None:
        """Save what came and begin to end the engine; then wait for `client.has_ended`."""
        self._cut(CUT_BY_CLOSE)
        self._save_again()
        self.client.begin_close()

    def close(self) -> None:
        """End the engine and save what came."""
        self.begin_close()
        self.client.close()

    # --- chats ---

    def open_chat(self, chat_id: int) -> None:
        """Show another chat; replies continue in theirs."""
        self._store.chat(chat_id)  # before the shown one is left
        self._leave()
        self.history.open(chat_id)
        self._prefetch_shown()

    def new_chat(self, like: Chat | None = None) -> None:
        """Show an empty chat with the settings of another chat, or the defaults."""
        self._leave()
        self.history.begin(like)
        self._preload()

    def fork(self, message_id: int) -> int:
        """Copy the shown chat up to one of its messages into a new chat; show it, return its id.

        A reply that is being written is copied as if it was stopped now.
        """
        reply = self.live
        live = reply.ended(FinishReason.CANCELLED, None) if reply is not None else None
        chat_id = self._store.fork_chat(message_id, live=live).id
        self.open_chat(chat_id)
        return chat_id

    def restore_last_chat(self, rule: RestoreRule) -> None:
        """Show the chat used last if the rule wants it and no other kvchat answers in it."""
        chat = self.history.to_reopen(rule)
        if chat is not None:
            with suppress(StoreError):  # another kvchat process deleted it: the empty chat stays
                self.open_chat(chat.id)

    def show_message(self, message_id: int) -> bool:
        """Show the branch of a message; False while a reply is written on another branch."""
        if self.history.shown(message_id) is None:
            if self.live is not None:
                return False
            self._store.show_message(message_id)
            self.refresh()
        return self.history.shown(message_id) is not None

    def switch_variant(self, message_id: int, step: int) -> bool:
        """Show the next or the previous variant of a message; False at the last one."""
        has_moved = self.live is None and self.history.switch_variant(message_id, step)
        self._update.is_rebuilt |= has_moved
        return has_moved

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat, and the cached states that only it uses."""
        reply = self.reply_in(chat_id)
        self._store.delete_chat(chat_id, None if reply is None else reply.lock)
        self.client.forget_owner(owner_of(chat_id))

    def refresh(self) -> None:
        """Read the shown chat again."""
        self.history.refresh()
        self._update.is_rebuilt = True

    def history_of(self, chat_id: int | None) -> ChatHistory:
        """A chat that is not shown, to ask in; None begins one.

        Raises:
            StoreError: If the chat is gone.
            ContextFullError: If its last reply did not fit into the context.
        """
        other = self.history.of_another(chat_id)
        last = other.unfinished()
        if last is not None and did_not_fit(last):
            raise ContextFullError(
                f"the context of “{other.title}” is full: open that chat ({{chat-list}}) to "
                "shorten it"
            )
        return other

    def prefetch(self, chat_id: int) -> None:
        """Read the saved states of a chat from disk into RAM."""
        chat = self._store.chat(chat_id)
        if self.loaded is not None and chat.head_id is not None:
            path = self._store.path_to(chat.head_id)
            self.client.prefetch(
                prompt_messages(
                    chat.system_prompt, path, kept_from=chat.kept_from, summary=chat.summary
                )
            )

    def _prefetch_shown(self) -> None:
        head = self.history.head_id
        if self.loaded is not None and head is not None:
            self.client.prefetch(self.history.request_messages(head))

    def _preload(self) -> None:
        """Let an idle engine prefill the system prompt of a new chat before the first question."""
        loaded, prompt = self.loaded, self.history.system_prompt.strip()
        is_busy = self.is_replying or self.is_leased
        if loaded is None or is_busy or self.history.head_id is not None or not prompt:
            return
        if loaded.configuration.server is None:  # a server's time costs
            self._is_preloading = True
            self.client.generate(GenerationRequest.preload(prompt_messages(prompt, ())), PRELOAD)

    def _leave(self) -> None:
        self.refused = None
        if self._is_preloading:
            self.client.stop(PRELOAD)
        self._update.is_rebuilt = True

    # --- asking ---

    def send(self, text: str, history: ChatHistory | None = None) -> RunningReply:
        """Ask at the end of a chat."""
        chat = history or self.history
        return self._locked(chat, lambda: self._ask(chat, text, chat.head_id))

    def edit(self, message_id: int, text: str, history: ChatHistory | None = None) -> RunningReply:
        """Ask a question in other words, or continue a reply from a changed text.

        The earlier message stays as a variant.
        """
        chat = history or self.history
        message = chat.message(message_id)
        is_question = message.role == "user"
        start = None
        if not is_question:
            start = replace(message, content=text, stats=None, finish_reason=None)
        question, parent_id = text if is_question else None, message.parent_id
        return self._locked(chat, lambda: self._ask(chat, question, parent_id, start))

    def regenerate(self, message_id: int | None = None) -> RunningReply | None:
        """Generate another reply to a question, by its id or that of a reply; the last by default.

        None if there is no question.
        """
        return self._locked(self.history, lambda: self._answer(self.history, message_id))

    def continue_reply(self, history: ChatHistory | None = None) -> RunningReply | None:
        """Continue the reply that a chat ends with, or answer its question; None without both."""
        chat = history or self.history
        return self._locked(chat, lambda: self._continue(chat))

    def _locked(self, chat: ChatHistory, ask: Callable[[], ReplyOrNone]) -> ReplyOrNone:
        """Ask under the lock of the chat, which the reply then holds until it has ended."""
        lock = None if chat.chat is None else self._store.lock_chat(chat.chat.id)
        if chat.chat is not None and lock is None:
            raise ChatInUseError(
                f"another kvchat process is answering in “{chat.title}”: "
                "wait until the reply is complete"
            )
        reply: RunningReply | None = None
        try:
            self._update.is_rebuilt |= chat.catch_up()
            reply = ask()
        finally:
            if reply is not None:
                reply.lock = lock or self._store.lock_chat(reply.chat_id)
            elif lock is not None:
                lock.close()
        return reply

    def _ask(
        self,
        chat: ChatHistory,
        question: str | None,
        parent_id: int | None,
        start: StoredMessage | None = None,
    ) -> RunningReply:
        """Save a question and ask for the reply to it; None answers the question `parent_id`.

        The reply begins with `start`, whose token ids may be those of a similar text.
        """
        head, loaded = chat.head_id, self.loaded
        message = chat.add_turn(
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
            chat_title=chat.title,
        )
        if start is not None:
            reply.forget_ids()
            self._store.write_partial(message.id, start.content, ())
        self._generate(chat, reply)
        return reply

    def _answer(self, chat: ChatHistory, message_id: int | None) -> RunningReply | None:
        question = chat.question_for(message_id)
        return None if question is None else self._ask(chat, None, question)

    def _continue(self, chat: ChatHistory) -> RunningReply | None:
        last = chat.unfinished()
        if last is None or self.loaded is None:
            return None
        if last.role == "user" or last.parent_id is None:
            return self._answer(chat, last.id)
        self._store.reopen_message(last.id)
        opened = replace(last, finish_reason=None, vocabulary_id=self.loaded.vocabulary_id)
        chat.replace_message(opened)
        spans = self._spans.of_text(last.id, last.content) if last.content else ()
        reply = RunningReply(
            opened,
            parent_head=chat.head_id,
            resumed=last,
            resumed_spans=spans,
            chat_title=chat.title,
        )
        self._generate(chat, reply)
        return reply

    def _generate(self, chat: ChatHistory, reply: RunningReply) -> None:
        self.refused = None
        self.running[reply.message_id] = reply
        self.meters.start_reply(reply.message_id, reply.stats_before)
        self._update.is_rebuilt = True
        request = GenerationRequest(
            messages=chat.request_messages(reply.message.parent_id),
            sampling=chat.sampling,
            max_tokens=self.limits.max_tokens,
            stop=self.limits.stop,
            seed=self.limits.seed,
            owner=owner_of(reply.chat_id),
            continues=reply.known_ids,
            continues_text=reply.resumed_text,
            is_trimmed=chat.is_trimmed,
        )
        self.client.generate(request, reply.message_id)

    # --- notes and notices ---

    def notify(self, notice: Notice) -> None:
        """Show a notice with the next poll."""
        self._update.notices.append(notice)

    def report(self, error: EngineError) -> None:
        """Show an error with the next poll."""
        self.notify(Notice(str(error), error.title, "error"))

    def offer_space(self, why: str) -> None:
        """Let the user choose what to do about a full context; `why` names what is full."""
        self._update.context_full = why

    def toggle_note(self, message_id: int, text: str) -> None:
        """Add a note after a message, or remove it if it is there."""
        self.history.notes.toggle(message_id, text)
        self._update.is_rebuilt = True

    def _report_engine(self, title: str, message: str, todo: str, severity: Severity) -> None:
        """Note in the transcript that there is no engine, until another load."""
        self.notify(Notice(message, title, severity, is_in_transcript=True))
        text = f"{title}: {message}\n{todo}"
        self._engine_note = self.history.notes.add(self.history.head_id, text)
        self._update.is_rebuilt = True

    def _remove_engine_note(self) -> None:
        if self._engine_note is not None:
            self.history.notes.remove(self._engine_note)
            self._engine_note = None
            self._update.is_rebuilt = True

    # --- events ---

    def poll(self) -> ChatUpdate:
        """Handle the engine's events since the last call, and return what changed."""
        self._events.extend(self.client.poll())
        while self._events:  # an event that cannot be handled does not stop the others
            event = self._events.popleft()
            if self.lease is None or not self.lease.take(event):
                self._handle(event)
        for reply in self.running.values():
            if reply.is_due(self._clock()):
                self._store.write_partial(reply.message_id, reply.text, reply.token_ids)
        if self._unsaved and self._clock() >= self._retry_at:
            self._save_again()
        with suppress(Empty):
            while True:
                self.report(self._store_errors.get_nowait())
        update, self._update = self._update, ChatUpdate()
        if update.is_rebuilt:
            update.text, update.spans = "", []
        return update

    def _handle(self, event: Event) -> None:
        reply_id = 0
        if isinstance(event, OfReply):
            reply_id, event = event.reply_id, event.event
        if reply_id == PRELOAD:  # a failure is reported when the question meets it
            self._is_preloading &= not isinstance(event, Finished | Failed)
        elif reply_id > 0:
            self._handle_of(reply_id, event)
        elif reply_id == 0 or isinstance(event, ENGINE_EVENTS):
            self.meters.feed(event)
            self._handle_engine(event)
        if isinstance(event, SpeculationChanged) and event.note is not None:
            self.notify(Notice(event.note, "Speculation"))

    def _handle_engine(self, event: Event) -> None:
        match event:
            case CacheChanged():
                self._chat_in_context = NO_CHAT
            case Loaded():
                self._handle_loaded(event)
            case TokensCounted():
                self.counts.take(event.key, event.n_tokens)
            case Failed(title, message) if self.loaded is None:
                self._report_engine(title, message, WITHOUT_ENGINE, "error")
            case Failed(title, message):
                self.notify(Notice(message, title, "error"))
            case WorkerStopped(title, message):
                self.loaded = None
                self._cut(CUT_BY_CRASH)
                todo = RESTARTS if event.will_restart else STOPPED
                severity: Severity = "warning" if event.will_restart else "error"
                self._report_engine(title, message, todo, severity)
            case _:
                pass

    def _handle_loaded(self, event: Loaded) -> None:
        self.loaded = self._update.loaded = event
        self.counts.forget()
        self._remove_engine_note()
        self._prefetch_shown()
        self._preload()
        self._update.notices += [Notice(note) for note in event.notes]

    # --- replies ---

    def _handle_of(self, message_id: int, event: Event) -> None:
        """Handle an event of a reply; of one that has ended it changes nothing."""
        reply = self.running.get(message_id)
        try:
            self.meters.feed(event, message_id)
            if reply is not None:
                self._handle_reply(reply, event)
        except BaseException:
            if reply is not None and isinstance(event, Finished | Failed):
                self._abandon(reply)
            raise

    def _handle_reply(self, reply: RunningReply, event: Event) -> None:
        match event:
            case TokensCommitted():
                added = reply.add(event)
                if reply is self.live:
                    self._update.text += event.text
                    self._update.spans += added
            case PromptReady():
                self._prompts[reply.chat_id] = event
                reply.count(event)
            case RoundFinished():
                reply.count(event)
            case CacheChanged():
                self._chat_in_context = reply.chat_id
            case Finished():
                self._report_end(reply, event)
                self._end(reply, event.reason, event)
            case Failed():
                self._fail(reply, event)
            case _:
                pass

    def _abandon(self, reply: RunningReply) -> None:
        """End a reply whose end could not be handled; it can be continued from its text so far."""
        self.running.pop(reply.message_id, None)
        self._store.write_partial(reply.message_id, reply.text, reply.token_ids)
        self._release(reply, replace(reply.message, content=reply.text))

    def _cut(self, reason: str) -> None:
        """End every reply with its text so far; the engine holds none of them then."""
        self._chat_in_context = None
        self._prompts.clear()
        for reply in tuple(self.running.values()):
            self._end(reply, reason, None)

    def _end(self, reply: RunningReply, reason: str, event: Finished | None) -> None:
        del self.running[reply.message_id]
        ended = reply.ended(reason, event)
        self._unsaved.pop(ended.id, None)
        self._spans.keep(reply.message_id, reply.spans, ended.content)
        try:
            ended = self._store.finish_message(ended) or ended
        except StoreError as error:
            self._unsaved[ended.id] = ended
            self._retry_at = self._clock() + RETRY_S
            self.report(error)
        self._release(reply, ended)

    def _save_again(self) -> None:
        """Save the ended replies that could not be saved, until the first that cannot be now."""
        self._retry_at = self._clock() + RETRY_S
        for ended in [each for key, each in self._unsaved.items() if key not in self.running]:
            try:
                self._store.finish_message(ended)
            except ChatGoneError:
                pass  # it was deleted
            except StoreError:
                return  # reported when its reply ended
            del self._unsaved[ended.id]

    def _report_end(self, reply: RunningReply, event: Finished) -> None:
        is_full = event.reason is FinishReason.CONTEXT
        if reply is not self.live:
            what = "has reached its context limit" if is_full else "is answered"
            self.notify(Notice(f"“{reply.chat_title}” {what}: {{chat-list}} opens that chat."))
        elif is_full:
            self.offer_space(f"all {event.n_cells:,} cells of the KV cache are used")

    def _fail(self, reply: RunningReply, event: Failed) -> None:
        is_full = event.title == ContextFullError.title
        if reply is not self.live:
            title = f"{event.title}: {reply.chat_title}"
            self.notify(Notice(event.message, title, "error"))
            self._end(reply, FinishReason.CONTEXT if is_full else FAILED, None)
        elif is_full and not reply.has_begun and self._can_trim():
            self.refused = reply if reply.resumed is None else None
            self.offer_space(event.message)
            self._end(reply, FinishReason.CONTEXT, None)
        else:
            hint = ". {model-plan} plans a larger context" if is_full and self.can_grow else ""
            self._report_failure(reply, event.title, f"{event.message}{hint}")

    def _report_failure(self, reply: RunningReply, title: str, message: str) -> None:
        self.notify(Notice(message, title, "error", is_in_transcript=True))
        if reply.has_begun:
            self._end(reply, FAILED, None)
        elif reply.resumed is not None:
            self._end(reply, reply.resumed.finish_reason or FAILED, None)
        else:
            self._undo(reply)
        self.history.notes.add(self.history.head_id, f"{title}: {message}")
        self._update.is_rebuilt = True

    def _can_trim(self) -> bool:
        """Whether the shown chat has earlier turns, and its last question may fit alone."""
        has_turns = len(self.history.visible()) > len(("question", "reply"))
        question = self.history.last(Speaker.USER)
        n_ctx = self.loaded.n_ctx if self.loaded else None
        is_hopeless = question and n_ctx and is_surely_longer(question.content, n_ctx)
        return has_turns and not is_hopeless

    def undo_refused(self, *, returns_text: bool = True) -> None:
        """Undo the question for which the context was full."""
        reply, self.refused = self.refused, None
        if reply is not None and self.history.head_id == reply.message_id:
            self._undo(reply, returns_text=returns_text)

    def _undo(self, reply: RunningReply, *, returns_text: bool = True) -> None:
        """Undo a question that the engine refused."""
        self.running.pop(reply.message_id, None)
        try:
            if reply.parent_head is None and self.history.is_shown(reply.chat_id):
                self.history.discard(reply.lock)
            else:
                self._store.update_chat(reply.chat_id, head_id=reply.parent_head)
        except StoreError as error:
            self.report(error)
        if reply.prompt and returns_text:
            self._update.returned_text = reply.prompt
        self._update.is_rebuilt = True
        self._release(reply)

    def _release(self, reply: RunningReply, ended: StoredMessage | None = None) -> None:
        if reply.lock is not None:
            reply.lock.close()
        if not self.history.is_shown(reply.chat_id):
            return
        self._update.is_rebuilt = True
        try:
            if ended is None:
                self.history.refresh()
            else:
                self.history.replace_message(ended)
        except StoreError as error:
            self.report(error)
