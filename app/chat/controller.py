"""The chat between engine, store and screen: asks, saves, and says what changed.

No Textual here: the screen calls `poll` once per frame and shows what the `Change` says.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue

from app.chat.change import Change, Notice, Severity
from app.chat.continuing import known_tokens
from app.chat.entries import CUT_BY_CLOSE, CUT_BY_CRASH, FAILED, Entry
from app.chat.guest import EngineGuest
from app.chat.history import ChatHistory
from app.chat.meters import Meters
from app.chat.pieces import Piece
from app.chat.prompting import conversation
from app.chat.remembered import RememberedPieces
from app.chat.reply import RunningReply
from app.chat.snapshot import CockpitSnapshot, Phase
from app.chat.summary import Summariser
from app.store.chats import ChatStore
from app.store.errors import StoreError
from engine.client import EngineClient
from engine.configuration import (
    Configuration,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import ContextFullError
from engine.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    SpeculationChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.requests import GenerationRequest
from engine.worker_protocol import CacheAction

N_PAST_TOKENS = 32_768
"""Tokens of past replies that go with a request as material for drafts."""


def owner_of(chat_id: int) -> str:
    """Give the name by which the cache knows a chat."""
    return f"chat:{chat_id}"


class ChatController:
    """One user's conversation with one engine."""

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
        self.guest: EngineGuest | None = None
        """Takes the events of replies that are its own."""
        self.refused: RunningReply | None = None
        """The reply for which the context was full before its first token."""
        self._store = store
        self._clock = clock
        self._max_tokens = max_tokens
        self._speculation: SpeculationSettings | None = None
        self._reply: RunningReply | None = None
        self._store_errors: SimpleQueue[StoreError] = SimpleQueue()
        store.on_error = self._store_errors.put
        self._text: list[str] = []
        self._pieces: list[Piece] = []
        self._remembered = RememberedPieces()
        self._notices: list[Notice] = []
        self._is_rebuilt = True
        self._draft: str | None = None
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
    def replying_elsewhere(self) -> str | None:
        """The title of the chat that is being answered while another one is shown."""
        reply = self._reply
        if reply is None or self.history.is_shown(reply.chat_id):
            return None
        return reply.chat_title

    @property
    def can_ask(self) -> bool:
        """A message can be sent now."""
        is_free = self.meters.phase is Phase.READY and not self.is_lent
        return is_free and not self.history.is_read_only

    @property
    def is_lent(self) -> bool:
        """The engine makes a reply that is not the chat's."""
        return self.guest is not None and self.guest.is_running

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
            return self._remembered.on(self.history.entries())
        self._remembered.keep(reply.message_id, reply.pieces, reply.text)
        entries = self.history.entries(live_id=reply.message_id, live_text=reply.text)
        return self._remembered.on(entries)

    def snapshot(self) -> CockpitSnapshot:
        """What the panels show."""
        return replace(self.meters.snapshot(), elsewhere=self.replying_elsewhere)

    # --- the engine ---

    def load(self, configuration: Configuration) -> None:
        """Start the engine on a configuration, ending what it does."""
        self._cut_reply(FinishReason.CANCELLED)
        self.guest = None
        self.configuration = configuration
        self.loaded = None
        self._speculation = configuration.speculation
        self.history.uses_model(str(configuration.model_path))
        self.meters.loading(configuration)
        self.client.load(configuration)

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor or controller, in the middle of a reply too."""
        self._speculation = settings
        self.meters.speculation(settings)
        self.client.set_speculation(settings)

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

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        """Pin, unpin, drop or verify a kept state, or clear all; the cache's log says what came."""
        self.client.manage_cache(action, key)

    def stop(self) -> bool:
        """End the running reply; its text so far stays. False if none runs."""
        if isinstance(self.guest, Summariser) and self.guest.is_running:
            self.guest.stop()
            return True
        if self._reply is None or self._reply.is_stopping:
            return False
        self._reply.is_stopping = True
        self.client.stop()
        return True

    # --- asking ---

    def send(self, text: str) -> None:
        """Ask the model.

        Raises:
            StoreError: If the text could not be saved; nothing was sent then.
        """
        head = self.history.head_id
        self._ask(self.history.add_question(text, parent_id=head), text, head)

    def edit(self, message_id: int, text: str) -> None:
        """Ask in another way, beside an earlier question.

        Raises:
            StoreError: If the text could not be saved; nothing was sent then.
        """
        head = self.history.head_id
        parent_id = self.history.message(message_id).parent_id
        self._ask(self.history.add_question(text, parent_id=parent_id), text, head)

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
        self._ask(question, None, self.history.head_id)
        return True

    def continue_reply(self) -> bool:
        """Go on with the reply that the chat ends with, or answer its open question.

        Gives False where the chat ends with neither.

        Raises:
            CannotContinueError: If the reply is in another vocabulary than the loaded model's.
            StoreError: If the reply could not be opened again; nothing was asked then.
        """
        last = self.history.unfinished()
        if last is None or self.loaded is None:
            return False
        if last.role == "user" or last.parent_id is None:
            return self.regenerate(last.id)
        known_tokens(last, self.loaded.vocabulary_id)
        self._store.reopen_message(last.id)
        self.history.refresh()
        pieces = self._remembered.of(last.id, last.content) if last.content else ()
        reply = RunningReply(
            last.chat_id,
            last.id,
            "",
            self.history.head_id,
            begun=last,
            begun_pieces=pieces,
            chat_title=self.history.title,
        )
        self._begin(reply, last.parent_id)
        return True

    def _ask(self, question_id: int, prompt: str | None, head: int | None) -> None:
        name = self.configuration.model_path.stem if self.configuration else None
        vocabulary_id = self.loaded.vocabulary_id if self.loaded else None
        reply_id = self.history.add_reply(question_id, model_name=name, vocabulary_id=vocabulary_id)
        chat = self.history.chat
        if chat is None:
            raise StoreError("the chat was deleted while it was written")
        reply = RunningReply(chat.id, reply_id, prompt or "", head, chat_title=chat.title)
        self._begin(reply, question_id)

    def _begin(self, reply: RunningReply, question_id: int) -> None:
        messages = self.history.request_messages(question_id)
        self.refused = None
        self._reply = reply
        self._is_rebuilt = True
        self.meters.asked()
        self.client.generate(
            GenerationRequest(
                messages=messages,
                sampling=self.history.sampling,
                max_tokens=self._max_tokens,
                past_replies=self._past_replies(),
                owner=owner_of(reply.chat_id),
                continues=reply.token_ids,
                may_shift=self.history.is_shifted,
            )
        )

    def _past_replies(self) -> tuple[tuple[int, ...], ...]:
        """Give what the model said in the chats that are kept, where a predictor learns from it."""
        if self.loaded is None or self.speculation.predictor is not PredictorName.COMBINED:
            return ()
        try:
            return self._store.newest_replies(self.loaded.vocabulary_id, n_tokens=N_PAST_TOKENS)
        except StoreError as error:
            self._notices.append(Notice(str(error), error.title, "warning"))
            return ()

    # --- chats ---

    def open_chat(self, chat_id: int) -> None:
        """Show another chat; a running reply goes on in its own.

        Raises:
            StoreError: If the chat is gone.
        """
        self.prefetch(chat_id)
        self._leave()
        reply = self._reply
        lock = reply.take_lock() if reply is not None and reply.chat_id == chat_id else None
        self.history.open(chat_id, lock)

    def show_message(self, message_id: int) -> bool:
        """Show the branch of the shown chat that a message is on; False where it must stay hidden.

        Another kvchat, or a reply that is being written, holds a chat at its branch.

        Raises:
            StoreError: If the message is gone.
        """
        if self.history.shown(message_id) is None:
            is_busy = self._reply is not None and self.history.is_shown(self._reply.chat_id)
            if is_busy or self.history.is_read_only:
                return False
            self._store.show_message(message_id)
            self.history.refresh()
            self._is_rebuilt = True
        return self.history.shown(message_id) is not None

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat, and what the loaded model's cache keeps for it alone.

        Raises:
            StoreError: If it could not be deleted.
        """
        self._store.delete_chat(chat_id)
        self.client.forget_owner(owner_of(chat_id))

    def refresh(self) -> None:
        """Read the shown chat again.

        Raises:
            StoreError: If the chat is gone.
        """
        self.history.refresh()
        self._is_rebuilt = True

    def new_chat(self) -> None:
        """Show an empty chat; it is saved with its first message."""
        self._leave()
        self.history.begin()

    def switch_variant(self, message_id: int, step: int) -> bool:
        """Show the next or the previous variant of a message; False at the last one."""
        is_busy = self._reply is not None and self.history.is_shown(self._reply.chat_id)
        moved = not is_busy and self.history.switch_variant(message_id, step)
        self._is_rebuilt = self._is_rebuilt or moved
        return moved

    def tell(self, notice: Notice) -> None:
        """Show a notice with the next poll."""
        self._notices.append(notice)

    def say(self, text: str) -> None:
        """Put an aside into the transcript."""
        self.history.say(text)
        self._is_rebuilt = True

    def remark(self, message_id: int, text: str) -> None:
        """Put an aside behind a message, or take it away again."""
        self.history.remark(message_id, text)
        self._is_rebuilt = True

    def close(self) -> None:
        """End the engine, save what came, let the chat go."""
        self._cut_reply(CUT_BY_CLOSE)
        self.client.close()
        self.history.close()

    def _leave(self) -> None:
        self.refused = None
        lock = self.history.take_lock()
        if self._reply is not None and self.history.is_shown(self._reply.chat_id):
            self._reply.lock = lock
        elif lock is not None:
            lock.close()
        self._is_rebuilt = True

    # --- events ---

    def poll(self) -> Change:
        """Take in what the engine said since the last call."""
        for event in self.client.poll():
            if self.guest is not None and self.guest.take(event):
                continue
            self.meters.feed(event)
            self._take(event)
        if self._reply is not None and self._reply.is_due(self._clock()):
            self._store.write_partial(
                self._reply.message_id, self._reply.text, self._reply.token_ids
            )
        self._take_store_errors()
        change = Change(
            "" if self._is_rebuilt else "".join(self._text),
            self._is_rebuilt,
            tuple(self._notices),
            self._draft,
            self._just_loaded,
            () if self._is_rebuilt else tuple(self._pieces),
            self._context_full,
        )
        self._text, self._pieces, self._notices, self._is_rebuilt = [], [], [], False
        self._draft = self._just_loaded = self._context_full = None
        return change

    def _take(self, event: Event) -> None:
        match event:
            case Loaded():
                self.loaded = self._just_loaded = event
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

    def _prefetch_shown(self) -> None:
        chat = self.history.chat
        if chat is not None:
            try:
                self.prefetch(chat.id)
            except StoreError as error:
                self._notices.append(Notice(str(error), error.title, "warning"))

    def _take_tokens(self, event: TokensCommitted) -> None:
        if self._reply is None:
            return
        n_pieces = len(self._reply.pieces)
        self._reply.add(event)
        if self.history.is_shown(self._reply.chat_id):
            self._text.append(event.text)
            self._pieces += self._reply.pieces[n_pieces:]

    def _take_failed(self, event: Failed) -> None:
        reply = self._reply
        elsewhere = self.replying_elsewhere
        is_full = event.title == ContextFullError.title
        if elsewhere is not None:
            self._notices.append(Notice(event.message, f"{event.title}: {elsewhere}", "error"))
            self._cut_reply(FinishReason.CONTEXT if is_full else FAILED)
            return
        has_turns = len(self.history.seen()) > len(("question", "reply"))
        if is_full and has_turns and reply is not None and not reply.has_begun:
            self.refused = reply if reply.begun is None else None
            self._context_full = event.message
            self._cut_reply(FinishReason.CONTEXT)
            return
        self._notices.append(Notice(event.message, event.title, "error"))
        if reply is None or reply.has_begun:
            self._cut_reply(FAILED)
        elif reply.begun is not None:
            self._cut_reply(reply.begun.finish_reason or FAILED)
        else:
            self._take_back(reply)
        self.say(f"{event.title}: {event.message}")

    def _take_stopped(self, event: WorkerStopped) -> None:
        self.loaded = None
        self._cut_reply(CUT_BY_CRASH)
        severity: Severity = "warning" if event.will_restart else "error"
        todo = "It starts again by itself." if event.will_restart else "ctrl+r starts it again."
        self._notices.append(Notice(todo, event.title, severity))
        self.say(f"{event.title}: {event.message}\n{todo}")

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
        vocabulary_id = self.loaded.vocabulary_id if self.loaded else None
        text = event.text if event else reply.text
        self._remembered.keep(reply.message_id, reply.pieces, text)
        stats = reply.whole_stats(event.stats if event else None)
        try:
            self._store.finish_message(
                reply.message_id,
                content=text,
                token_ids=event.token_ids if event else reply.token_ids,
                vocabulary_id=event.vocabulary_id if event else vocabulary_id,
                seed=event.seed if event else reply.seed,
                finish_reason=reason,
                stats=asdict(stats) if stats else None,
                predictor=stats.predictor if stats else None,
                controller=stats.controller if stats else None,
            )
        except StoreError as error:
            self._notices.append(Notice(str(error), error.title, "error"))
        if event is not None and not is_shown:
            is_full = event.reason is FinishReason.CONTEXT
            what = "has no room to go on" if is_full else "is answered"
            self._notices.append(Notice(f"“{reply.chat_title}” {what}: ctrl+l leads there."))
        self._release(reply)

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

    def _release(self, reply: RunningReply) -> None:
        if reply.lock is not None:
            reply.lock.close()
        if self.history.is_shown(reply.chat_id):
            self._is_rebuilt = True
            try:
                self.history.refresh()
            except StoreError as error:
                self._notices.append(Notice(str(error), error.title, "error"))
