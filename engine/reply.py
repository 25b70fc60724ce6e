"""One reply while it is made."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.backends.base import Vocabulary
from engine.events import CommittedToken, FinishReason, TokenKind
from engine.recall import Recalled
from engine.requests import GenerationRequest
from engine.sampling.sampler import Sampler
from engine.speculation.cost import Stopwatch
from engine.speculation.stats import ReplyStats
from engine.speculation.verify import Verdict
from engine.text.detokenizer import StreamingText


@dataclass(slots=True)
class Reply:
    """What one reply collects: its line of tokens, its text, its figures, and how it ended."""

    request: GenerationRequest
    sampler: Sampler
    tokens: list[int]
    """The prompt's and the reply's; the last one is pending."""
    n_prompt: int
    """Tokens before the reply."""
    text: StreamingText
    stats: ReplyStats
    watch: Stopwatch
    recalled: Recalled
    note: str | None = None
    """Why less of earlier tokens was used again than could have been, if so."""
    unread: Tokens[int] = ()
    """The end of the prompt before the pending token, if the first round reads it."""
    ended: FinishReason | None = None
    end_token: int | None = None

    @property
    def n_generated(self) -> int:
        """Tokens of the reply, the one that ended the turn included."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_new(self) -> int:
        """Tokens of the reply that this request made: those it goes on behind are none."""
        return self.n_generated - len(self.request.continues)

    @property
    def generated(self) -> tuple[int, ...]:
        """Tokens of the reply, without the one that ended the turn."""
        end = len(self.tokens) - (self.end_token is not None)
        return tuple(self.tokens[self.n_prompt : end])

    def out_of_room(self, n_ctx: int) -> FinishReason | None:
        """Give why no further token may be made, None while one may."""
        limit = self.request.max_tokens
        if limit is not None and self.n_new >= limit:
            return FinishReason.LENGTH
        if len(self.tokens) > n_ctx:
            return FinishReason.CONTEXT
        return None

    def commit(
        self,
        draft: tuple[int, ...],
        verdict: Verdict,
        sources: tuple[str, ...],
        vocabulary: Vocabulary,
    ) -> tuple[list[CommittedToken], list[str]]:
        """Add the accepted tokens and the next one, up to an end token or a stop string.

        Returns:
            The tokens, and the text that became showable with each but an end token.
        """
        committed: list[CommittedToken] = []
        shown: list[str] = []
        added = () if verdict.next_token is None else (verdict.next_token,)
        for index, token in enumerate((*draft[: verdict.n_accepted], *added)):
            kind = _kind(index, len(draft), verdict)
            source = sources[min(index, len(draft) - 1)] if draft else None
            margin = verdict.margins[index] if verdict.margins else None
            committed.append(CommittedToken(token, kind, source, margin))
            self.tokens.append(token)
            if vocabulary.is_end(token):
                self.ended, self.end_token = FinishReason.END, token
                break
            shown.append(self.text.push(vocabulary.piece(token)))
            if self.text.stopped_by is not None:
                self.ended = FinishReason.STOP_STRING
                break
        return committed, shown


def _kind(index: int, n_drafted: int, verdict: Verdict) -> TokenKind:
    if not n_drafted:
        return TokenKind.PLAIN
    if index < verdict.n_accepted:
        return TokenKind.DRAFT
    return TokenKind.BONUS if verdict.n_accepted == n_drafted else TokenKind.CORRECTION
