"""A running reply: its tokens, text and statistics."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.backends.base import Sequence as DecodedSequence
from engine.backends.base import Vocabulary
from engine.cache.recall import Recalled
from engine.clock import Stopwatch
from engine.events import (
    CommittedToken,
    FinishReason,
    GenerationStats,
    PromptReady,
    RoundFinished,
    TokenKind,
    TokensCommitted,
)
from engine.generation.thinking import ThinkingWatch
from engine.grammar.mask import GrammarMask
from engine.requests import GenerationRequest
from engine.sampling import Sampler
from engine.speculation.costs import PlainStep
from engine.speculation.drafter import Draft
from engine.speculation.stats import TimeSaved
from engine.speculation.verify import Verdict


class StreamingText:
    """Converts the bytes of tokens to text that can be shown.

    Incomplete characters are held back; invalid bytes become U+FFFD. The longest suffix that may
    be the start of a stop string is held back too. After a stop string it returns no more text.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(text for text in stop if text)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.text = ""
        """All text returned so far."""
        self.stopped_by: str | None = None
        """The stop string that ended the text."""

    def push(self, data: bytes) -> str:
        """Add the bytes of a token; return the new text."""
        if self.stopped_by is not None:
            return ""
        self._held += self._decoder.decode(data)
        if not self._stop:
            return self._release(len(self._held))
        end = self._first_stop()
        if end is None:
            end = len(self._held) - self._n_waiting()
        return self._release(end)

    def resume(self, data: bytes) -> None:
        """Add the bytes of a continued reply's text, without returning it."""
        self.text += self._decoder.decode(data)

    def finish(self) -> str:
        """Return the text held back; an incomplete character is dropped."""
        return self._release(len(self._held)) if self.stopped_by is None else ""

    def _release(self, end: int) -> str:
        shown = self._held[:end]
        self._held = "" if self.stopped_by is not None else self._held[end:]
        self.text += shown
        return shown

    def _first_stop(self) -> int | None:
        found = [(at, text) for text in self._stop if (at := self._held.find(text)) >= 0]
        if not found:
            return None
        at, self.stopped_by = min(found, key=lambda pair: (pair[0], -len(pair[1])))
        return at

    def _n_waiting(self) -> int:
        """Length of the longest suffix of the held text that starts a stop string."""
        longest = 0
        for text in self._stop:
            for n in range(min(len(text) - 1, len(self._held)), longest, -1):
                if self._held.endswith(text[:n]):
                    longest = n
                    break
        return longest


@dataclass(slots=True)
class Reply:
    """State of a reply: its tokens, text, statistics and finish reason."""

    request: GenerationRequest
    sampler: Sampler
    tokens: list[int]
    """Tokens of prompt and reply; the last one is pending."""
    n_prompt: int
    """Number of tokens before the reply."""
    text: StreamingText
    stats: GenerationStats
    """Without the rounds."""
    watch: Stopwatch
    recalled: Recalled
    found: PromptReady
    """The reused part of the prompt, and why it was not longer."""
    thinking: ThinkingWatch
    marker_tokens: frozenset[int] = frozenset()
    """Control tokens shown in the text: they separate thinking and answer."""
    n_lasting: int = 0
    """Length of the prompt's prefix that the next prompt shares; 0 if all of it or unknown."""
    rounds: list[RoundFinished] = field(default_factory=list)
    saved: TimeSaved = field(default_factory=TimeSaved)
    ended: FinishReason | None = None
    end_token: int | None = None

    @property
    def sequence(self) -> DecodedSequence:
        """The reply's sequence."""
        return self.recalled.sequence

    def record_round(
        self,
        draft: Draft,
        verdict: Verdict,
        n_emitted: int,
        times: tuple[float, float, float],
        plain: PlainStep,
        *,
        is_alone: bool,
    ) -> RoundFinished:
        """The event of a round, without the next length and its reason.

        Args:
            draft: The round's draft.
            verdict: The outcome of its verification.
            n_emitted: Tokens that it committed.
            times: Seconds since the round before, of drafting, and of the batch.
            plain: The plain step to compare with.
            is_alone: Whether the batch had no other reply's step; otherwise time is not compared.
        """
        n_verified, draft_s, elapsed_s = len(draft.tokens), times[1], sum(times)
        # Drafted tokens after the reply's end do not count as accepted.
        n_accepted = min(verdict.n_accepted, n_emitted)
        if is_alone:
            self.saved.add(
                plain,
                n_verified=n_verified,
                n_emitted=n_emitted,
                draft_s=draft_s,
                elapsed_s=elapsed_s,
            )
        return RoundFinished(
            n_drafted=draft.n_drafted,
            n_verified=n_verified,
            n_examined=min(verdict.n_examined, n_emitted),
            n_accepted=n_accepted,
            n_emitted=n_emitted,
            source=draft.source,
            length=n_verified,
            next_length=0,
            reason="",
            draft_s=draft_s,
            verify_s=times[2],
            elapsed_s=elapsed_s,
            plain_step_s=plain.seconds,
            plain_spread=plain.spread,
            saved_s=self.saved.seconds,
            saved_error_s=self.saved.error_s,
            verdicts=tuple(index < n_accepted for index in range(n_verified)),
            n_near_ties=verdict.n_near_ties,
        )

    @property
    def totals(self) -> GenerationStats:
        """The statistics with all rounds and the thinking."""
        stats, thought = self.stats.with_rounds(self.rounds), self.thinking.last
        if thought is None:
            return stats
        return replace(stats, n_thinking=thought.n_tokens, thinking_s=thought.elapsed_s)

    @property
    def generated_tokens(self) -> tuple[int, ...]:
        """Tokens of the reply without the end token."""
        end = len(self.tokens) - (self.end_token is not None)
        return tuple(self.tokens[self.n_prompt : end])

    @property
    def fits_grammar(self) -> bool | None:
        """Whether the text so far completely matches the grammar; None without one."""
        mask = self.sampler.mask
        if not isinstance(mask, GrammarMask):
            return None
        return mask.is_satisfied(self.tokens[: self.n_prompt + len(self.generated_tokens)])

    def n_left(self, n_ctx: int) -> int:
        """Tokens that may still be added, by max_tokens and the context."""
        n_left, limit = n_ctx + 1 - len(self.tokens), self.request.max_tokens
        return n_left if limit is None else min(n_left, limit - self._n_new)

    def limit_reached(self, n_ctx: int) -> FinishReason | None:
        """The limit that is reached; None if another token may be generated."""
        if self.n_left(n_ctx) > 0:
            return None
        limit = self.request.max_tokens
        is_length = limit is not None and self._n_new >= limit
        return FinishReason.LENGTH if is_length else FinishReason.CONTEXT

    @property
    def _n_new(self) -> int:
        """Number of the reply's tokens without those that the request continues."""
        return len(self.tokens) - self.n_prompt - len(self.request.continues)

    def add(self, tokens: Sequence[int], vocabulary: Vocabulary) -> TokensCommitted:
        """Add tokens that were not sampled; their text is shown."""
        self.tokens += tokens
        shown = [self._push(token, vocabulary) for token in tokens]
        committed = tuple(CommittedToken(token, TokenKind.PLAIN) for token in tokens)
        return TokensCommitted(committed, "".join(shown), tuple(map(len, shown)))

    def commit(self, draft: Draft, verdict: Verdict, vocabulary: Vocabulary) -> TokensCommitted:
        """Add the accepted and the next token, up to an end token or a stop string."""
        committed: list[CommittedToken] = []
        shown: list[str] = []
        added = () if verdict.next_token is None else (verdict.next_token,)
        source = draft.source if draft.tokens else None
        for index, token in enumerate((*draft.tokens[: verdict.n_accepted], *added)):
            kind = _kind(index, len(draft.tokens), verdict)
            margin = verdict.margins[index] if verdict.margins else None
            committed.append(CommittedToken(token, kind, source, margin))
            self.tokens.append(token)
            if vocabulary.is_end(token):
                self.ended, self.end_token = FinishReason.END, token
            elif token in self.request.sampling.stop_tokens:
                self.ended, self.end_token = FinishReason.STOP_TOKEN, token
            else:
                shown.append(self._push(token, vocabulary))
                if self.text.stopped_by is not None:
                    self.ended = FinishReason.STOP_STRING
            if self.ended is not None:
                break
        return TokensCommitted(tuple(committed), "".join(shown), tuple(map(len, shown)))

    def _push(self, token: int, vocabulary: Vocabulary) -> str:
        return self.text.push(vocabulary.piece(token, special=token in self.marker_tokens))


def _kind(index: int, n_drafted: int, verdict: Verdict) -> TokenKind:
    if not n_drafted:
        return TokenKind.PLAIN
    if index < verdict.n_accepted:
        return TokenKind.DRAFT
    return TokenKind.BONUS if verdict.n_accepted == n_drafted else TokenKind.CORRECTION
