"""The conversation between user, engine and store: what is asked, in which chat, with what outcome.

No Textual here: the screen calls `poll` once a frame and shows what the `ChatUpdate` says.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from app.cache import owner_of
from app.chat.entries import CUT_BY_CLOSE, CUT_BY_CRASH, Entry, prompt_messages
from app.chat.history import ChatHistory, RestoreRule
from app.chat.meters import Meters
from app.chat.replies import LEASED, Replies
from app.chat.snapshot import CockpitSnapshot, Phase
from app.chat.trimming import Summariser, TokenCounts, n_tokens_of
from app.chat.update import (
    READ_AHEAD,
    ChatUpdate,
    EngineLease,
    Notice,
    Severity,
    UpdateBuilder,
)
from app.config import ChatDefaults
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.store.records import Chat
from engine.configuration import Configuration, SamplingSettings, SpeculationSettings
from engine.errors import EngineError
from engine.events import (
    ENGINE_EVENTS,
    CacheChanged,
    Event,
    Failed,
    Finished,
    FinishReason,
    Loaded,
    OfReply,
    SpeculationChanged,
    TokensCounted,
    WorkerStopped,
)
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest

WITHOUT_ENGINE = "{engine-restart} tries again, {model-list} opens another model."


class Conversation:
    """One user's chats with one engine.

    Attributes:
        history: The chat that is shown.
        meters: Counters for the panels.
        replies: Those that are being written.
        counts: Tokens of what is written in the composer.
        configuration: What was asked to be loaded last.
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
        self.replies = Replies(client, self.history, self.meters, self._updates, clock=clock)
        self.limits = ChatDefaults(max_tokens=max_tokens)
        self.configuration: Configuration | None = None
        self.lease: EngineLease | None = None
        self._store = store
        self._clock = clock
        self._store_errors: SimpleQueue[StoreError] = SimpleQueue()
        store.on_error = self._store_errors.put
        self._events: deque[Event] = deque()
        """What the engine said and was not handled yet."""
        self._reads_ahead = False
        """Whether the engine reads what a new chat begins with."""
        self._engine_note: Entry | None = None
        """What the transcript says of an engine that stopped or could not load."""

    # --- what the screen reads ---

    @property
    def loaded(self) -> Loaded | None:
        """The model that is loaded, if one is."""
        return self.replies.loaded

    @property
    def blindness(self) -> str:
        """Why no image can go with a message; empty where it can, or before a model is loaded."""
        return "" if self.loaded is None else self.loaded.blindness

    @property
    def limits(self) -> ChatDefaults:
        """Where every reply ends, and its seed; sampling is each chat's own."""
        return self.replies.limits

    @limits.setter
    def limits(self, limits: ChatDefaults) -> None:
        self.replies.limits = limits

    @property
    def is_replying(self) -> bool:
        """A reply is under way, in whatever chat."""
        return bool(self.replies.running)

    @property
    def background_title(self) -> str | None:
        """The chat whose reply the panels show, where the one that is shown has none."""
        elsewhere = self.replies.elsewhere
        return elsewhere[-1].chat_title if elsewhere and self.replies.shown is None else None

    @property
    def can_ask(self) -> bool:
        """A message can be sent in the shown chat now."""
        is_free = self.has_free_slot and not self.is_leased
        return is_free and self.replies.shown is None

    @property
    def has_free_slot(self) -> bool:
        """A model is loaded, and its context has a sequence in which no reply is being made."""
        loaded = self.loaded
        return loaded is not None and len(self.replies.running) < loaded.configuration.n_slots

    @property
    def is_leased(self) -> bool:
        """The engine makes a reply that is not a chat's."""
        return self.lease is not None and self.lease.is_running

    @property
    def speculation(self) -> SpeculationSettings:
        """The settings of speculation that were asked for last."""
        return self.replies.speculation

    def entries(self) -> list[Entry]:
        """What the transcript shows, oldest first."""
        return self.replies.entries()

    def snapshot(self) -> CockpitSnapshot:
        """What the panels show."""
        reply, is_of_chat = self.replies.shown, self._is_of_chat
        return replace(
            self.meters.snapshot(reply.message_id if reply else None),
            background_title=self.background_title,
            n_beside=max(len(self.replies.running) - 1, 0),
            is_of_chat=is_of_chat,
            n_of_chat=None if is_of_chat else self._n_of_chat(),
            prompt=self.replies.prompts.get(self.history.chat.id) if self.history.chat else None,
        )

    @property
    def _is_of_chat(self) -> bool:
        """What was told of the context is of the shown chat, or of one that is answered."""
        shown = self.history.chat
        is_held = self.replies.chat_in_context == (shown.id if shown else None)
        return is_held or self.is_replying

    def _n_of_chat(self) -> int:
        """About how many tokens the shown chat has, as far as the model sees it."""
        return sum(map(n_tokens_of, self.history.visible()))

    @property
    def n_free(self) -> int | None:
        """Cells that the shown chat leaves free; None before a model is loaded."""
        if self.loaded is None or self.loaded.n_ctx is None:
            return None
        cache = self.meters.cache
        is_held = self._is_of_chat and self.background_title is None
        n_used = (cache.n_used if cache else 0) if is_held else self._n_of_chat()
        return self.loaded.n_ctx - n_used

    # --- the engine ---

    def load(self, configuration: Configuration) -> None:
        """Start the engine on a configuration; what it was doing ends."""
        self.replies.cut(FinishReason.CANCELLED)
        if self.lease is not None:
            self.lease.revoke("another model was loaded in the meantime")
            self.lease = None
        self._remove_engine_note()
        self.configuration, self.replies.loaded = configuration, None
        self._reads_ahead = False
        self.replies.speculation = configuration.speculation
        self.history.use_model(configuration.address)
        self._updates.is_rebuilt = True  # replies say which of them another model wrote
        self.meters.start_load(configuration)
        self.client.load(configuration)

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor or controller, in the middle of a reply too."""
        self.replies.speculation = settings
        self.meters.set_speculation(settings)
        self.client.set_speculation(settings)

    def stop(self) -> bool:
        """End the reply in the shown chat, whose text so far stays, its summary, or a load.

        Returns:
            False if neither runs.
        """
        reply, lease = self.replies.shown, self.lease
        if self.meters.phase is Phase.LOADING:
            self.client.stop()
        elif reply is not None and not reply.is_stopping:
            reply.is_stopping = True
            self.client.stop(reply.message_id)
        elif (
            isinstance(lease, Summariser)
            and lease.is_running
            and self.history.is_shown(lease.chat_id)
        ):
            lease.stop()
        else:
            return False
        return True

    def begin_close(self) -> None:
        """Save what came and begin to end the engine; `client.has_ended` says when it is over."""
        self.replies.cut(CUT_BY_CLOSE)
        self.client.begin_close()

    def close(self) -> None:
        """End the engine and save what came."""
        self.begin_close()
        self.client.close()

    # --- asking ---

    def send(self, text: str) -> None:
        """Ask the model.

        Raises:
            StoreError: If the text could not be saved; nothing was sent then.
        """
        self.replies.send(self.history, text)

    def edit(self, message_id: int, text: str) -> None:
        """Ask in another way, beside an earlier question; or go on behind a reply as it is now.

        The message that was there stays, as a variant.

        Raises:
            StoreError: If the text could not be saved; nothing was sent then.
        """
        self.replies.edit(self.history, message_id, text)

    def regenerate(self, message_id: int | None = None) -> bool:
        """Answer once more, beside the reply that is there; False if nothing was asked.

        Args:
            message_id: A reply, or a question to answer; the last of the chat if None.

        Raises:
            StoreError: If the new reply could not be saved; nothing was asked then.
        """
        return self.replies.regenerate(self.history, message_id) is not None

    def continue_reply(self) -> bool:
        """Continue the reply that the chat ends with, or answer its open question.

        Returns:
            False where the chat ends with neither.

        Raises:
            StoreError: If the reply could not be opened again; nothing was asked then.
        """
        return self.replies.continue_last(self.history) is not None

    # --- chats ---

    def open_chat(self, chat_id: int) -> None:
        """Show another chat; replies go on in theirs.

        Raises:
            StoreError: If the chat is gone.
        """
        self._store.chat(chat_id)  # before the shown one is left
        self._leave()
        self.history.open(chat_id)
        self._prefetch_shown()

    def new_chat(self, like: Chat | None = None) -> None:
        """Show an empty chat; it is saved with its first message.

        Args:
            like: The chat whose system prompt and sampling it has; None takes the defaults.
        """
        self._leave()
        self.history.begin(like)
        self._read_ahead()

    def fork(self, message_id: int) -> int:
        """Copy the shown chat up to one of its messages into a new chat, and show that.

        A reply that is being written is copied as if it was stopped now.

        Returns:
            The number of the new chat.

        Raises:
            StoreError: If it could not be saved.
        """
        reply = self.replies.shown
        live = reply.ended(FinishReason.CANCELLED, None) if reply is not None else None
        chat_id = self._store.fork_chat(message_id, live=live).id
        self.open_chat(chat_id)
        return chat_id

    def restore_last_chat(self, rule: RestoreRule) -> None:
        """Show the chat used last where the rule wants it and no other kvchat answers in it.

        Args:
            rule: `cut` is only where kvchat ended before the reply did, `last` always.

        Raises:
            StoreError: If the chats cannot be read.
        """
        chat = self.history.to_reopen(rule)
        if chat is None:
            return
        with suppress(StoreError):  # another kvchat deleted it just now: the empty chat stays
            self.open_chat(chat.id)

    def show_message(self, message_id: int) -> bool:
        """Show the branch of the shown chat that a message is on; False where it must stay hidden.

        A reply that is being written holds a chat at its branch.

        Raises:
            StoreError: If the message is gone.
        """
        if self.history.shown(message_id) is None:
            if self.replies.shown is not None:
                return False
            self._store.show_message(message_id)
            self.refresh()
        return self.history.shown(message_id) is not None

    def switch_variant(self, message_id: int, step: int) -> bool:
        """Show the next or the previous variant of a message; False at the last one."""
        moved = self.replies.shown is None and self.history.switch_variant(message_id, step)
        self._updates.is_rebuilt |= moved
        return moved

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat, and what the loaded model's cache keeps for it alone.

        Raises:
            StoreError: If another kvchat writes it, or it could not be deleted.
        """
        reply = self.replies.of_chat(chat_id)
        self._store.delete_chat(chat_id, None if reply is None else reply.lock)
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

    def _read_ahead(self) -> None:
        """Let an idle engine read the instruction of a new chat before the first question."""
        loaded, instruction = self.loaded, self.history.system_prompt.strip()
        is_busy = self.is_replying or self.is_leased
        if loaded is None or is_busy or self.history.head_id is not None or not instruction:
            return
        if loaded.configuration.server is None:  # a server's time costs
            request = GenerationRequest.preload(prompt_messages(instruction, ()))
            self._reads_ahead = True
            self.client.generate(request, READ_AHEAD)

    def _leave(self) -> None:
        self.replies.refused = None
        if self._reads_ahead:
            self.client.stop(READ_AHEAD)
        self._updates.is_rebuilt = True

    # --- notes and notices ---

    def offer_space(self, why: str) -> None:
        """Let the user choose what to do about a full context; `why` says what is full."""
        self._updates.context_full = why

    def report(self, error: EngineError) -> None:
        """Show an error with the next poll."""
        self.notify(Notice(str(error), error.title, "error"))

    def notify(self, notice: Notice) -> None:
        """Show a notice with the next poll."""
        self._updates.notices.append(notice)

    def toggle_note(self, message_id: int, text: str) -> None:
        """Add a note after a message, or remove it where it is there already."""
        self.history.notes.toggle(message_id, text)
        self._updates.is_rebuilt = True

    def _tell_of_engine(self, title: str, message: str, todo: str, severity: Severity) -> None:
        """Say in the transcript that there is no engine, until another one is asked for."""
        self.notify(Notice(message, title, severity, is_in_transcript=True))
        text = f"{title}: {message}\n{todo}"
        self._engine_note = self.history.notes.add(self.history.head_id, text)
        self._updates.is_rebuilt = True

    def _remove_engine_note(self) -> None:
        if self._engine_note is not None:
            self.history.notes.remove(self._engine_note)
            self._engine_note = None
            self._updates.is_rebuilt = True

    # --- events ---

    def poll(self) -> ChatUpdate:
        """Handle what the engine said since the last call, and return what changed."""
        self._events.extend(self.client.poll())
        while self._events:  # an event that cannot be handled takes none of the others along
            event = self._events.popleft()
            if isinstance(event, OfReply) and event.reply_id == READ_AHEAD:
                # The question tells what fails again.
                self._reads_ahead &= not isinstance(event.event, Finished | Failed)
            elif self.lease is None or not self.lease.take(event):
                self._take(event)
        self.replies.save_if_due()
        self._take_store_errors()
        return self._updates.take()

    def _take_store_errors(self) -> None:
        try:
            while True:
                self._updates.add_fault(self._store_errors.get_nowait())
        except Empty:
            return

    def _take(self, event: Event) -> None:
        number = 0
        if isinstance(event, OfReply):
            number, event = event.reply_id, event.event
        if number > 0:
            self.replies.take(number, event)
        elif number == 0 or isinstance(event, ENGINE_EVENTS):
            self.meters.feed(event)
            self._take_own(event)
        if isinstance(event, SpeculationChanged) and event.note is not None:
            self.notify(Notice(event.note, "Speculation"))

    def _take_own(self, event: Event) -> None:
        """Handle what the engine tells of itself."""
        match event:
            case CacheChanged():
                self.replies.chat_in_context = LEASED
            case Loaded():
                self._take_loaded(event)
            case TokensCounted():
                self.counts.take(event.key, event.n_tokens)
            case Failed(title, message) if self.loaded is None:
                self._tell_of_engine(title, message, WITHOUT_ENGINE, "error")
            case Failed(title, message):
                self.notify(Notice(message, title, "error"))
            case WorkerStopped():
                self._take_stopped(event)
            case _:
                pass

    def _take_loaded(self, event: Loaded) -> None:
        self.replies.loaded = self._updates.loaded = event
        self.counts.forget()
        self._remove_engine_note()
        self._prefetch_shown()
        self._read_ahead()
        self._updates.notices += [Notice(note) for note in event.notes]

    def _take_stopped(self, event: WorkerStopped) -> None:
        self.replies.loaded = None
        self.replies.cut(CUT_BY_CRASH)
        severity: Severity = "warning" if event.will_restart else "error"
        todo = (
            "The engine restarts automatically."
            if event.will_restart
            else "{engine-restart} restarts the engine."
        )
        self._tell_of_engine(event.title, event.message, todo, severity)
