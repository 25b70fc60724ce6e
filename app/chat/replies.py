"""A chat's replies: what the engine says of them becomes messages, text and notices.

No Textual here: the screen calls `poll` once per frame and shows what the `ChatUpdate` says.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import Protocol

from app.chat.entries import CUT_BY_CRASH, FAILED, Entry, Speaker, conversation
from app.chat.history import ChatHistory
from app.chat.meters import Meters
from app.chat.remembered import SpanCache
from app.chat.reply import RunningReply, TokenSpan
from app.chat.snapshot import CockpitSnapshot, Phase
from app.chat.trimming import is_surely_longer
from app.chat.update import ChatUpdate, Notice, Severity
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import StoredMessage
from engine.configuration import (
    Configuration,
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
    WorkerStopped,
)
from engine.process.protocol import EngineClient

GUEST = 0
"""In place of a chat's number, which is never 0."""
WITHOUT_ENGINE = "ctrl+r tries once more, ctrl+o opens another model."
LOOK_EVERY_S = 2.0
"""How often a chat that another kvchat writes is looked at, in seconds."""


class EngineLease(Protocol):
    """Who uses the chat's engine for replies of its own while the chat waits."""

    @property
    def is_running(self) -> bool:
        """A reply of its own is under way."""
        ...

    def revoke(self, why: str) -> None:
        """The engine is taken away: no event of its replies comes any more."""
        ...

    def take(self, event: Event) -> bool:
        """Take in an event; False for one that the chat should have."""
        ...


class ChatReplies:
    """Takes in what the engine says about the replies of one user's chats."""

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
        self.configuration: Configuration | None = None
        """What was asked to be loaded last."""
        self.loaded: Loaded | None = None
        self.lease: EngineLease | None = None
        """Takes the events of replies that are its own."""
        self.refused: RunningReply | None = None
        """The reply for which the context was full before its first token."""
        self._store = store
        self._clock = clock
        self._max_tokens = max_tokens
        self._speculation: SpeculationSettings | None = None
        self._reply: RunningReply | None = None
        self._cells_of: int | None = None
        """The chat that the context holds; None while it is empty, `GUEST` a guest's text."""
        self._store_errors: SimpleQueue[StoreError] = SimpleQueue()
        store.on_error = self._store_errors.put
        self._text: list[str] = []
        self._spans: list[TokenSpan] = []
        self._remembered = SpanCache()
        self._notices: list[Notice] = []
        self._is_rebuilt = True
        self._look_at = 0.0
        """When the lock of a chat that another kvchat writes is tried again."""
        self._draft: str | None = None
        self._engine_note: Entry | None = None
        """What the transcript says of an engine that stopped or could not load."""
        self._just_loaded: Loaded | None = None
        self._context_full: str | None = None

    # --- what the screen reads ---

    @property
    def is_replying(self) -> bool:
        """A reply is under way, in whatever chat."""
        return self._reply is not None

    @property
    def replying_chat_id(self) -> int | None:
        """The chat that a reply is being written in."""
        return self._reply.chat_id if self._reply else None

    @property
    def background_title(self) -> str | None:
        """The title of the chat that is being answered while another one is shown."""
        reply = self._reply
        if reply is None or self.history.is_shown(reply.chat_id):
            return None
        return reply.chat_title

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

    def entries(self) -> list[Entry]:
        """What the transcript shows, oldest first."""
        reply = self._reply
        if reply is None:
            vocabulary_id = self.loaded.vocabulary_id if self.loaded else None
            return self._remembered.on(self.history.entries(vocabulary_id=vocabulary_id))
        self._remembered.keep(reply.message_id, reply.spans, reply.text)
        entries = self.history.entries(live_id=reply.message_id, live_text=reply.text)
        return self._remembered.on(entries)

    def snapshot(self) -> CockpitSnapshot:
        """What the panels show."""
        shown, elsewhere = self.history.chat, self.background_title
        is_of_chat = elsewhere is not None or self._cells_of == (shown.id if shown else None)
        return replace(self.meters.snapshot(), background_title=elsewhere, is_of_chat=is_of_chat)

    def prefetch(self, chat_id: int) -> None:
        """Bring what is kept of a chat from disk into memory, so that its next reply starts soon.

        Raises:
            StoreError: If the chat cannot be read.
        """
        chat = self._store.chat(chat_id)
        if self.loaded is not None and chat.head_id is not None:
            path = self._store.path_to(chat.head_id)
            self.client.prefetch(
                conversation(
                    chat.system_prompt, path, kept_from=chat.kept_from, summary=chat.summary
                )
            )

    def _prefetch_shown(self) -> None:
        """The same for the shown chat, which is read already."""
        head = self.history.head_id
        if self.loaded is not None and head is not None:
            self.client.prefetch(self.history.request_messages(head))

    def tell(self, notice: Notice) -> None:
        """Show a notice with the next poll."""
        self._notices.append(notice)

    def say(self, text: str) -> Entry:
        """Put an aside into the transcript; `history.unsay` takes it away."""
        self._is_rebuilt = True
        return self.history.say(text)

    def toggle_note(self, message_id: int, text: str) -> None:
        """Put an aside behind a message, or take it away again."""
        self.history.toggle_note(message_id, text)
        self._is_rebuilt = True

    # --- events ---

    def poll(self) -> ChatUpdate:
        """Take in what the engine said since the last call."""
        for event in self.client.poll():
            if self.lease is not None and self.lease.take(event):
                continue
            self.meters.feed(event)
            self._take(event)
        if self._reply is not None and self._reply.is_due(self._clock()):
            self._store.write_partial(
                self._reply.message_id, self._reply.text, self._reply.token_ids
            )
        self._take_over()
        self._take_store_errors()
        change = ChatUpdate(
            "" if self._is_rebuilt else "".join(self._text),
            self._is_rebuilt,
            tuple(self._notices),
            self._draft,
            self._just_loaded,
            () if self._is_rebuilt else tuple(self._spans),
            self._context_full,
        )
        self._text, self._spans, self._notices, self._is_rebuilt = [], [], [], False
        self._draft = self._just_loaded = self._context_full = None
        return change

    def _take_over(self) -> None:
        """Look now and then whether a chat that another kvchat wrote can be written here."""
        if not self.history.is_read_only or self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_EVERY_S
        try:
            if self.history.take_over():
                self._is_rebuilt = True
                self._notices.append(Notice("No other kvchat writes this chat any more."))
        except StoreError as error:
            self._notices.append(Notice(str(error), error.title, "error"))

    def _take(self, event: Event) -> None:
        match event:
            case CacheChanged() if self.is_leased:
                self._cells_of = GUEST
            case CacheChanged() if self._reply is not None:
                self._cells_of = self._reply.chat_id
            case Loaded():
                self.loaded = self._just_loaded = event
                self._forget_engine_note()
                self._is_rebuilt = True  # what can go on depends on the model
                self._prefetch_shown()
                self._notices += [Notice(note) for note in event.notes]
            case TokensCommitted():
                self._take_tokens(event)
            case Finished():
                self._end_reply(event.reason, event)
            case SpeculationChanged(note=str(note)):
                self._notices.append(Notice(note, "Speculation"))
            case Failed():
                self._take_failed(event)
            case WorkerStopped():
                self._take_stopped(event)
            case _:
                pass

    def _take_tokens(self, event: TokensCommitted) -> None:
        if self._reply is None:
            return
        n_pieces = len(self._reply.spans)
        self._reply.add(event)
        if self.history.is_shown(self._reply.chat_id):
            self._text.append(event.text)
            self._spans += self._reply.spans[n_pieces:]

    def _take_failed(self, event: Failed) -> None:
        reply = self._reply
        elsewhere = self.background_title
        is_full = event.title == ContextFullError.title
        if elsewhere is not None:
            self._notices.append(Notice(event.message, f"{event.title}: {elsewhere}", "error"))
            self._cut_reply(FinishReason.CONTEXT if is_full else FAILED)
            return
        if is_full and self._can_make_room() and reply is not None and not reply.has_begun:
            self.refused = reply if reply.resumed is None else None
            self._context_full = event.message
            self._cut_reply(FinishReason.CONTEXT)
            return
        message = event.message
        if is_full and self.can_have_a_larger_context:
            message += ". F2 plans a larger context"
        self._notices.append(Notice(message, event.title, "error", is_in_transcript=True))
        if reply is None or reply.has_begun:
            self._cut_reply(FAILED)
        elif reply.resumed is not None:
            self._cut_reply(reply.resumed.finish_reason or FAILED)
        else:
            self._take_back(reply)
        if self.loaded is None:
            self._engine_note = self.say(f"{event.title}: {message}\n{WITHOUT_ENGINE}")
        else:
            self.say(f"{event.title}: {message}")

    def _can_make_room(self) -> bool:
        """Whether the shown chat has more than its last question, and that has room alone."""
        seen, loaded = self.history.seen(), self.loaded
        has_turns = len(seen) > len(("question", "reply"))
        question = self.history.last(Speaker.USER)
        is_hopeless = question and loaded and is_surely_longer(question.content, loaded.n_ctx)
        return has_turns and not is_hopeless

    @property
    def can_have_a_larger_context(self) -> bool:
        """Whether the model was trained on more tokens than its context has."""
        loaded = self.loaded
        return loaded is not None and loaded.n_ctx < loaded.n_ctx_train

    def _take_stopped(self, event: WorkerStopped) -> None:
        self.loaded = self._cells_of = None
        self._cut_reply(CUT_BY_CRASH)
        severity: Severity = "warning" if event.will_restart else "error"
        todo = "It starts again by itself." if event.will_restart else "ctrl+r starts it again."
        self._notices.append(Notice(todo, event.title, severity, is_in_transcript=True))
        self._engine_note = self.say(f"{event.title}: {event.message}\n{todo}")

    def _forget_engine_note(self) -> None:
        """Take away what was said of an engine that did not run: another one is asked for."""
        if self._engine_note is not None:
            self.history.unsay(self._engine_note)
            self._engine_note = None
            self._is_rebuilt = True

    def _take_store_errors(self) -> None:
        try:
            while True:
                error = self._store_errors.get_nowait()
                self._notices.append(Notice(str(error), error.title, "error"))
        except Empty:
            return

    # --- how a reply ends ---

    def _cut_reply(self, reason: str) -> None:
        """End the running reply with what came of it, without the engine's own account."""
        if self._reply is not None:
            self._end_reply(reason, None)

    def _end_reply(self, reason: str, event: Finished | None) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        is_shown = self.history.is_shown(reply.chat_id)
        if event is not None and event.reason is FinishReason.CONTEXT and is_shown:
            self._context_full = f"all {event.n_cells:,} cells of the context are used"
        text = event.text if event else reply.text
        self._remembered.keep(reply.message_id, reply.spans, text)
        stats = reply.whole_stats(event.stats if event else None)
        ended = replace(
            reply.message,
            content=text,
            token_ids=event.token_ids if event else reply.token_ids,
            vocabulary_id=event.vocabulary_id if event else reply.vocabulary_id,
            seed=event.seed if event else reply.seed,
            finish_reason=reason,
            stats=asdict(stats) if stats else None,
            predictor=stats.predictor if stats else None,
            controller=stats.controller if stats else None,
        )
        try:
            stored = self._store.finish_message(
                ended.id,
                content=ended.content,
                token_ids=ended.token_ids,
                vocabulary_id=ended.vocabulary_id,
                seed=ended.seed,
                finish_reason=reason,
                stats=ended.stats,
                predictor=ended.predictor,
                controller=ended.controller,
            )
            ended = stored or ended
        except StoreError as error:
            self._notices.append(Notice(str(error), error.title, "error"))
        if event is not None and not is_shown:
            is_full = event.reason is FinishReason.CONTEXT
            what = "has no room to go on" if is_full else "is answered"
            self._notices.append(Notice(f"“{reply.chat_title}” {what}: ctrl+l leads there."))
        self._release(reply, ended)

    def take_back_refused(self, *, gives_text: bool = True) -> None:
        """Undo the question for which the context was full.

        Args:
            gives_text: Whether its text goes back to the composer.
        """
        reply, self.refused = self.refused, None
        if reply is not None and self.history.head_id == reply.message_id:
            reply.prompt = reply.prompt if gives_text else ""
            self._take_back(reply)

    def _take_back(self, reply: RunningReply) -> None:
        """Undo a question that the engine refused; its text goes back to the composer."""
        self._reply = None
        try:
            if reply.parent_head is None and self.history.is_shown(reply.chat_id):
                self.history.discard()
            else:
                self._store.set_head(reply.chat_id, reply.parent_head)
        except StoreError as error:
            self._notices.append(Notice(str(error), error.title, "error"))
        if reply.prompt:
            self._draft = reply.prompt
        self._is_rebuilt = True
        self._release(reply)

    def _release(self, reply: RunningReply, ended: StoredMessage | None = None) -> None:
        if reply.lock is not None:
            reply.lock.close()
        if self.history.is_shown(reply.chat_id):
            self._is_rebuilt = True
            try:
                if ended is None:
                    self.history.refresh()
                else:
                    self.history.change(ended)
            except StoreError as error:
                self._notices.append(Notice(str(error), error.title, "error"))
