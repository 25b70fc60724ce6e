"""One reply: the text as its tokens come, where they came from, and its figures."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from app.chat.snapshot import added_savings
from app.store.database import ChatLock
from app.store.errors import StoreError
from app.store.records import StoredMessage, stats_of
from engine.events import Finished, GenerationStats, Loaded, TokenKind, TokensCommitted
from engine.speculation.stats import added_positions, added_sources, speedup_of

SAVE_EVERY_S = 0.4
"""Time between two partial saves; with the store's own half second less than one is lost."""
N_REPLIES = 64
"""Replies of which a `SpanCache` keeps the spans."""

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A part of a reply whose tokens came in the same way."""

    text: str
    kind: TokenKind | None = None
    """None where it is not known, as in a reply that was read from the database."""
    source: str | None = None
    """Who drafted it."""


def spans_of(event: TokensCommitted) -> Iterator[TokenSpan]:
    """The text of one round by its tokens; text that was held back belongs to the last."""
    start = 0
    for token, length in zip_longest(event.tokens, event.lengths):
        if token is None or length is None:
            break
        if length:
            yield TokenSpan(event.text[start : start + length], token.kind, token.source)
        start += length
    if start < len(event.text):
        last = event.tokens[-1] if event.tokens else None
        kind, source = (last.kind, last.source) if last is not None else (None, None)
        yield TokenSpan(event.text[start:], kind, source)


def merged_spans(spans: Iterable[TokenSpan]) -> list[TokenSpan]:
    """The same text with neighbours of one kind and source as one span."""
    merged: list[TokenSpan] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and (last.kind, last.source) == (span.kind, span.source):
            merged[-1] = TokenSpan(last.text + span.text, span.kind, span.source)
        else:
            merged.append(span)
    return merged


def cut_spans(spans: Iterable[TokenSpan], text: str) -> tuple[TokenSpan, ...] | None:
    """The spans up to the length of `text`, None where they do not spell it.

    A finished reply may be shorter than what was shown of it: a stop string is taken away.
    """
    kept: list[TokenSpan] = []
    left = text
    for span in spans:
        part = span.text[: len(left)]
        if not left.startswith(part):
            return None
        if part:
            kept.append(TokenSpan(part, span.kind, span.source))
        left = left[len(part) :]
    return None if left else tuple(kept)


def joined_stats(before: GenerationStats, after: GenerationStats) -> GenerationStats:
    """The statistics of a whole reply from those of its first and its second part.

    Counts and times are sums, speeds are those of the sums. What holds for one moment is the second
    part's: its prompt, which contained the first part, the plain step, and who drafted at the end.
    The wait for the first token is the first part's.
    """
    decode_s = before.decode_s + after.decode_s
    n_emitted = before.n_emitted + after.n_emitted
    saved_s, saved_error_s = added_savings(before, after)
    return replace(
        after,
        n_rounds=before.n_rounds + after.n_rounds,
        n_drafted=before.n_drafted + after.n_drafted,
        n_verified=before.n_verified + after.n_verified,
        n_examined=before.n_examined + after.n_examined,
        n_accepted=before.n_accepted + after.n_accepted,
        n_emitted=n_emitted,
        by_source=added_sources(before.by_source, after.by_source),
        by_position=added_positions(before.by_position, after.by_position),
        n_near_ties=before.n_near_ties + after.n_near_ties,
        n_redecoded=before.n_redecoded + after.n_redecoded,
        prefill_s=before.prefill_s + after.prefill_s,
        first_token_s=before.first_token_s,
        decode_s=decode_s,
        decode_tps=n_emitted / decode_s if decode_s > 0 else None,
        saved_s=saved_s,
        saved_error_s=saved_error_s,
        tokens_per_round=_tokens_per_round(before, after),
        speedup=None if saved_s is None else speedup_of(saved_s, decode_s),
    )


def _tokens_per_round(before: GenerationStats, after: GenerationStats) -> float | None:
    if not before.tokens_per_round or not after.tokens_per_round:
        return after.tokens_per_round or before.tokens_per_round
    n_passes = before.n_emitted / before.tokens_per_round + after.n_emitted / after.tokens_per_round
    return (before.n_emitted + after.n_emitted) / n_passes if n_passes else None


class RunningReply:
    """Collects what the engine commits for one message."""

    def __init__(
        self,
        message: StoredMessage,
        prompt: str,
        parent_head: int | None,
        *,
        vocabulary_id: str | None = None,
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
        self.vocabulary_id = vocabulary_id
        """The vocabulary of its tokens: that of the model which was asked."""
        self.chat_title = chat_title
        self.resumed = resumed
        """The reply as it was when it was cut; None for a new one."""
        self.lock: ChatLock | None = None
        """Set once the chat is no longer shown, so that it stays locked to the end."""
        self.is_stopping = False
        self.spans = list(resumed_spans)
        """The text so far by where its tokens came from."""
        self._texts = [resumed.content] if resumed is not None else []
        self._token_ids = list(resumed.token_ids or ()) if resumed is not None else []
        self._n_resumed = len(self._token_ids)
        self._saved_at = 0.0
        self._has_unsaved = False

    @property
    def chat_id(self) -> int:
        """The chat that it is part of."""
        return self.message.chat_id

    @property
    def message_id(self) -> int:
        """The message that it becomes."""
        return self.message.id

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of the tokens so far."""
        return tuple(self._token_ids)

    @property
    def has_begun(self) -> bool:
        """At least one token came since it was asked for."""
        return len(self._token_ids) > self._n_resumed

    @property
    def _seed(self) -> int | None:
        return self.resumed.seed if self.resumed is not None else None

    def _whole_stats(self, of_this_part: GenerationStats | None) -> GenerationStats | None:
        """The statistics of the reply together with the part that was there before."""
        before = stats_of(self.resumed) if self.resumed is not None else None
        if before is None or of_this_part is None:
            return of_this_part or before
        return joined_stats(before, of_this_part)

    def ended(self, reason: str, event: Finished | None) -> StoredMessage:
        """The message as the reply ended.

        Args:
            reason: Its finish reason.
            event: What the engine says of it; None where it ended without the engine.
        """
        stats = self._whole_stats(event.stats if event else None)
        return replace(
            self.message,
            content=event.text if event else self.text,
            token_ids=event.token_ids if event else self.token_ids,
            vocabulary_id=event.vocabulary_id if event else self.vocabulary_id,
            seed=event.seed if event else self._seed,
            finish_reason=reason,
            stats=asdict(stats) if stats else None,
            predictor=stats.predictor if stats else None,
            controller=stats.controller if stats else None,
        )

    def take_lock(self) -> ChatLock | None:
        """The lock of the chat, which is the caller's from now on."""
        lock, self.lock = self.lock, None
        return lock

    def add(self, event: TokensCommitted) -> None:
        """Add the tokens of a round."""
        self._texts.append(event.text)
        self.spans += spans_of(event)
        self._token_ids += [token.token for token in event.tokens]
        self._has_unsaved = True

    def is_due(self, now: float) -> bool:
        """Whether a partial save is due; counts as done when it is."""
        if not self._has_unsaved or now - self._saved_at < SAVE_EVERY_S:
            return False
        self._saved_at = now
        self._has_unsaved = False
        return True


class SpanCache:
    """Where the tokens of the newest replies came from, by message id; never saved."""

    def __init__(self) -> None:
        self._spans: OrderedDict[int, tuple[TokenSpan, ...]] = OrderedDict()

    def keep(self, message_id: int, spans: Iterable[TokenSpan], text: str) -> None:
        """Keep the spans of a reply, cut to its text, unless they do not spell that."""
        known = cut_spans(merged_spans(spans), text)
        if known:
            self._spans[message_id] = known
            self._spans.move_to_end(message_id)
        if len(self._spans) > N_REPLIES:
            self._spans.popitem(last=False)

    def get(self, message_id: int) -> tuple[TokenSpan, ...]:
        """The spans of a message; empty where they are not known."""
        return self._spans.get(message_id, ())

    def spelling(self, message_id: int, text: str) -> tuple[TokenSpan, ...]:
        """Spans that spell a text: those of the message, or one of unknown origin."""
        known = self.get(message_id)
        if "".join(span.text for span in known) == text:
            return known
        return (TokenSpan(text),)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user is shown once."""

    message: str
    title: str = ""
    severity: Severity = "information"
    is_in_transcript: bool = False
    """The transcript says it too: who sees that needs no notice."""


@dataclass(frozen=True, slots=True)
class ChatUpdate:
    """What one poll changed."""

    text: str = ""
    """New text of the live reply."""
    is_rebuilt: bool = False
    """The entries are others than before."""
    notices: tuple[Notice, ...] = ()
    draft: str | None = None
    """A text that was sent and comes back, because the engine refused it."""
    loaded: Loaded | None = None
    spans: tuple[TokenSpan, ...] = ()
    """The new text by where its tokens came from."""
    context_full: str | None = None
    """Why the shown chat's reply has no room: the user has to choose what goes."""


@dataclass(slots=True)
class UpdateBuilder:
    """Collects what changes until the next poll takes it."""

    text: list[str] = field(default_factory=list)
    spans: list[TokenSpan] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    is_rebuilt: bool = True
    draft: str | None = None
    loaded: Loaded | None = None
    context_full: str | None = None

    def add_fault(self, error: StoreError) -> None:
        """Add a notice that the database could not be read or written."""
        self.notices.append(Notice(str(error), error.title, "error"))

    def take(self) -> ChatUpdate:
        """All that was collected since the last call."""
        update = ChatUpdate(
            "" if self.is_rebuilt else "".join(self.text),
            self.is_rebuilt,
            tuple(self.notices),
            self.draft,
            self.loaded,
            () if self.is_rebuilt else tuple(self.spans),
            self.context_full,
        )
        self.text, self.spans, self.notices, self.is_rebuilt = [], [], [], False
        self.draft = self.loaded = self.context_full = None
        return update
