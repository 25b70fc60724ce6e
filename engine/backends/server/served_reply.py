"""One reply of a server: its text, the ids that came, and the server's own counts.

A server may send anything as a number. What is taken is finite, not negative and at most what the
reply's limit allows, so that no list of its length is long and every sum and rate is finite.
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

MOST_TOKENS = 1 << 24
"""Tokens of a prompt or a reply."""
MAX_S = 7 * 86_400.0
"""Seconds that a server may say that it took."""
MAX_TPS = 1e6
MAX_DRAFT = 128
"""Tokens of one draft."""
MAX_TEXT = 1 << 24
"""Characters of a reply behind which a server is taken for broken."""
THINKS, ANSWERS = "<think>\n", "\n</think>\n\n"
SERVER_DRAFTS = "drafting is fixed when the server is started"


@dataclass(slots=True)
class ServedReply:
    """What comes of one request; it may end at any moment with what there is."""

    request: GenerationRequest
    seed: int
    vocabulary_id: str
    program: str
    """Who drafts, as panels call it."""
    n_ctx: int | None = None
    start: str = ""
    """Text of the reply that is continued."""
    asked_at: float = field(default_factory=time.monotonic)
    parts: list[str] = field(default_factory=list)
    """Texts as they came."""
    n_text: int = 0
    """Characters of them."""
    n_read: int = 0
    """Tokens of the prompt that the server says it has read."""
    ids: list[int | None] = field(default_factory=list)
    """Ids of the tokens in their order; None where the server left one out."""
    has_nameless: bool = False
    """Whether text came without the id of any token."""
    end_token: int | None = None
    """The token that ended the turn, which is no part of the reply."""
    reason: FinishReason | None = None
    is_thinking: bool = False
    """Whether its thoughts are not closed yet."""
    n_prompt: int | None = None
    n_reused: int | None = None
    n_drafted: int = 0
    n_accepted: int = 0
    n_emitted: int = 0
    rounds: list[RoundFinished] = field(default_factory=list)
    """What its counters told of each, where they do."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_tps: float | None = None
    first_token_s: float | None = None

    @property
    def text(self) -> str:
        """Text that came, without `start`."""
        return "".join(self.parts)

    def woven(self, thought: str, text: str) -> str:
        """Thoughts and text that came apart, as a template writes them into one reply."""
        if thought and not self.is_thinking and not self.n_text:
            self.is_thinking, thought = True, THINKS + thought
        if text and self.is_thinking:
            self.is_thinking, text = False, ANSWERS + text
        return thought + text

    @property
    def has_begun(self) -> bool:
        """Whether something of the reply came: it is not asked for again then."""
        return bool(self.n_text or self.ids or self.n_emitted)

    @property
    def n_progress(self) -> int:
        """Grows with what the server has done for the reply."""
        return self.n_read + self.n_text

    @property
    def most_tokens(self) -> int:
        """More than these no server counts rightly."""
        limit = self.request.max_tokens
        return MOST_TOKENS if limit is None else min(limit, MOST_TOKENS)

    def read(self, n_done: int, n_total: int, n_reused: int) -> PromptProgress:
        """The server has read a part of the prompt."""
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
        """Text came, and the last of the `n_tokens` that spell it; `take` makes it the reply's."""
        if token is None:
            return TokensCommitted((), text, n_unnamed=n_tokens)
        told = CommittedToken(token, kind, source)
        return TokensCommitted((told,), text, (len(text),), n_unnamed=n_tokens - 1)

    def round(self, n_drafted: int, n_accepted: int, n_emitted: int, elapsed_s: float) -> Event:
        """The server has finished a round, as its counters say."""
        is_missed = n_accepted < n_drafted
        return RoundFinished(
            n_drafted=n_drafted,
            n_verified=n_drafted,
            n_examined=n_accepted + is_missed,
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

    def take(self, event: Event) -> None:
        """Make an event the reply's: what is not taken here is not in `finished`."""
        match event:
            case TokensCommitted():
                self.parts.append(event.text)
                self.n_text += len(event.text)
                self.n_emitted += len(event.tokens) + event.n_unnamed
                self.has_nameless |= not event.tokens
                if event.tokens:
                    self.ids += [None] * event.n_unnamed
                    self.ids += [each.token for each in event.tokens]
            case RoundFinished():
                self.rounds.append(event)
            case _:
                pass

    def cells(self) -> list[Event]:
        """How full the context is, where the server tells how large it is."""
        if self.n_ctx is None or self.n_prompt is None:
            return []
        n_used = min(self.n_prompt + self.n_emitted, self.n_ctx)
        return [CacheChanged(n_used, self.n_ctx, None)]

    def finish(self, reason: FinishReason) -> Finished:
        """The reply as it is, whole or cut."""
        ids = tuple(token for token in self.ids if token is not None)
        is_whole = len(ids) == len(self.ids) and not self.has_nameless
        if is_whole and ids and ids[-1] == self.end_token:
            ids = ids[:-1]
        n_prompt = self.n_prompt or 0
        return Finished(
            reason,
            self.start + self.text,
            (*self.request.continues, *ids) if is_whole else (),
            self.vocabulary_id,
            self.seed,
            self.stats(),
            n_used=min(n_prompt + self.n_emitted, self.n_ctx or MOST_TOKENS),
            n_cells=self.n_ctx or n_prompt + self.n_emitted,
        )

    def stats(self) -> GenerationStats:
        """The counts as the server gave them."""
        return replace(
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


def bound_number(value: object, most: float) -> float:
    """A number from 0 to `most`; 0 where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(min(max(value, 0), most))


def count_of(sent: Mapping[str, object], name: str, most: int = MOST_TOKENS) -> int:
    """A count, rounded down; 0 where there is none."""
    return int(bound_number(sent.get(name), most))


def seconds_of(sent: Mapping[str, object], name: str, unit_s: float) -> float:
    """A time in seconds; 0 where there is none.

    Args:
        sent: What a server sent.
        name: Of the time.
        unit_s: Seconds of the unit that it is in.
    """
    return bound_number(sent.get(name), MAX_S / unit_s) * unit_s


def size_of(value: object) -> int | None:
    """A size such as a context's; None where it is none that can be."""
    return id_of(value) or None


def id_of(value: object) -> int | None:
    """A token's id; None where it is none that can be."""
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if is_id and isinstance(value, int) else None


def rate_of(n: int, elapsed_s: float) -> float | None:
    """Tokens a second; None where nothing was counted or timed."""
    return min(n / elapsed_s, MAX_TPS) if n > 0 and elapsed_s > 0 else None
