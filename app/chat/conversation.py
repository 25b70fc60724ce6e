"""The chat between engine, store and screen: asks, saves, and leads from chat to chat.

What becomes of the engine's events is in `app.chat.replies`.
"""

from dataclasses import replace

from app.cache.cached_chats import owner_of
from app.chat.entries import CUT_BY_CLOSE, is_out_of_room, known_tokens
from app.chat.replies import ChatReplies
from app.chat.reply import RunningReply
from app.chat.snapshot import Phase
from app.chat.trimming import Summariser
from app.chat.update import Notice
from app.store.errors import StoreError
from engine.configuration import (
    Configuration,
    PredictorName,
    SpeculationSettings,
)
from engine.errors import ContextFullError
from engine.events import (
    FinishReason,
)
from engine.process.protocol import CacheAction
from engine.requests import GenerationRequest

N_PAST_TOKENS = 32_768
"""Tokens of past replies that go with a request as material for drafts."""


class Conversation(ChatReplies):
    """One user's conversation with one engine."""

    # --- the engine ---

    def load(self, configuration: Configuration) -> None:
        """Start the engine on a configuration, ending what it does."""
        self._cut_reply(FinishReason.CANCELLED)
        if self.lease is not None:
            self.lease.revoke("a model was loaded meanwhile")
            self.lease = None
        self._forget_engine_note()
        self.configuration = configuration
        self.loaded = self._cells_of = None
        self._speculation = configuration.speculation
        self.history.uses_model(str(configuration.model_path))
        self.meters.loading(configuration)
        self.client.load(configuration)

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Switch predictor or controller, in the middle of a reply too."""
        self._speculation = settings
        self.meters.speculation(settings)
        self.client.set_speculation(settings)

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        """Pin, unpin, drop or verify a kept state, or clear all; the cache's log says what came."""
        self.client.manage_cache(action, key)

    def stop(self) -> bool:
        """End the running reply, whose text so far stays, or a load. False if neither runs."""
        if self.meters.phase is Phase.LOADING:
            self.client.stop()
            return True
        if isinstance(self.lease, Summariser) and self.lease.is_running:
            self.lease.stop()
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
        self._ask(text, parent_id=self.history.head_id)

    def edit(self, message_id: int, text: str) -> None:
        """Ask in another way, beside an earlier question.

        Raises:
            StoreError: If the text could not be saved; nothing was sent then.
        """
        self._ask(text, parent_id=self.history.message(message_id).parent_id)

    def ask_in(self, chat_id: int | None, text: str, edited: int | None = None) -> int:
        """Ask in a chat that is not shown, and give its number.

        Args:
            chat_id: The chat; None begins one.
            text: What is asked.
            edited: The question that it takes the place of.

        Raises:
            StoreError: If the chat is gone or written by another kvchat, or saving failed.
            ContextFullError: If the reply before had no room.
        """
        shown, other = self.history, self.history.beside(chat_id)
        self.history = other
        try:
            last = other.unfinished()
            if other.is_read_only:
                raise StoreError(f"another kvchat writes “{other.title}”: close it there first")
            if last is not None and is_out_of_room(last):
                raise ContextFullError(f"“{other.title}” has no room to go on: open it (ctrl+l)")
            if edited is None:
                self.send(text)
            else:
                self.edit(edited, text)
            assert self._reply is not None
            self._reply.lock = other.take_lock()
            return self._reply.chat_id
        finally:
            self.history = shown
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
        self._ask(None, parent_id=question)
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
        question_id = last.parent_id
        if last.role == "user" or question_id is None:
            return self.regenerate(last.id)
        # A reply without text has none that could be shown as its beginning: it is made anew.
        vocabulary_id = self.loaded.vocabulary_id
        resumed = replace(last, token_ids=known_tokens(last, vocabulary_id))
        self._store.reopen_message(last.id)
        last = replace(last, finish_reason=None)
        self.history.change(last)
        spans = self._remembered.of(last.id, last.content) if last.content else ()
        reply = RunningReply(
            last,
            "",
            self.history.head_id,
            vocabulary_id=vocabulary_id,
            resumed=resumed,
            resumed_spans=spans,
            chat_title=self.history.title,
        )
        self._begin(reply, question_id)
        return True

    def _ask(self, question: str | None, *, parent_id: int | None) -> None:
        head = self.history.head_id
        vocabulary_id = self.loaded.vocabulary_id if self.loaded else None
        message = self.history.add_turn(
            question,
            parent_id=parent_id,
            model_name=self.configuration.model_path.stem if self.configuration else None,
            vocabulary_id=vocabulary_id,
        )
        assert message.parent_id is not None
        reply = RunningReply(
            message,
            question or "",
            head,
            vocabulary_id=vocabulary_id,
            chat_title=self.history.title,
        )
        self._begin(reply, message.parent_id)

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
        self._store.chat(chat_id)  # before the shown one is let go
        self._leave()
        reply = self._reply
        lock = reply.take_lock() if reply is not None and reply.chat_id == chat_id else None
        self.history.open(chat_id, lock)
        self._prefetch_shown()

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

    def begin_close(self) -> None:
        """Save what came and begin to end the engine; `client.has_ended` tells when it is over."""
        self._cut_reply(CUT_BY_CLOSE)
        self.client.begin_close()

    def close(self) -> None:
        """End the engine, save what came, let the chat go."""
        self.begin_close()
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
