"""Events of the engine: frozen values that a session yields and a worker sends.

There are no callbacks; the caller of a session pulls the events. Counts are separate, none is
derived from another: drafted; verified (drafted tokens in a verify batch); examined (verified up
to the first miss); accepted; emitted. Refuted is verified minus accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from math import hypot
from operator import add
from typing import Literal

from engine.cache.report import CacheReport
from engine.configuration import Configuration
from engine.memory.units import BufferSize as BufferSize


class TokenKind(StrEnum):
    """Origin of a committed token."""

    PLAIN = "plain"
    """Sampled in a round without a draft."""
    DRAFT = "draft"
    """Drafted and accepted."""
    BONUS = "bonus"
    """Sampled after a completely accepted draft."""
    CORRECTION = "correction"
    """Sampled instead of the first refuted draft token."""


class FinishReason(StrEnum):
    """Why a reply ended."""

    END = "end"
    """The model ended its turn."""
    STOP_STRING = "stop string"
    STOP_TOKEN = "stop token"
    """One of `SamplingSettings.stop_tokens` was generated."""
    LENGTH = "length"
    """`max_tokens` was reached."""
    CONTEXT = "context"
    """Every cell of the context is used."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model is ready; the first event of a session."""

    model_name: str
    file_type: str
    """Quantisation as llama.cpp names it, such as `Q4_1`; empty if a server does not report it."""
    n_vocab: int | None
    """None if a server does not report it; `n_ctx` and `n_ctx_train` likewise."""
    n_ctx: int | None
    n_ctx_train: int | None
    can_crop: bool
    has_chat_template: bool
    vocabulary_id: str
    """Fingerprint of the vocabulary; token ids are only valid if it is equal."""
    configuration: Configuration
    predictors: tuple[str, ...]
    """Names of the available predictors; `draft` needs a draft model."""
    buffers: tuple[BufferSize, ...] = ()
    notes: tuple[str, ...] = ()
    """Messages for the user, such as a fallback that was used."""
    elapsed_s: float = 0.0
    blindness: str = ""
    """Why messages cannot have images, to follow `is an image, but`; empty if they can."""
    n_threads: tuple[int, int] | None = None
    """Threads of decode steps and of prefills, until a `ThreadsChanged`."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Progress of the prefill."""

    n_done: int
    """Prompt tokens in the cache, including reused ones."""
    n_total: int
    """Tokens of the prompt."""
    n_reused: int


class ReadCause(StrEnum):
    """Why prompt tokens were computed although the chat had them before."""

    FIRST = "first prompt"
    """The chat had no prompt since the model was loaded."""
    EDITED = "edited"
    REASONING = "reasoning stripped"
    """The template omits the reasoning of an earlier reply."""
    TEMPLATE = "template"
    """The template renders the same messages differently, for example a date or an end of turn."""
    TRIMMED = "trimmed"
    """Turns were dropped to fit the context."""
    SETTINGS = "other settings"
    """Thinking was switched, or the adapters changed."""
    EVICTED = "evicted"
    """No tier holds the tokens any more."""
    UNCUT = "cannot be truncated"
    """A longer sequence starts with the tokens, but this model's cache cannot be truncated."""


@dataclass(frozen=True, slots=True)
class PromptReady:
    """The prompt is in the cache, reused or computed; generation starts."""

    n_prompt: int
    n_hot: int = 0
    """Tokens reused from the context."""
    n_copied: int = 0
    """Hot tokens that were copied from another sequence of the context."""
    n_warm: int = 0
    """Tokens restored from RAM."""
    n_cold: int = 0
    """Tokens restored from disk."""
    elapsed_s: float = 0.0
    """Prefill time, without restoring."""
    restore_s: float = 0.0
    """Time to restore saved states."""
    reused_prefill_s: float | None = None
    """Estimated prefill time of the reused tokens; None before a prefill was timed."""
    computed_restore_s: float | None = None
    """Estimated time to restore as many tokens as were computed; None before the first restore."""
    n_common: int | None = None
    """Length of the prefix shared with the chat's previous prompt and reply; None without one, or
    if a server does not report it."""
    cause: ReadCause | None = None
    """Why the prompt differs after that prefix; None if it only continues it."""
    miss_cause: ReadCause | None = None
    """Why less than the common prefix was reused; None if all of it was."""
    text_before: str = ""
    """The last tokens before the first difference."""
    old_text: str = ""
    """The previous text from the first difference on, its first tokens."""
    new_text: str = ""
    """The prompt from the first difference on, its first tokens."""
    note: str | None = None
    """Why the token ids of a reply were not reused, or what reuse cost in precision."""

    @property
    def n_reused(self) -> int:
        """Tokens that were not computed."""
        return self.n_hot + self.n_warm + self.n_cold

    @property
    def n_read(self) -> int:
        """Tokens that were computed."""
        return self.n_prompt - self.n_reused


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """One token of the reply."""

    token: int
    kind: TokenKind
    source: str | None = None
    """Predictor of the token; for a correction, of the token it replaces; for a bonus token, of the
    token before it. None in plain rounds."""
    margin: float | None = None
    """Lead over the second best token in logits, including the sampling noise; None with
    `rejection`, which does not compare."""


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """Tokens of one round and the text that can be shown because of them.

    The text never ends inside a character or with the start of a possible stop string, so it may
    be empty and lag the tokens.
    """

    tokens: tuple[CommittedToken, ...]
    text: str
    lengths: tuple[int, ...] = ()
    """Characters of the text per token; their sum is less than the text at the end of a reply, when
    held-back text follows."""
    n_unnamed: int = 0
    """Further tokens whose ids a server does not report."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """Progress of a reply's thinking."""

    n_tokens: int
    elapsed_s: float
    is_over: bool = False
    note: str | None = None
    """Why thinking was closed before the model closed it."""


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """Counts and times of one round; a plain round has `n_verified` 0."""

    n_drafted: int
    n_verified: int
    n_examined: int
    n_accepted: int
    n_emitted: int
    source: str | None
    """Predictor that drafted, even if nothing was verified; None without a draft."""
    length: int
    """Draft length that the controller chose for this round; 0 is plain."""
    next_length: int
    reason: str
    """Text that explains the controller's `next_length`."""
    draft_s: float
    verify_s: float
    elapsed_s: float
    plain_step_s: float | None
    """Measured time of one plain step; None before the first one."""
    plain_spread: float | None = None
    """Relative deviation of 80 % of the plain steps from `plain_step_s`: the timing noise."""
    saved_s: float | None = None
    """Time that drafts saved so far in this reply compared with plain steps; negative is a loss,
    None if no draft was verified or there is nothing to compare with."""
    saved_error_s: float | None = None
    """Error of `saved_s`, plus or minus; None if that is None."""
    verdicts: tuple[bool, ...] = ()
    """Whether each verified token was accepted."""
    n_near_ties: int = 0
    """Rows whose top two tokens are so close that rounding may swap them."""
    first_token_s: float | None = None
    """Seconds from the request to the first token, in the round of that token."""


@dataclass(frozen=True, slots=True)
class ThreadsChanged:
    """The number of threads was adapted to the load of the machine."""

    n_decode: int
    n_prefill: int
    reason: str = ""
    """Reason of the last change."""


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """The cells of the target's context."""

    n_used: int
    n_cells: int
    kv_bytes: int | None
    """Allocated bytes of the whole KV cache; None if a server does not report it."""


@dataclass(frozen=True, slots=True)
class TiersChanged:
    """The cache's tiers after a change, at most a few times per second."""

    report: CacheReport


PanelName = Literal["speculation", "throughput", "cache", "memory"]


@dataclass(frozen=True, slots=True)
class ServerFigure:
    """A line about a server's counters or figures that it does not report."""

    panel: PanelName
    """The panel that shows the line."""
    text: str


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Lines about a server's counters; replaces the previous event."""

    figures: tuple[ServerFigure, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The engine waits for another program; replaces the previous such event."""

    text: str
    """Reason and time limit of the wait; empty once the wait is over."""


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Counts of one predictor over a reply."""

    n_drafted: int = 0
    n_verified: int = 0
    n_examined: int = 0
    n_accepted: int = 0
    n_rounds: int = 0
    """Rounds in which a token of this predictor was verified."""

    def __add__(self, other: "SourceCounts") -> "SourceCounts":
        return SourceCounts(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Counts of the tokens at one index of their drafts."""

    n_examined: int = 0
    """Drafts accepted up to this index that have a token at it."""
    n_accepted: int = 0

    def __add__(self, other: "PositionCounts") -> "PositionCounts":
        return PositionCounts(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Counts and times of one reply."""

    n_prompt: int | None = 0
    n_reused: int | None = 0
    """Prompt tokens that were reused; this and `n_prompt` are None if a server reports neither."""
    n_rounds: int = 0
    n_drafted: int = 0
    n_verified: int = 0
    n_examined: int = 0
    n_accepted: int = 0
    """Drafted tokens in the reply: at most `n_emitted`."""
    n_emitted: int | None = 0
    """Generated tokens, including the end token, which `Finished.token_ids` lacks; None if a server
    does not report it."""
    by_source: Mapping[str, SourceCounts] = field(default_factory=dict)
    by_position: tuple[PositionCounts, ...] = ()
    """Counts by index in the draft, up to the last examined index."""
    n_near_ties: int = 0
    """Rows whose top two tokens are so close that rounding may swap them; 0 with `rejection`, which
    does not compare."""
    prefill_s: float = 0.0
    """Seconds of the prefill."""
    first_token_s: float | None = None
    """Seconds from the request to the first token."""
    decode_s: float = 0.0
    """Seconds from the end of the prefill to the last token."""
    n_thinking: int = 0
    """Thinking tokens, including the markers."""
    thinking_s: float = 0.0
    """Seconds of the thinking."""
    decode_tps: float | None = None
    """`n_emitted` / `decode_s`, or the rate that a server reports."""
    plain_step_s: float | None = None
    plain_spread: float | None = None
    """Relative deviation of 80 % of the plain steps from `plain_step_s`."""
    saved_s: float | None = None
    """Time that rounds with a draft saved compared with plain steps, minus the time of drafts that
    were never verified; negative is a loss, None if no draft was verified or there is nothing to
    compare with."""
    saved_error_s: float | None = None
    """Error of `saved_s`, plus or minus, from timing noise and few drafts; None if that is None. A
    smaller `saved_s` is neither gain nor loss."""
    predictor: str | None = None
    """Predictor at the end of the reply; None if no round began."""
    controller: str | None = None
    """Controller at the end of the reply."""

    @property
    def n_refuted(self) -> int:
        """Drafted tokens that were verified and not accepted."""
        return self.n_verified - self.n_accepted

    @property
    def acceptance_rate(self) -> float | None:
        """`n_accepted` / `n_verified`; None if no token was verified."""
        return self.n_accepted / self.n_verified if self.n_verified else None

    @property
    def tokens_per_round(self) -> float | None:
        """`n_emitted` / `n_rounds`; None if either is 0 or unknown."""
        return self.n_emitted / self.n_rounds if self.n_rounds and self.n_emitted else None

    @property
    def speedup(self) -> float | None:
        """`(decode_s + saved_s) / decode_s`, at most `tokens_per_round`.

        None if `saved_s` or its error is None.
        """
        if self.saved_s is None or self.saved_error_s is None or self.decode_s <= 0:
            return None
        return 1.0 + self.saved_s / self.decode_s

    def __add__(self, later: "GenerationStats") -> "GenerationStats":
        """Add the figures of two parts of a reply, or of two replies.

        Counts and times are sums. The prompt, the plain step and the predictor are the later's; the
        time to the first token is the earlier's.
        """
        sums = {name: getattr(self, name) + getattr(later, name) for name in SUMMED}
        n_emitted, decode_s = (self.n_emitted or 0) + (later.n_emitted or 0), sums["decode_s"]
        saved = [each.saved_s for each in (self, later) if each.saved_s is not None]
        most_s = most_saved_s(n_emitted, sums["n_rounds"], decode_s)
        error_s = hypot(self.saved_error_s or 0.0, later.saved_error_s or 0.0)
        is_timed, none = self.first_token_s is not None, SourceCounts()
        positions = zip_longest(self.by_position, later.by_position, fillvalue=PositionCounts())
        return replace(
            later,
            **sums,
            n_emitted=None if later.n_emitted is None else n_emitted,
            by_source={
                name: self.by_source.get(name, none) + later.by_source.get(name, none)
                for name in {**self.by_source, **later.by_source}
            },
            by_position=tuple(one + other for one, other in positions),
            first_token_s=self.first_token_s if is_timed else later.first_token_s,
            decode_tps=n_emitted / decode_s if decode_s > 0 and n_emitted else None,
            saved_s=min(sum(saved), most_s) if saved else None,
            saved_error_s=error_s if saved else None,
        )

    def with_rounds(self, rounds: Sequence[RoundFinished]) -> "GenerationStats":
        """Add further rounds of the same reply; `saved_s` is that of the last round."""
        if not rounds:
            return self
        first, last = rounds[0], rounds[-1]
        counted = GenerationStats(
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_rounds=len(rounds),
            n_drafted=sum(each.n_drafted for each in rounds),
            n_verified=sum(each.n_verified for each in rounds),
            n_examined=sum(each.n_examined for each in rounds),
            n_accepted=sum(each.n_accepted for each in rounds),
            n_emitted=sum(each.n_emitted for each in rounds),
            by_source=_by_source(rounds),
            by_position=tuple(
                PositionCounts(
                    sum(each.n_examined > index for each in rounds),
                    sum(min(each.n_examined, each.n_accepted) > index for each in rounds),
                )
                for index in range(max(each.n_examined for each in rounds))
            ),
            n_near_ties=sum(each.n_near_ties for each in rounds),
            first_token_s=first.first_token_s,
            decode_s=sum(each.elapsed_s for each in rounds),
            plain_step_s=last.plain_step_s,
            plain_spread=last.plain_spread,
            predictor=self.predictor,
            controller=self.controller,
        )
        return replace(self + counted, saved_s=last.saved_s, saved_error_s=last.saved_error_s)

    def figures(self) -> dict[str, object]:
        """All figures by name, including derived ones."""
        derived = ("tokens_per_round", "speedup")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


NOTHING_COUNTED = GenerationStats()
SUMMED = (
    "n_rounds", "n_drafted", "n_verified", "n_examined", "n_accepted", "n_near_ties",
    "prefill_s", "decode_s", "n_thinking", "thinking_s",
)  # fmt: skip
"""Figures that are added for two parts of a reply."""


def most_saved_s(n_emitted: int, n_rounds: int, decode_s: float) -> float:
    """Upper bound of the saved time in seconds: no batch is faster than a plain step."""
    return (n_emitted / n_rounds - 1.0) * decode_s if n_rounds else 0.0


def _by_source(rounds: Sequence[RoundFinished]) -> dict[str, SourceCounts]:
    found: dict[str, SourceCounts] = {}
    for each in rounds:
        if each.source is not None:
            counts = (each.n_drafted, each.n_verified, each.n_examined, each.n_accepted)
            one = SourceCounts(*counts, n_rounds=int(each.n_verified > 0))
            found[each.source] = found.get(each.source, SourceCounts()) + one
    return found


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply is complete."""

    reason: FinishReason
    text: str
    """The whole reply without stop string and end token."""
    token_ids: tuple[int, ...]
    """Generated ids without the end token."""
    vocabulary_id: str
    seed: int
    stats: GenerationStats
    n_used: int = 0
    n_cells: int = 0
    fits_grammar: bool | None = None
    """Whether the text satisfies its schema or grammar, which `max_tokens`, the context or a stop
    can cut off; None without one."""


@dataclass(frozen=True, slots=True)
class SpeculationChanged:
    """A switch of predictor or controller took effect."""

    predictor: str
    controller: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A request failed; the session is still usable unless `fatal`."""

    title: str
    message: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """The engine's process ended; emitted by the client, never by the worker."""

    title: str
    message: str
    """The cause and what to do."""
    exit_code: int | None
    """Exit code; None if the process could not be started."""
    will_restart: bool = False
    """Whether the client restarts the process: once without extra buffer types after a crash while
    loading, and after a hang."""


@dataclass(frozen=True, slots=True)
class OfReply:
    """Wraps an event of the reply with this id; events of reply 0 are not wrapped."""

    reply_id: int
    """Id of the request; never 0."""
    event: "Event"


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """The answer to `CountTokens`: the length of a text in tokens of the loaded model."""

    key: int
    """Key of the request."""
    n_tokens: int | None
    """None if no model is loaded, or a server has no tokenizer endpoint."""


Event = (
    Loaded
    | PromptProgress
    | PromptReady
    | TokensCommitted
    | Thinking
    | RoundFinished
    | ThreadsChanged
    | CacheChanged
    | TiersChanged
    | ServerFigures
    | Waiting
    | Finished
    | SpeculationChanged
    | Failed
    | WorkerStopped
    | OfReply
    | TokensCounted
)

ENGINE_EVENTS = (
    Loaded, CacheChanged, ThreadsChanged, TiersChanged, ServerFigures, Waiting,
)  # fmt: skip
"""Events of the engine itself, not of a reply."""
