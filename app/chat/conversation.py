"""The chats of a user and one engine: what is sent in which chat, and who handles each event.

No Textual here: the screen calls `poll` once a frame and shows the `ChatUpdate`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from app.cache import owner_of
from app.chat.context import Summary, TokenCounts, is_surely_longer, n_tokens_of
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
from app.chat.update import PRELOAD, ChatUpdate, Notice, Severity
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
    SpeculationChanged,
    TokensCommitted,
    TokensCounted,
    WorkerStopped,
)
from engine.model.ollama import model_title
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

if TYPE_CHECKING:
    from engine.experiment.comparison import Comparison

WITHOUT_ENGINE = "{engine-restart} restarts the engine, {model-list} opens another model."
RESTARTS = "The engine restarts automatically."
STOPPED = "{engine-restart} restarts the engine."
RETRY_S = 2.0
"""Interval between attempts to save an ended reply."""
OTHER_TEXT = 0
"""In place of a chat's id: the context holds the tokens of no chat."""


class Conversation:
    """One user's chats with one engine; at most one reply is written in each chat.

    Methods raise `StoreError` if a chat is gone or cannot be read or written; nothing is sent or
    changed then. Those that send do so in the shown chat, or in the given history of another.

    Attributes:
        history: The chat that is shown.
        meters: Counters for the panels.
        counts: Tokens of the text in the composer.
        configuration: What was to be loaded last.
        loaded: The model; None without one.
        speculation: The settings of speculation that were chosen last.
        limits: Where every reply ends, and its seed; sampling is each chat's own.
        running: Replies by message, oldest request first.
        refused: The reply for which the context was full before its first token.
        task: A summary or comparison, which handles the events of its own replies.
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
        self.task: Summary | Comparison | None = None
        self._update = ChatUpdate()
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
    def n_ctx(self) -> int:
        """Cells of the context; 0 if unknown or without a model."""
        return (self.loaded.n_ctx or 0) if self.loaded else 0

    @property
    def live(self) -> RunningReply | None:
        return self.reply_in(self.history.chat.id) if self.history.chat else None

    def reply_in(self, chat_id: int | None) -> RunningReply | None:
        return next((r for r in self.running.values() if r.chat_id == chat_id), None)

    @property
    def is_replying(self) -> bool:
        return bool(self.running)

    @property
    def background_title(self) -> str | None:
        """The chat whose reply the panels show, if the shown chat has none."""
        titles = [reply.chat_title for reply in self.running.values()]
        return titles[-1] if titles and self.live is None else None

    @property
    def can_ask(self) -> bool:
        return self.has_free_slot and not self.has_task and self.live is None

    @property
    def has_free_slot(self) -> bool:
        """Whether a model is loaded and its context has a sequence without a reply."""
        loaded = self.loaded
        return loaded is not None and len(self.running) < loaded.configuration.n_slots

    @property
    def has_task(self) -> bool:
        return self.task is not None and self.task.is_running

    @property
    def can_grow(self) -> bool:
        """Whether the model was trained on more tokens than its context has."""
        loaded = self.loaded
        if loaded is None or loaded.n_ctx is None or loaded.n_ctx_train is None:
            return False
        return loaded.configuration.server is None and loaded.n_ctx < loaded.n_ctx_train

    @property
    def n_free(self) -> int | None:
        """Free cells in the context of the shown chat; None before a model is loaded."""
        if self.loaded is None or self.loaded.n_ctx is None:
            return None
        cache = self.meters.cache
        if self._is_of_chat and self.background_title is None:
            return self.loaded.n_ctx - (cache.n_used if cache else 0)
        return self.loaded.n_ctx - self._n_of_chat()

    @property
    def _is_of_chat(self) -> bool:
        """Whether the context holds the shown chat, or a chat that is being answered."""
        return self.is_replying or self._chat_in_context == self.history.chat_id

    def _n_of_chat(self) -> int:
        """Estimated tokens of the shown chat, as far as the model sees it."""
        return sum(map(n_tokens_of, self.history.visible()))

    def entries(self) -> list[Entry]:
        reply = self.live
        if reply is None:
            entries = self.history.entries()
        else:
            self._spans.store(reply.message_id, reply.spans, reply.text)
            entries = self.history.entries(live_id=reply.message_id, live_text=reply.text)
        return [
            replace(entry, spans=spans) if (spans := self._spans.get(entry.key)) else entry
            for entry in entries
        ]

    def snapshot(self) -> CockpitSnapshot:
        reply, is_of_chat = self.live, self._is_of_chat
        return replace(
            self.meters.snapshot(reply.message_id if reply else None),
            background_title=self.background_title,
            n_beside=max(len(self.running) - 1, 0),
            is_of_chat=is_of_chat,
            n_of_chat=None if is_of_chat else self._n_of_chat(),
            prompt=self._prompts.get(self.history.chat.id) if self.history.chat else None,
        )

    # --- the engine ---

    def load(self, configuration: Configuration) -> None:
        """Start the engine on a configuration; running replies end."""
        self._cut(FinishReason.CANCELLED)
        if self.task is not None:
            self.task.revoke("another model was loaded in the meantime")
            self.task = None
        self.history.notes.remove(self._engine_note)
        self.configuration, self.loaded = configuration, None
        self._is_preloading = False
        self.speculation = configuration.speculation
        self.history.use_model(configuration.address)
        self.meters.start_load(configuration)
        self.client.load(configuration)

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor or controller, also during a reply."""
        self.speculation = settings
        self.meters.set_speculation(settings)
        self.client.set_speculation(settings)

    def stop(self) -> bool:
        """Stop a load, or the reply or the summary of the shown chat; False if none runs."""
        reply, task = self.live, self.task
        if self.meters.phase is Phase.LOADING:
            self.client.stop()
        elif reply is not None and not reply.is_stopping:
            reply.is_stopping = True
            self.client.stop(reply.message_id)
        elif isinstance(task, Summary) and task.is_running and task.chat_id == self.history.chat_id:
            task.stop()
        else:
            return False
        return True

    def begin_close(self) -> None:
        """Save the replies and begin to end the engine; then wait for `client.has_ended`."""
        self._cut(CUT_BY_CLOSE)
        self._save_again()
        self.client.begin_close()

    def close(self) -> None:
        self.begin_close()
        self.client.close()

    # --- chats ---

    def open_chat(self, chat_id: int) -> None:
        """Show another chat; replies continue in theirs."""
        self._store.chat(chat_id)  # before the shown one is left
        self._leave()
        self.history.open(chat_id)
        self._prefetch()

    def new_chat(self, like: Chat | None = None) -> None:
        """Show an empty chat with the settings of another chat, or the defaults."""
        self._leave()
        self.history.begin(like)
        self._preload()

    def _leave(self) -> None:
        self.refused = None
        if self._is_preloading:
            self.client.stop(PRELOAD)

    def fork(self, message_id: int) -> None:
        """Copy the shown chat up to one of its messages into a new chat, and show the copy.

        A reply that is being written is copied as if it was stopped now.
        """
        reply = self.live
        live = reply.ended(FinishReason.CANCELLED, None) if reply is not None else None
        self.open_chat(self._store.fork_chat(message_id, live=live).id)

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
            self.history.refresh()
        return self.history.shown(message_id) is not None

    def switch_variant(self, message_id: int, step: int) -> bool:
        """Show the next or the previous variant of a message; False at the last one."""
        return self.live is None and self.history.switch_variant(message_id, step)

    def delete_chat(self, chat_id: int) -> None:
        reply = self.reply_in(chat_id)
        self._store.delete_chat(chat_id, None if reply is None else reply.lock)
        self.client.forget_owner(owner_of(chat_id))
        if self.history.is_shown(chat_id):
            self.new_chat()

    def refresh_or_leave(self) -> None:
        """Read the shown chat again; show a new one if it cannot be read."""
        try:
            self.history.refresh()
        except StoreError:
            self.new_chat()

    def history_of(self, chat_id: int | None) -> ChatHistory:
        """Open a chat that is not on the screen, to send a message; None begins a new chat.

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

    def _prefetch(self) -> None:
        """Read the saved states of the shown chat from disk into RAM."""
        head_id = self.history.head_id
        if self.loaded is not None and head_id is not None:
            self.client.prefetch(self.history.request_messages(head_id))

    def _preload(self) -> None:
        """Let an idle engine prefill the system prompt of a new chat before the first question."""
        loaded, prompt = self.loaded, self.history.system_prompt.strip()
        is_busy = self.is_replying or self.has_task
        if loaded is None or is_busy or self.history.head_id is not None or not prompt:
            return
        if loaded.configuration.server is None:  # a server's time costs
            self._is_preloading = True
            self.client.generate(GenerationRequest.preload(prompt_messages(prompt, ())), PRELOAD)

    # --- sending ---

    def send(self, text: str, history: ChatHistory | None = None) -> RunningReply:
        chat = history or self.history
        with self._locked(chat):
            return self._reply_to(chat, text, chat.head_id)

    def edit(self, message_id: int, text: str, history: ChatHistory | None = None) -> RunningReply:
        """Ask a question in other words, or continue a reply from a changed text.

        The earlier message stays as a variant.
        """
        chat = history or self.history
        message = chat.message(message_id)
        with self._locked(chat):
            if message.role == "user":
                return self._reply_to(chat, text, message.parent_id)
            start = replace(message, content=text, stats=None, finish_reason=None)
            return self._reply_to(chat, None, message.parent_id, start)

    def regenerate(self, message_id: int | None = None) -> RunningReply | None:
        """Generate another reply to a question, by its id or that of a reply; the last by default.

        None if there is no question.
        """
        with self._locked(self.history):
            question = self.history.question_for(message_id)
            return None if question is None else self._reply_to(self.history, None, question)

    def continue_reply(self, history: ChatHistory | None = None) -> RunningReply | None:
        """Continue the reply that a chat ends with, or answer its question; None without both."""
        chat = history or self.history
        with self._locked(chat):
            last = chat.unfinished()
            if last is None or self.loaded is None:
                return None
            if last.role == "user" or last.parent_id is None:
                question = chat.question_for(last.id)
                return None if question is None else self._reply_to(chat, None, question)
            self._store.reopen_message(last.id)
            opened = replace(
                last, finish_reason=None, vocabulary_id=self.loaded.vocabulary_id,
                stats=None, predictor=None, controller=None,
            )  # fmt: skip
            chat.replace_message(opened)
            spans = self._spans.of_text(last.id, last.content)
            reply = RunningReply(
                opened, chat.title, parent_head=chat.head_id, resumed=last, spans=spans
            )
            self._generate(chat, reply)
            return reply

    @contextmanager
    def _locked(self, chat: ChatHistory) -> Iterator[None]:
        """Lock a chat and read it again; a reply that begins meanwhile has the lock to its end."""
        lock = None if chat.chat is None else self._store.lock_chat(chat.chat.id)
        if chat.chat is not None and lock is None:
            raise ChatInUseError(
                f"another kvchat process is answering in “{chat.title}”: "
                "wait until the reply is complete"
            )
        earlier = set(self.running)
        try:
            chat.catch_up()
            yield
        finally:
            for message_id in self.running.keys() - earlier:
                reply = self.running[message_id]
                reply.lock, lock = lock or self._store.lock_chat(reply.chat_id), None
            if lock is not None:
                lock.close()

    def _reply_to(
        self,
        chat: ChatHistory,
        question: str | None,
        parent_id: int | None,
        start: StoredMessage | None = None,
    ) -> RunningReply:
        """Save a question and generate the reply to it; None answers the question `parent_id`.

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
            chat.title,
            prompt=question or "",
            parent_head=head,
            resumed=start,
            spans=[TokenSpan(start.content)] if start else [],
            is_rewritten=start is not None,
        )
        if start is not None:
            self._store.write_partial(message.id, start.content, ())
        self._generate(chat, reply)
        return reply

    def _generate(self, chat: ChatHistory, reply: RunningReply) -> None:
        self.refused = None
        self.running[reply.message_id] = reply
        reply.meter = self.meters.start_reply(reply.message_id, reply.stats_before)
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
        self._update.notices.append(notice)

    def report(self, error: EngineError) -> None:
        self.notify(Notice(str(error), error.title, "error"))

    def offer_space(self, why: str) -> None:
        """Let the user choose what to do about a full context; `why` names what is full."""
        self._update.context_full = why

    def _report_engine(self, event: Failed | WorkerStopped, todo: str) -> None:
        """Note in the transcript that there is no engine, until another load."""
        severity: Severity = "warning" if todo == RESTARTS else "error"
        self.notify(Notice(event.message, event.title, severity, is_in_transcript=True))
        text = f"{event.title}: {event.message}\n{todo}"
        self._engine_note = self.history.notes.add(self.history.head_id, text)

    # --- events ---

    def poll(self) -> ChatUpdate:
        """Handle the engine's events since the last call, and return what changed."""
        self._events.extend(self.client.poll())
        while self._events:  # an event that cannot be handled does not stop the others
            event = self._events.popleft()
            if self.task is None or not self.task.take(event):
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
        update.is_rebuilt = self.history.pop_change()
        if update.is_rebuilt:
            update.spans = []
        return update

    def _handle(self, event: Event) -> None:
        """Handle an event by the id of its reply; 0 is the engine."""
        reply_id = 0
        if isinstance(event, OfReply):
            reply_id, event = event.reply_id, event.event
        if reply_id == PRELOAD:  # a failure is reported when the question meets it
            self._is_preloading &= not isinstance(event, Finished | Failed)
        elif reply_id > 0:
            reply = self.running.get(reply_id)
            try:
                self.meters.feed(event, reply_id)
            finally:  # no bug of the counters loses a reply
                if reply is not None:
                    self._handle_reply(reply, event)
        elif reply_id == 0 or isinstance(event, ENGINE_EVENTS):
            self.meters.feed(event)
            self._handle_engine(event)
        if isinstance(event, SpeculationChanged) and event.note is not None:
            self.notify(Notice(event.note, "Speculation"))

    def _handle_engine(self, event: Event) -> None:
        match event:
            case CacheChanged():
                self._chat_in_context = OTHER_TEXT
            case Loaded():
                self.loaded = self._update.loaded = event
                self.counts.forget()
                self.history.notes.remove(self._engine_note)
                self._prefetch()
                self._preload()
                self._update.notices += map(Notice, event.notes)
            case TokensCounted():
                self.counts.handle(event.key, event.n_tokens)
            case Failed() if self.loaded is None:
                self._report_engine(event, WITHOUT_ENGINE)
            case Failed(title, message):
                self.notify(Notice(message, title, "error"))
            case WorkerStopped():
                self.loaded = None
                self._cut(CUT_BY_CRASH)
                self._report_engine(event, RESTARTS if event.will_restart else STOPPED)
            case _:
                pass

    def _handle_reply(self, reply: RunningReply, event: Event) -> None:
        match event:
            case TokensCommitted():
                added = reply.add(event)
                if reply is self.live:
                    self._update.spans += added
            case PromptReady():
                self._prompts[reply.chat_id] = event
            case CacheChanged():
                self._chat_in_context = reply.chat_id
            case Finished():
                is_live = reply is self.live
                self._end(reply, event.reason, event)
                self._report_end(reply, event, is_live=is_live)
            case Failed():
                self._fail(reply, event)
            case _:
                pass

    # --- the end of a reply ---

    def _cut(self, reason: str) -> None:
        """End every reply with its text so far; the engine holds none of them then."""
        self._chat_in_context = None
        self._prompts.clear()
        for reply in tuple(self.running.values()):
            self._end(reply, reason, None)

    def _end(self, reply: RunningReply, reason: str, event: Finished | None) -> None:
        """Save and show an ended reply; after a bug its text so far is saved and can continue."""
        del self.running[reply.message_id]
        ended = replace(reply.message, content=reply.text)
        try:
            ended = reply.ended(reason, event)
            self._unsaved.pop(ended.id, None)
            self._spans.store(reply.message_id, reply.spans, ended.content)
            ended = self._store.finish_message(ended) or ended
        except StoreError as error:
            self._unsaved[ended.id] = ended
            self._retry_at = self._clock() + RETRY_S
            self.report(error)
        except BaseException:
            self._store.write_partial(reply.message_id, reply.text, reply.token_ids)
            raise
        finally:
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

    def _report_end(self, reply: RunningReply, event: Finished, *, is_live: bool) -> None:
        is_full = event.reason is FinishReason.CONTEXT
        if not is_live:
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
        if reply.has_begun or reply.resumed is not None:
            earlier = reply.resumed.finish_reason if reply.resumed is not None else None
            self._end(reply, FAILED if reply.has_begun else earlier or FAILED, None)
        else:
            self._undo(reply)
        self.history.notes.add(self.history.head_id, f"{title}: {message}")

    def _can_trim(self) -> bool:
        """Whether the shown chat has earlier turns, and its last question may fit alone."""
        has_turns = len(self.history.visible()) > len(("question", "reply"))
        question = self.history.last(Speaker.USER)
        is_hopeless = question and self.n_ctx and is_surely_longer(question.content, self.n_ctx)
        return has_turns and not is_hopeless

    def undo_refused(self, *, returns_text: bool = True) -> None:
        reply, self.refused = self.refused, None
        if reply is not None and self.history.head_id == reply.message_id:
            self._undo(reply, returns_text=returns_text)

    def _undo(self, reply: RunningReply, *, returns_text: bool = True) -> None:
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
        self._release(reply)

    def _release(self, reply: RunningReply, ended: StoredMessage | None = None) -> None:
        """Unlock the chat of a reply, and show the message that it became, or the chat again."""
        if reply.lock is not None:
            reply.lock.close()
        if not self.history.is_shown(reply.chat_id):
            return
        try:
            if ended is None:
                self.history.refresh()
            else:
                self.history.replace_message(ended)
        except StoreError as error:
            self.report(error)
