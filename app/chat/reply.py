"""One reply while it is written: its text and tokens so far, and the message that it becomes."""

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

    Its token ids are all of its text's or none: where it goes on behind a text whose ids only the
    engine knows, `Finished` brings them.
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
        """As it is stored while it streams."""
        self.prompt = prompt
        """The user's text; it returns to the composer if the engine refuses it before a token."""
        self.parent_head = parent_head
        """The chat's head before the text was sent."""
        self.vocabulary_id = message.vocabulary_id
        """The vocabulary of its tokens: that of the model which was asked."""
        self.chat_title = chat_title
        self.resumed = resumed
        """What it goes on behind: the reply as it was cut, or as the user wrote it; else None."""
        self.lock: FileLock | None = None
        """Of its chat, until the reply has ended."""
        self.is_stopping = False
        self.has_begun = False
        """At least one token came since it was asked for."""
        self.spans = list(resumed_spans)
        """The text so far by where its tokens came from."""
        self._texts = [resumed.content] if resumed is not None else []
        self._token_ids: list[int] | None = list(self.known_ids)
        if self.resumed_text and not self._token_ids:
            self._token_ids = None
        self._ready: PromptReady | None = None
        self._rounds: list[RoundFinished] = []
        """What was counted of this part: its statistics where the engine ends without any."""
        self._n_emitted = 0
        self._saved_at = 0.0
        self._has_unsaved = False

    @property
    def chat_id(self) -> int:
        """The chat that it is part of."""
        return self.message.chat_id

    @property
    def message_id(self) -> int:
        """The message that it becomes; the engine knows the reply by this number."""
        return self.message.id

    @property
    def resumed_text(self) -> str:
        """The text that it goes on behind."""
        return self.resumed.content if self.resumed is not None else ""

    @property
    def known_ids(self) -> tuple[int, ...]:
        """Ids of that text, or of a similar one, in the vocabulary of the model that is asked."""
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
        """The ids of the tokens so far; none where those of its start are not known."""
        return tuple(self._token_ids or ())

    @property
    def _seed(self) -> int | None:
        return self.resumed.seed if self.resumed is not None else None

    def forget_ids(self) -> None:
        """Take the ids of its start for those of another text, which the user has changed."""
        self._token_ids = None

    @property
    def stats_before(self) -> GenerationStats | None:
        """The statistics of the part that was there before."""
        return stats_of(self.resumed) if self.resumed is not None else None

    def _whole_stats(self, of_this_part: GenerationStats | None) -> GenerationStats | None:
        """The statistics of the whole reply; None where its first part was not counted."""
        before = self.stats_before
        if of_this_part is None or not self.resumed_text:
            return of_this_part or before
        return None if before is None else before + of_this_part

    def _counted(self) -> GenerationStats | None:
        """The statistics of this part as far as it came; None where nothing did."""
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
        """The message as the reply ended.

        Args:
            reason: Its finish reason.
            event: What the engine says of it; None where it ended without the engine.
        """
        start = self.resumed
        if event is None and not self.has_begun and start and start.id == self.message_id:
            return replace(start, finish_reason=reason)
        stats = self._whole_stats(event.stats if event else self._counted())
        return replace(
            self.message,
            content=event.text if event else self.text,
            token_ids=event.token_ids if event else self.token_ids,
            vocabulary_id=event.vocabulary_id if event else self.vocabulary_id,
            seed=event.seed if event else self._seed,
            finish_reason=reason,
            stats=stats.figures() if stats else None,
            predictor=stats.predictor if stats else None,
            controller=stats.controller if stats else None,
        )

    def add(self, event: TokensCommitted) -> list[TokenSpan]:
        """Add the tokens of a round; the result is its text by where the tokens came from."""
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
        """Note what the engine counted."""
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
