"""One reply while it is written: its text and tokens so far, and its message."""

from dataclasses import InitVar, dataclass, field, replace

from app.chat.meters import ReplyMeter
from app.chat.spans import TokenSpan, spans_of
from app.store.records import StoredMessage, stats_of
from engine.events import Finished, GenerationStats, TokensCommitted
from engine.files import FileLock

SAVE_EVERY_S = 0.4
"""Time between two partial saves; with the store's own half second less than one is lost."""


@dataclass(slots=True, eq=False)
class RunningReply:
    """Collects what the engine commits for one message.

    The token ids cover the whole text, or there are none: `Finished` has them if the reply
    continues a text whose ids only the engine knows.
    """

    message: StoredMessage
    """The message as it is stored while it streams; its id is that of the reply."""
    chat_title: str
    prompt: str = ""
    """The user's text, which returns to the composer if the engine refuses it."""
    parent_head: int | None = None
    """The chat's head before the text was sent."""
    resumed: StoredMessage | None = None
    """The text that the reply continues: as it was cut off, or as the user wrote it."""
    spans: list[TokenSpan] = field(default_factory=list)
    """The text so far by the origin of its tokens."""
    is_rewritten: InitVar[bool] = False
    """Whether the user changed the continued text: its ids are then used for reuse only."""
    lock: FileLock | None = None
    """Lock of its chat, until the reply has ended."""
    is_stopping: bool = False
    has_begun: bool = False
    """Whether a token came since it was requested."""
    meter: ReplyMeter | None = None
    """Counts of the reply; None before it was requested."""
    _token_ids: list[int] | None = None
    _saved_at: float = 0.0
    _has_unsaved: bool = False

    def __post_init__(self, is_rewritten: bool) -> None:
        if not is_rewritten and (self.known_ids or not self.resumed_text):
            self._token_ids = list(self.known_ids)

    @property
    def chat_id(self) -> int:
        return self.message.chat_id

    @property
    def message_id(self) -> int:
        return self.message.id

    @property
    def resumed_text(self) -> str:
        return self.resumed.content if self.resumed is not None else ""

    @property
    def known_ids(self) -> tuple[int, ...]:
        """Ids of the continued text, or of the text before the user changed it, for this model."""
        start = self.resumed
        if start is None or start.vocabulary_id != self.message.vocabulary_id:
            return ()
        return start.token_ids or ()

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids so far; none if those of its start are not known."""
        return tuple(self._token_ids or ())

    @property
    def stats_before(self) -> GenerationStats | None:
        return stats_of(self.resumed) if self.resumed is not None else None

    def add(self, event: TokensCommitted) -> list[TokenSpan]:
        """Add the tokens of a round and return their spans."""
        added = list(spans_of(event))
        self.spans += added
        if self._token_ids is not None:
            self._token_ids += [token.token for token in event.tokens]
        self.has_begun |= bool(event.tokens or event.text)
        self._has_unsaved = True
        return added

    def is_due(self, now: float) -> bool:
        """Whether a partial save is due; counts as done when it is."""
        if not self._has_unsaved or now - self._saved_at < SAVE_EVERY_S:
            return False
        self._saved_at = now
        self._has_unsaved = False
        return True

    def ended(self, reason: str, event: Finished | None) -> StoredMessage:
        """The message of the ended reply; `event` is None if it ended without the engine."""
        start, message = self.resumed, self.message
        if event is None and not self.has_begun and start and start.id == self.message_id:
            return replace(start, finish_reason=reason)
        counted = self.meter.counted() if self.meter and self.has_begun else None
        stats = self._whole_stats(event.stats if event else counted)
        if event is None:
            content, token_ids, seed = self.text, self.token_ids, start.seed if start else None
        else:
            content, token_ids, seed = event.text, event.token_ids, event.seed
        return replace(
            message,
            content=content,
            token_ids=token_ids,
            vocabulary_id=event.vocabulary_id if event else message.vocabulary_id,
            seed=seed,
            finish_reason=reason,
            stats=stats.figures() if stats else None,
            predictor=stats.predictor if stats else None,
            controller=stats.controller if stats else None,
        )

    def _whole_stats(self, of_this_part: GenerationStats | None) -> GenerationStats | None:
        """The statistics of the whole reply; None if its first part was not counted."""
        before = self.stats_before
        if of_this_part is None or not self.resumed_text:
            return of_this_part or before
        return None if before is None else before + of_this_part
