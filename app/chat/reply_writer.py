"""The reply that is being written: saved as it comes, and shown where its chat is shown."""

from collections.abc import Callable
from dataclasses import replace

from app.chat.entries import Entry
from app.chat.history import ChatHistory
from app.chat.reply import Notice, RunningReply, SpanCache, UpdateBuilder
from app.store.errors import StoreError
from app.store.records import StoredMessage
from engine.events import Finished, FinishReason, TokensCommitted


class ReplyWriter:
    """Writes one reply at a time into the store.

    Args:
        history: The chat on the screen, which may be another than the reply's.
        updates: Collects what the screen has to show.
        clock: Time in seconds.
    """

    def __init__(
        self, history: ChatHistory, updates: UpdateBuilder, clock: Callable[[], float]
    ) -> None:
        self.running: RunningReply | None = None
        self.refused: RunningReply | None = None
        """The reply for which the context was full before its first token."""
        self.spans = SpanCache()
        self._history = history
        self._store = history.store
        self._updates = updates
        self._clock = clock

    @property
    def is_shown(self) -> bool:
        """A reply is being written in the chat on the screen."""
        return self.running is not None and self._history.is_shown(self.running.chat_id)

    def entries(self, vocabulary_id: str | None) -> list[Entry]:
        """What the transcript shows, oldest first.

        Args:
            vocabulary_id: That of the loaded model; None without one.
        """
        reply = self.running
        if reply is None:
            entries = self._history.entries(vocabulary_id=vocabulary_id)
        else:
            self.spans.keep(reply.message_id, reply.spans, reply.text)
            entries = self._history.entries(live_id=reply.message_id, live_text=reply.text)
        return [
            replace(entry, spans=spans) if (spans := self.spans.get(entry.key)) else entry
            for entry in entries
        ]

    def begin(self, reply: RunningReply) -> None:
        """Write this reply from now on."""
        self.refused = None
        self.running = reply
        self._updates.is_rebuilt = True

    def add(self, event: TokensCommitted) -> None:
        """Add the tokens of a round."""
        if self.running is None:
            return
        n_spans = len(self.running.spans)
        self.running.add(event)
        if self.is_shown:
            self._updates.text.append(event.text)
            self._updates.spans += self.running.spans[n_spans:]

    def save_if_due(self) -> None:
        """Save the text so far, every now and then."""
        reply = self.running
        if reply is not None and reply.is_due(self._clock()):
            self._store.write_partial(reply.message_id, reply.text, reply.token_ids)

    def cut(self, reason: str) -> None:
        """End the reply, if one is running, with the text so far."""
        if self.running is not None:
            self.end(reason, None)

    def end(self, reason: str, event: Finished | None) -> None:
        """Save the reply as it ended.

        Args:
            reason: Its finish reason.
            event: What the engine says of it; None where it ended without the engine.
        """
        is_shown = self.is_shown
        reply, self.running = self.running, None
        if reply is None:
            return
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
            what = "has no room to continue" if is_full else "is answered"
            text = f"“{reply.chat_title}” {what}: ctrl+l leads there."
            self._updates.notices.append(Notice(text))
        elif is_full:
            self._updates.context_full = f"all {event.n_cells:,} cells of the context are used"

    def take_back_refused(self, *, returns_text: bool = True) -> None:
        """Undo the question for which the context was full.

        Args:
            returns_text: Whether its text returns to the composer.
        """
        reply, self.refused = self.refused, None
        if reply is not None and self._history.head_id == reply.message_id:
            self.take_back(reply, returns_text=returns_text)

    def take_back(self, reply: RunningReply, *, returns_text: bool = True) -> None:
        """Undo a question that the engine refused."""
        self.running = None
        try:
            if reply.parent_head is None and self._history.is_shown(reply.chat_id):
                self._history.discard()
            else:
                self._store.set_head(reply.chat_id, reply.parent_head)
        except StoreError as error:
            self._updates.add_fault(error)
        if reply.prompt and returns_text:
            self._updates.draft = reply.prompt
        self._updates.is_rebuilt = True
        self._release(reply)

    def _release(self, reply: RunningReply, ended: StoredMessage | None = None) -> None:
        lock = reply.take_lock()
        if lock is not None:
            lock.close()
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
