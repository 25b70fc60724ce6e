"""What the engine tells: frozen values that a session yields and a worker sends on.

Nobody is called; whoever runs a session pulls these. Counts are kept apart and never derived from
each other: drafted; verified (drafted tokens that were in a verify batch); examined (up to the
first miss); accepted; emitted. Refuted is verified minus accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from math import hypot
from typing import Literal

from engine.cache.report import CacheReport
from engine.configuration import Configuration
from engine.memory.units import BufferSize as BufferSize


class TokenKind(StrEnum):
    """Where a committed token came from."""

    PLAIN = "plain"
    """Sampled in a round without a draft."""
    DRAFT = "draft"
    """Drafted and validated."""
    BONUS = "bonus"
    """Sampled behind a draft that was accepted whole."""
    CORRECTION = "correction"
    """Sampled instead of the first refuted draft token."""


class FinishReason(StrEnum):
    """Why a reply ended."""

    END = "end"
    """The model ended its turn."""
    STOP_STRING = "stop string"
    STOP_TOKEN = "stop token"
    """One of `SamplingSettings.stop_tokens` came."""
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
    """Quantisation as llama.cpp names it, such as `Q4_1`; empty where a server does not tell."""
    n_vocab: int | None
    """None where a server does not tell, as of both contexts."""
    n_ctx: int | None
    n_ctx_train: int | None
    can_crop: bool
    has_chat_template: bool
    vocabulary_id: str
    """Fingerprint of the vocabulary; token ids are only valid where it is equal."""
    configuration: Configuration
    predictors: tuple[str, ...]
    """Names of the predictors that can be switched on; `draft` needs a draft model."""
    buffers: tuple[BufferSize, ...] = ()
    notes: tuple[str, ...] = ()
    """Things the user should know, such as a fallback that was taken."""
    elapsed_s: float = 0.0
    blindness: str = ""
    """Why no image can go with a message, in words that follow `is an image, but`; empty where it
    can."""
    n_threads: tuple[int, int] | None = None
    """Threads of decode steps and of prefills, until `ThreadsChanged` says otherwise."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the prefill is."""

    n_done: int
    """Tokens of the prompt that the cache holds, reused ones included."""
    n_total: int
    """Tokens of the prompt."""
    n_reused: int


class ReadCause(StrEnum):
    """Why tokens of a prompt were computed that its chat had before."""

    FIRST = "first prompt"
    """The chat has none before since the model was loaded."""
    EDITED = "edited"
    REASONING = "reasoning stripped"
    """The template leaves out what the model thought for an earlier reply."""
    TEMPLATE = "template"
    """It writes the same messages otherwise, such as a date or an end of turn."""
    TRIMMED = "trimmed"
    """Turns were dropped for want of room."""
    SETTINGS = "other settings"
    """Thinking was switched, or other adapters are used."""
    EVICTED = "evicted"
    """The same tokens lie nowhere any more."""
    UNCUT = "cannot be truncated"
    """A sequence holds them and goes on otherwise, and this model's cannot be cut back."""


@dataclass(frozen=True, slots=True)
class PromptReady:
    """The prompt is in the cache, found there or computed; generation starts."""

    n_prompt: int
    n_hot: int = 0
    """Tokens that the context held."""
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
    where a server does not report it."""
    cause: ReadCause | None = None
    """Why the prompt differs after that prefix; None where it only continues it."""
    changed: str = ""
    """The part of the chat that differs, in words, where known."""
    miss_cause: ReadCause | None = None
    """Why less than the common prefix was reused; None where all of it was."""
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
    """One token that is now part of the text."""

    token: int
    kind: TokenKind
    source: str | None = None
    """Who drafted it; of a correction, who drafted the token it replaces; of a bonus token, who
    drafted the one before it. None in plain rounds."""
    margin: float | None = None
    """By how many logits the target preferred it to the next best, the noise of the draw included;
    None under `rejection`,
    which does not compare."""


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """Tokens of one round and the text that became showable with them.

    The text never ends inside a character and never shows the start of a possible stop string, so
    it may be empty and lag behind the tokens.
    """

    tokens: tuple[CommittedToken, ...]
    text: str
    lengths: tuple[int, ...] = ()
    """Characters of the text that became showable with each token; less than all of it where text
    was held back to the end."""
    n_unnamed: int = 0
    """Tokens beside `tokens`, whose ids a server does not tell."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How far the thinking of a reply is, from its first token on."""

    n_tokens: int
    elapsed_s: float
    is_over: bool = False
    note: str | None = None
    """Why it was closed before the model did so."""


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """The counts and times of one round; a plain round has zero verified."""

    n_drafted: int
    n_verified: int
    n_examined: int
    n_accepted: int
    n_emitted: int
    source: str | None
    """Who guessed, None where nobody guessed anything; what nobody verified was guessed too."""
    length: int
    """Draft length that the controller chose for this round; 0 is plain."""
    next_length: int
    reason: str
    """Why the controller goes on with `next_length`, in words."""
    draft_s: float
    verify_s: float
    elapsed_s: float
    plain_step_s: float | None
    """Measured time of one plain step, None before there is one."""
    plain_spread: float | None = None
    """How far eight of ten plain steps were from that, as a share of it: what is noise here."""
    saved_s: float | None = None
    """What drafts saved in this reply so far, against plain steps; negative is a loss, None where
    no draft was verified or nothing could be compared."""
    saved_error_s: float | None = None
    """How far `saved_s` may be off, either way; None where it is."""
    verdicts: tuple[bool, ...] = ()
    """For each verified token whether it was accepted."""
    n_near_ties: int = 0
    """Rows looked at in a batch whose best two tokens are so close that rounding may swap them."""
    first_token_s: float | None = None
    """From the request to the first committed token, in the round that brought it."""


@dataclass(frozen=True, slots=True)
class ThreadsChanged:
    """The number of threads followed the load of the machine."""

    n_decode: int
    n_prefill: int
    reason: str = ""
    """Why the numbers changed last."""


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """The cells of the target's context."""

    n_used: int
    n_cells: int
    kv_bytes: int | None
    """Bytes of the whole KV cache as allocated; None where a server does not tell."""


@dataclass(frozen=True, slots=True)
class TiersChanged:
    """The cache's tiers, behind a change and at most a few times a second."""

    report: CacheReport


PanelName = Literal["speculation", "throughput", "cache", "memory"]


@dataclass(frozen=True, slots=True)
class ServerFigure:
    """A line that a server's own counters give, or that says what it does not tell."""

    panel: PanelName
    """The group of figures that it belongs to."""
    text: str


@dataclass(frozen=True, slots=True)
class ServerTold:
    """What a server tells beside its replies, and what it does not; takes the place of the last."""

    figures: tuple[ServerFigure, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another program is waited for; takes the place of the last such event."""

    text: str
    """For whom, and for how long at most; empty where it goes on."""


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Counts of one predictor over a reply."""

    n_drafted: int = 0
    n_verified: int = 0
    n_examined: int = 0
    n_accepted: int = 0
    n_rounds: int = 0
    """Rounds in which a token of it was verified."""

    def __add__(self, other: "SourceCounts") -> "SourceCounts":
        return SourceCounts(
            self.n_drafted + other.n_drafted,
            self.n_verified + other.n_verified,
            self.n_examined + other.n_examined,
            self.n_accepted + other.n_accepted,
            self.n_rounds + other.n_rounds,
        )


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Counts of the tokens at one index of their drafts."""

    n_examined: int = 0
    """Drafts that were right up to this index and had a token there."""
    n_accepted: int = 0

    def __add__(self, other: "PositionCounts") -> "PositionCounts":
        return PositionCounts(
            self.n_examined + other.n_examined, self.n_accepted + other.n_accepted
        )


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Counts and times of one reply."""

    n_prompt: int | None = 0
    n_reused: int | None = 0
    """Both are None where a server does not count them."""
    n_rounds: int = 0
    n_drafted: int = 0
    n_verified: int = 0
    n_examined: int = 0
    n_accepted: int = 0
    """Drafted tokens that are part of the reply: never more than `n_emitted`."""
    n_emitted: int | None = 0
    """Tokens that the model said, the one that ended its turn included: one more than `token_ids`
    has then. None where a server does not count."""
    by_source: Mapping[str, SourceCounts] = field(default_factory=dict)
    by_position: tuple[PositionCounts, ...] = ()
    """By index in the draft, up to the last that was examined."""
    n_near_ties: int = 0
    """Rows of batches whose best two tokens are so close that rounding may swap them; 0 under
    `rejection`,
    which does not compare."""
    prefill_s: float = 0.0
    """Time of reading the prompt."""
    first_token_s: float | None = None
    """From the request to the first committed token."""
    decode_s: float = 0.0
    """From the end of the prefill to the last token."""
    n_thinking: int = 0
    """Tokens of its thinking, markers included."""
    thinking_s: float = 0.0
    """Time of those, from the first token on."""
    decode_tps: float | None = None
    """`n_emitted` over `decode_s`, or what a server says of its own."""
    plain_step_s: float | None = None
    plain_spread: float | None = None
    """How far eight of ten plain steps were from `plain_step_s`, as a share of it."""
    saved_s: float | None = None
    """Time that the rounds with a draft saved against plain steps, less what was spent on guesses
    that no batch held; negative is a loss, None where no draft was verified or nothing could be
    compared."""
    saved_error_s: float | None = None
    """How far `saved_s` may be off, either way, as the machine is noisy and drafts were few; None
    where it is. What does not exceed it is no gain and no loss."""
    predictor: str | None = None
    """Who drafted at the end of the reply, None where no round was begun."""
    controller: str | None = None
    """The rule of the draft length at the end of the reply."""

    @property
    def n_refuted(self) -> int:
        """Drafted tokens that were verified and not accepted."""
        return self.n_verified - self.n_accepted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of verified tokens."""
        return self.n_accepted / self.n_verified if self.n_verified else None

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted tokens over passes through the model."""
        return self.n_emitted / self.n_rounds if self.n_rounds and self.n_emitted else None

    @property
    def speedup(self) -> float | None:
        """Decoding time and `saved_s` over decoding time: never more than `tokens_per_round`.

        None where `saved_s` is or nobody said how far that may be off.
        """
        if self.saved_s is None or self.saved_error_s is None or self.decode_s <= 0:
            return None
        return 1.0 + self.saved_s / self.decode_s

    def __add__(self, later: "GenerationStats") -> "GenerationStats":
        """Two parts of a reply, or two replies, as one.

        Counts and times are sums. What holds for one moment is the later's: its prompt, the plain
        step, and who drafted at the end. The wait for the first token is the earlier's.
        """
        sums = {name: getattr(self, name) + getattr(later, name) for name in SUMMED}
        n_emitted, decode_s = (self.n_emitted or 0) + (later.n_emitted or 0), sums["decode_s"]
        saved = [each.saved_s for each in (self, later) if each.saved_s is not None]
        most_s = most_saved_s(n_emitted, sums["n_rounds"], decode_s)
        error_s = hypot(self.saved_error_s or 0.0, later.saved_error_s or 0.0)
        is_timed = self.first_token_s is not None
        return replace(
            later,
            **sums,
            n_emitted=None if later.n_emitted is None else n_emitted,
            by_source=_added_sources(self.by_source, later.by_source),
            by_position=_added_positions(self.by_position, later.by_position),
            first_token_s=self.first_token_s if is_timed else later.first_token_s,
            decode_tps=n_emitted / decode_s if decode_s > 0 and n_emitted else None,
            saved_s=min(sum(saved), most_s) if saved else None,
            saved_error_s=error_s if saved else None,
        )

    def with_rounds(self, rounds: Sequence[RoundFinished]) -> "GenerationStats":
        """These counts and further rounds of the same reply, which say what it saved so far."""
        if not rounds:
            return self
        first, last = rounds[0], rounds[-1]
        counted = replace(
            NOTHING_COUNTED,
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_rounds=len(rounds),
            n_drafted=sum(each.n_drafted for each in rounds),
            n_verified=sum(each.n_verified for each in rounds),
            n_examined=sum(each.n_examined for each in rounds),
            n_accepted=sum(each.n_accepted for each in rounds),
            n_emitted=sum(each.n_emitted for each in rounds),
            by_source=_by_source(rounds),
            by_position=_by_position(rounds),
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
        """Every figure by its name, those that follow from others too."""
        derived = ("tokens_per_round", "speedup")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


NOTHING_COUNTED = GenerationStats()
SUMMED = (
    "n_rounds", "n_drafted", "n_verified", "n_examined", "n_accepted", "n_near_ties",
    "prefill_s", "decode_s", "n_thinking", "thinking_s",
)  # fmt: skip
"""Figures of two parts of a reply that add up."""


def most_saved_s(n_emitted: int, n_rounds: int, decode_s: float) -> float:
    """What can have been saved at most: no batch is faster than a plain step is."""
    return (n_emitted / n_rounds - 1.0) * decode_s if n_rounds else 0.0


def _by_source(rounds: Sequence[RoundFinished]) -> dict[str, SourceCounts]:
    found: dict[str, SourceCounts] = {}
    for each in rounds:
        if each.source is not None:
            counts = (each.n_drafted, each.n_verified, each.n_examined, each.n_accepted)
            one = SourceCounts(*counts, n_rounds=int(each.n_verified > 0))
            found[each.source] = found.get(each.source, SourceCounts()) + one
    return found


def _by_position(rounds: Sequence[RoundFinished]) -> tuple[PositionCounts, ...]:
    return tuple(
        PositionCounts(
            sum(each.n_examined > place for each in rounds),
            sum(min(each.n_examined, each.n_accepted) > place for each in rounds),
        )
        for place in range(max(each.n_examined for each in rounds))
    )


def _added_sources(
    one: Mapping[str, SourceCounts], other: Mapping[str, SourceCounts]
) -> dict[str, SourceCounts]:
    none = SourceCounts()
    return {name: one.get(name, none) + other.get(name, none) for name in {**one, **other}}


def _added_positions(
    one: tuple[PositionCounts, ...], other: tuple[PositionCounts, ...]
) -> tuple[PositionCounts, ...]:
    both = zip_longest(one, other, fillvalue=PositionCounts())
    return tuple(first + second for first, second in both)


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply is complete."""

    reason: FinishReason
    text: str
    """The whole reply as text, stop string and end token excluded."""
    token_ids: tuple[int, ...]
    """Ids that were generated, without the token that ended the turn."""
    vocabulary_id: str
    seed: int
    stats: GenerationStats
    n_used: int = 0
    n_cells: int = 0
    fits_grammar: bool | None = None
    """Whether the text is whole under its schema or grammar, not so where `max_tokens`, the context
    or a stop came first; None without one."""


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
    """The engine's process is gone; said by the client, never by the worker."""

    title: str
    message: str
    """What happened and what to do."""
    exit_code: int | None
    """None where it could not be started."""
    will_restart: bool = False
    """True while the client starts it again by itself: once without extra buffer types where it
    crashed while loading, and after it hung."""


@dataclass(frozen=True, slots=True)
class OfReply:
    """What a reply tells that is made under a number; that of number 0 comes bare."""

    reply_id: int
    """As it was asked for with; never 0."""
    event: "Event"


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """How many tokens a text has that was asked about, in the loaded model's vocabulary."""

    key: int
    """As it was asked for with."""
    n_tokens: int | None
    """None where nobody can count: no model is loaded, or a server has no tokenizer to ask."""


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
    | ServerTold
    | Waiting
    | Finished
    | SpeculationChanged
    | Failed
    | WorkerStopped
    | OfReply
    | TokensCounted
)

ENGINE_EVENTS = (
    Loaded, CacheChanged, ThreadsChanged, TiersChanged, ServerTold, Waiting,
)  # fmt: skip
"""Events of the engine itself, whoever asked for the reply that runs."""
