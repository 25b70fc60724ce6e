"""One reply while it is written: its text and tokens so far, and its message."""

from collections.abc import Sequence
from dataclasses import replace

from app.chat.spans import TokenSpan, spans_of
from app.store.records import StoredMessage, stats_of
from engine.events import Finished, GenerationStats, PromptReady, RoundFinished, TokensCommitted
from engine.files import FileLock

SAVE_EVERY_S = 0.4
"""Time between two partial saves; with the store's own half second less than one is lost."""


class RunningReply:
    """Collects what the engine commits for one message.

    Its token ids cover the whole text, or there are none: `Finished` brings them if the reply
    continues a text whose ids only the engine knows.

    Args:
        message: The message as it is stored while it streams.
        prompt: The user's text, which returns to the composer if the engine refuses it.
        parent_head: The chat's head before the text was sent.
        resumed: The text that the reply continues: as it was cut, or as the user wrote it.
        resumed_spans: The spans of that text.
        chat_title: Title of its chat.
    """

    def __init__(
        self,
        message: StoredMessage,
        *,
        prompt: str = "",
        parent_head: int | None = None,
        resumed: StoredMessage | None = None,
        resumed_spans: Sequence[TokenSpan] = (),
        chat_title: str = "",
    ) -> None:
        self.message = message
        self.prompt = prompt
        self.parent_head = parent_head
        self.vocabulary_id = message.vocabulary_id
        self.chat_title = chat_title
        self.resumed = resumed
        self.lock: FileLock | None = None
        """Lock of its chat, until the reply has ended."""
        self.is_stopping = False
        self.has_begun = False
        """At least one token came since it was asked for."""
        self.spans = list(resumed_spans)
        self._texts = [resumed.content] if resumed is not None else []
        self._token_ids: list[int] | None = list(self.known_ids)
        if self.resumed_text and not self._token_ids:
            self._token_ids = None
        self._ready: PromptReady | None = None
        self._rounds: list[RoundFinished] = []
        """Counts of this part: its statistics if the engine ends without any."""
        self._n_emitted = 0
        self._saved_at = 0.0
        self._has_unsaved = False

    @property
    def chat_id(self) -> int:
        """The chat of its message."""
        return self.message.chat_id

    @property
    def message_id(self) -> int:
        """Its message, and its id in the engine."""
        return self.message.id

    @property
    def resumed_text(self) -> str:
        """The text that it continues."""
        return self.resumed.content if self.resumed is not None else ""

    @property
    def known_ids(self) -> tuple[int, ...]:
        """Token ids of that text, or of a similar one, in the vocabulary of its model."""
        start = self.resumed
        if start is None or start.vocabulary_id != self.vocabulary_id:
            return ()
        return start.token_ids or ()

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids so far; none if those of its start are not known."""
        return tuple(self._token_ids or ())

    def forget_ids(self) -> None:
        """Use the ids of its start for reuse only: the user has changed that text."""
        self._token_ids = None

    @property
    def stats_before(self) -> GenerationStats | None:
        """The statistics of the continued part."""
        return stats_of(self.resumed) if self.resumed is not None else None

    def _whole_stats(self, of_this_part: GenerationStats | None) -> GenerationStats | None:
        """The statistics of the whole reply; None if its first part was not counted."""
        before = self.stats_before
        if of_this_part is None or not self.resumed_text:
            return of_this_part or before
        return None if before is None else before + of_this_part

    def _counted(self) -> GenerationStats | None:
        if not self.has_begun:
            return None
        ready = self._ready or PromptReady(0)
        counted = GenerationStats(
            n_prompt=ready.n_prompt,
            n_reused=ready.n_hot + ready.n_warm + ready.n_cold,
            prefill_s=ready.elapsed_s,
        )
        return replace(counted.with_rounds(self._rounds), n_emitted=self._n_emitted)

    def ended(self, reason: str, event: Finished | None) -> StoredMessage:
        """The message of the ended reply; `event` is None if it ended without the engine."""
        start = self.resumed
        if event is None and not self.has_begun and start and start.id == self.message_id:
            return replace(start, finish_reason=reason)
        stats = self._whole_stats(event.stats if event else self._counted())
        return replace(
            self.message,
            content=event.text if event else self.text,
            token_ids=event.token_ids if event else self.token_ids,
            vocabulary_id=event.vocabulary_id if event else self.vocabulary_id,
            seed=event.seed if event else (start.seed if start else None),
            finish_reason=reason,
            stats=stats.figures() if stats else None,
            predictor=stats.predictor if stats else None,
            controller=stats.controller if stats else None,
        )

    def add(self, event: TokensCommitted) -> list[TokenSpan]:
        """Add the tokens of a round and return their spans."""
        added = list(spans_of(event))
        self._texts.append(event.text)
        self.spans += added
        if self._token_ids is not None:
            self._token_ids += [token.token for token in event.tokens]
        self._n_emitted += len(event.tokens) + event.n_unnamed
        self.has_begun |= bool(event.tokens or event.text)
        self._has_unsaved = True
        return added

    def count(self, event: PromptReady | RoundFinished) -> None:
        """Store counts of the engine."""
        if isinstance(event, PromptReady):
            self._ready = event
        else:
            self._rounds.append(event)

    def is_due(self, now: float) -> bool:
        """Whether a partial save is due; counts as done when it is."""
        if not self._has_unsaved or now - self._saved_at < SAVE_EVERY_S:
            return False
        self._saved_at = now
        self._has_unsaved = False
        return True
