"""One reply of a server: its text, token ids and the server's counts.

Numbers from a server are untrusted: they are bounded to finite, non-negative values within the
reply's limit, so that lists stay short and all sums and rates are finite.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.events import (
    CacheChanged,
    CommittedToken,
    Event,
    Finished,
    FinishReason,
    GenerationStats,
    PromptProgress,
    PromptReady,
    RoundFinished,
    TokenKind,
    TokensCommitted,
)
from engine.requests import GenerationRequest

MAX_TOKENS = 1 << 24
"""Maximum tokens of a prompt or a reply."""
MAX_S = 7 * 86_400.0
"""Maximum duration in seconds that a server may report."""
MAX_TPS = 1e6
MAX_DRAFT = 128
"""Maximum tokens of one draft."""
MAX_TEXT = 1 << 24
"""Maximum characters of a reply; a server that sends more is broken."""
THINKS, ANSWERS = "<think>\n", "\n</think>\n\n"
SERVER_DRAFTS = "drafting is fixed when the server is started"


@dataclass(slots=True)
class ServedReply:
    """The received part of a reply; it may end at any moment."""

    request: GenerationRequest
    seed: int
    vocabulary_id: str
    program: str
    """Name of the predictor in the panels."""
    n_ctx: int | None = None
    start: str = ""
    """Text of the reply that is continued."""
    asked_at: float = field(default_factory=time.monotonic)
    parts: list[str] = field(default_factory=list)
    """Received texts."""
    n_text: int = 0
    """Total characters of the texts."""
    n_read: int = 0
    """Prompt tokens that the server has prefilled."""
    ids: list[int | None] = field(default_factory=list)
    """Token ids in order; None if the server omitted one."""
    has_nameless: bool = False
    """Whether a text came without token ids."""
    end_token: int | None = None
    """The end token, which is not part of the reply."""
    reason: FinishReason | None = None
    is_thinking: bool = False
    """Whether the thinking is not closed yet."""
    n_prompt: int | None = None
    n_reused: int | None = None
    n_drafted: int = 0
    n_accepted: int = 0
    n_emitted: int = 0
    rounds: list[RoundFinished] = field(default_factory=list)
    """Rounds from the server's counters, if it has them."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_tps: float | None = None
    first_token_s: float | None = None

    @property
    def text(self) -> str:
        """Received text, without `start`."""
        return "".join(self.parts)

    @property
    def has_begun(self) -> bool:
        """Whether a part of the reply was received; then the request is not repeated."""
        return bool(self.n_text or self.ids or self.n_emitted)

    @property
    def n_progress(self) -> int:
        """Measure of progress that grows with the server's work."""
        return self.n_read + self.n_text

    @property
    def max_tokens(self) -> int:
        """Upper bound of the tokens that a server can report."""
        limit = self.request.max_tokens
        return MAX_TOKENS if limit is None else min(limit, MAX_TOKENS)

    def merge_reasoning(self, thought: str, text: str) -> str:
        """Join separate thinking and text to one reply with thinking markers."""
        if thought and not self.is_thinking and not self.n_text:
            self.is_thinking, thought = True, THINKS + thought
        if text and self.is_thinking:
            self.is_thinking, text = False, ANSWERS + text
        return thought + text

    def read(self, n_done: int, n_total: int, n_reused: int) -> PromptProgress:
        """Record progress of the prefill."""
        n_done, n_reused = min(n_done, n_total), min(n_reused, n_total)
        self.n_prompt, self.n_reused = n_total, n_reused
        self.n_read = max(self.n_read, n_done)
        return PromptProgress(n_done, n_total, n_reused)

    def begun(self) -> list[Event]:
        """The events of the first token."""
        if self.first_token_s is not None:
            return []
        self.first_token_s = time.monotonic() - self.asked_at
        read_s = self.prefill_s or self.first_token_s
        ready = PromptReady(self.n_prompt or 0, n_hot=self.n_reused or 0, elapsed_s=read_s)
        return [ready, *self.cells()]

    def commit_text(
        self,
        text: str,
        token: int | None = None,
        *,
        n_tokens: int = 1,
        kind: TokenKind = TokenKind.PLAIN,
        source: str | None = None,
    ) -> TokensCommitted:
        """Event of a text with `n_tokens` tokens, the last one `token`."""
        if token is None:
            return TokensCommitted((), text, n_unnamed=n_tokens)
        committed = CommittedToken(token, kind, source)
        return TokensCommitted((committed,), text, (len(text),), n_unnamed=n_tokens - 1)

    def round(self, n_drafted: int, n_accepted: int, n_emitted: int, elapsed_s: float) -> Event:
        """Event of a finished round from the server's counters."""
        return RoundFinished(
            n_drafted=n_drafted,
            n_verified=n_drafted,
            n_examined=min(n_accepted + 1, n_drafted),
            n_accepted=n_accepted,
            n_emitted=n_emitted,
            source=self.program if n_drafted else None,
            length=n_drafted,
            next_length=n_drafted,
            reason=SERVER_DRAFTS,
            draft_s=0.0,
            verify_s=elapsed_s,
            elapsed_s=elapsed_s,
            plain_step_s=None,
            verdicts=(True,) * n_accepted + (False,) * (n_drafted - n_accepted),
        )

    def record(self, event: Event) -> None:
        """Record an event, so that `finish` includes it."""
        if isinstance(event, TokensCommitted):
            self.parts.append(event.text)
            self.n_text += len(event.text)
            self.n_emitted += len(event.tokens) + event.n_unnamed
            self.has_nameless |= not event.tokens
            if event.tokens:
                self.ids += [None] * event.n_unnamed
                self.ids += [each.token for each in event.tokens]
        elif isinstance(event, RoundFinished):
            self.rounds.append(event)

    def cells(self) -> list[Event]:
        """Events about the used cells, if the size of the context is known."""
        if self.n_ctx is None or self.n_prompt is None:
            return []
        return [CacheChanged(min(self.n_prompt + self.n_emitted, self.n_ctx), self.n_ctx, None)]

    def finish(self, reason: FinishReason) -> Finished:
        """End the reply, complete or not."""
        ids = tuple(token for token in self.ids if token is not None)
        is_whole = len(ids) == len(self.ids) and not self.has_nameless
        if is_whole and ids and ids[-1] == self.end_token:
            ids = ids[:-1]
        n_used = (self.n_prompt or 0) + self.n_emitted
        stats = replace(
            GenerationStats().with_rounds(self.rounds),
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_drafted=self.n_drafted,
            n_verified=self.n_drafted,
            n_accepted=self.n_accepted,
            n_emitted=self.n_emitted or (None if self.n_text else 0),
            prefill_s=self.prefill_s,
            first_token_s=self.first_token_s,
            decode_s=self.decode_s,
            decode_tps=self.decode_tps,
            predictor=self.program if self.n_drafted else None,
        )
        return Finished(
            reason,
            self.start + self.text,
            (*self.request.continues, *ids) if is_whole else (),
            self.vocabulary_id,
            self.seed,
            stats,
            n_used=min(n_used, self.n_ctx or MAX_TOKENS),
            n_cells=self.n_ctx or n_used,
        )


def bound_number(value: object, limit: float) -> float:
    """Bound a number to 0 to `limit`; 0 if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(min(max(value, 0), limit))


def count_of(sent: Mapping[str, object], name: str, limit: int = MAX_TOKENS) -> int:
    """A count, rounded down; 0 if missing."""
    return int(bound_number(sent.get(name), limit))


def seconds_of(sent: Mapping[str, object], name: str, unit_s: float) -> float:
    """A time in seconds that is sent in units of `unit_s`; 0 if missing."""
    return bound_number(sent.get(name), MAX_S / unit_s) * unit_s


def size_of(value: object) -> int | None:
    """A size such as a context's; None if invalid."""
    return id_of(value) or None


def id_of(value: object) -> int | None:
    """A token id; None if invalid."""
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if is_id and isinstance(value, int) else None
