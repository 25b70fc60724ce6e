"""All that the cockpit shows at one moment, and the counts of replies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import hypot

from app.format import share
from engine.cache.report import CacheNote, CacheReport
from engine.configuration import SpeculationSettings
from engine.events import (
    BufferSize,
    CacheChanged,
    CostsMeasured,
    GenerationStats,
    PositionCounts,
    PromptProgress,
    PromptReady,
    RoundFinished,
    ServerFigure,
    SourceCounts,
    Thinking,
    ThreadsChanged,
)
from engine.speculation.stats import (
    added_positions,
    added_sources,
    most_saved_s,
    positions_of,
    sources_of,
    speedup_of,
)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts as the engine gave them, added up; none is derived from another."""

    n_rounds: int = 0
    n_drafted: int = 0
    n_verified: int = 0
    n_accepted: int = 0
    n_emitted: int = 0
    by_source: Mapping[str, SourceCounts] = field(default_factory=dict)
    decode_s: float = 0.0
    saved_s: float | None = None
    """Seconds that drafts saved against plain steps; None where nothing could be compared."""
    saved_error_s: float | None = None
    """How far that may be off, either way."""
    by_position: tuple[PositionCounts, ...] = ()
    """From the first position of a draft to the last that was examined."""

    @property
    def n_refuted(self) -> int:
        """Drafted tokens that were verified and not accepted."""
        return self.n_verified - self.n_accepted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of verified tokens."""
        return share(self.n_accepted, self.n_verified)

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that one pass through the model gave."""
        return share(self.n_emitted, self.n_rounds)

    @property
    def speedup(self) -> float | None:
        """Time that plain decoding would have taken, over the time that it took."""
        return None if self.saved_s is None else speedup_of(self.saved_s, self.decode_s)

    def with_round(self, event: RoundFinished) -> "Tally":
        """These counts and one round more of the same reply."""
        return Tally(
            n_rounds=self.n_rounds + 1,
            n_drafted=self.n_drafted + event.n_drafted,
            n_verified=self.n_verified + event.n_verified,
            n_accepted=self.n_accepted + event.n_accepted,
            n_emitted=self.n_emitted + event.n_emitted,
            by_source=added_sources(self.by_source, sources_of(event)),
            by_position=added_positions(self.by_position, positions_of(event)),
            decode_s=self.decode_s + event.elapsed_s,
            saved_s=event.saved_s,
            saved_error_s=event.saved_error_s,
        )

    def __add__(self, other: "Tally") -> "Tally":
        saved_s, saved_error_s = added_savings(self, other)
        return Tally(
            n_rounds=self.n_rounds + other.n_rounds,
            n_drafted=self.n_drafted + other.n_drafted,
            n_verified=self.n_verified + other.n_verified,
            n_accepted=self.n_accepted + other.n_accepted,
            n_emitted=self.n_emitted + other.n_emitted,
            by_source=added_sources(self.by_source, other.by_source),
            by_position=added_positions(self.by_position, other.by_position),
            decode_s=self.decode_s + other.decode_s,
            saved_s=saved_s,
            saved_error_s=saved_error_s,
        )


def added_savings(
    one: Tally | GenerationStats, other: Tally | GenerationStats
) -> tuple[float | None, float | None]:
    """What two replies saved together, and how far that may be off.

    One without a figure adds nothing: it drafted nothing, or too little to compare.
    """
    both = (one, other)
    saved = [each.saved_s for each in both if each.saved_s is not None]
    if not saved:
        return None, None
    most_s = most_saved_s(
        one.n_emitted + other.n_emitted,
        one.n_rounds + other.n_rounds,
        one.decode_s + other.decode_s,
    )
    return min(sum(saved), most_s), hypot(*(each.saved_error_s or 0.0 for each in both))


def tally_of(stats: GenerationStats) -> Tally:
    """The counts of a finished reply."""
    return Tally(
        n_rounds=stats.n_rounds,
        n_drafted=stats.n_drafted,
        n_verified=stats.n_verified,
        n_accepted=stats.n_accepted,
        n_emitted=stats.n_emitted,
        by_source=stats.by_source,
        by_position=stats.by_position,
        decode_s=stats.decode_s,
        saved_s=stats.saved_s,
        saved_error_s=stats.saved_error_s,
    )


def verification_label(settings: SpeculationSettings) -> tuple[str, ...]:
    """The settings of verification that differ from the usual: its name, `strict`, `no bonus`.

    `strict` is left out where it has no meaning, under `rejection` and `block`.
    """
    compares = settings.verification in ("coupled", "match")
    words = {
        settings.verification: settings.verification != "coupled",
        "strict": settings.strict and compares,
        "no bonus": not settings.bonus_token,
    }
    return tuple(word for word, is_unusual in words.items() if is_unusual)


NO_MODEL = "No model is loaded: {model-list} opens or installs one, {model-plan} plans what fits."
"""Shown where a question has no model to answer it."""


class Phase(StrEnum):
    """What the engine is doing."""

    EMPTY = "no model"
    LOADING = "loading"
    READY = "ready"
    PREFILL = "reading the prompt"
    DECODING = "answering"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """What an estimate says before a model is loaded, on all devices together."""

    buffers: int
    """Of llama.cpp: what it tells when it has loaded is compared with this."""
    overhead: int
    """Of the process and the drivers beside them; the planner's sums hold it too."""
    reclaimable: int = 0
    """Mapped pages beside both that the system may take back: their weights were repacked."""


@dataclass(frozen=True, slots=True)
class CockpitSnapshot:
    """Everything that the panels and the status line show."""

    phase: Phase = Phase.EMPTY
    waiting: str = ""
    """For which other program the engine waits."""
    model_name: str = ""
    file_type: str = ""
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    predictor: str = ""
    controller: str = ""
    n_draft: int | None = None
    """Draft length that the user set."""
    verification_label: tuple[str, ...] = ()
    """How drafts are verified, where that is not the usual way."""
    next_length: int | None = None
    """Draft length that the controller chose for the next round."""
    reason: str = ""
    """Why the controller chose it."""
    fault: str | None = None
    """Why another predictor is at work than was asked for, or none."""
    costs: CostsMeasured | None = None
    """What batches cost, None before that was measured."""
    threads: ThreadsChanged | None = None
    """What the engine computes with, None before a model is loaded."""
    reply: Tally = field(default_factory=Tally)
    session: Tally = field(default_factory=Tally)
    """All replies since the model was loaded, the running one included."""
    acceptance_history: tuple[float | None, ...] = ()
    verdicts: tuple[bool, ...] = ()
    decode_tps: float | None = None
    """Over the last two seconds while a reply runs, over all of it afterwards."""
    plain_spread: float | None = None
    """How far plain steps are from one another, as a share: the noise of the machine."""
    tps_history: tuple[float | None, ...] = ()
    first_token_s: float | None = None
    prefill: PromptProgress | None = None
    """Set while the prompt is being read."""
    prefill_s: float | None = None
    cache: CacheChanged | None = None
    is_of_chat: bool = True
    """The cells hold the shown chat, or the one that is answered while another one is shown."""
    n_of_chat: int | None = None
    """About how many tokens the shown chat has, where the cells do not hold it."""
    n_written: int | None = 0
    """Tokens that what stands in the composer would add; None while they are counted, 0
    where nobody can count."""
    prompt: PromptReady | None = None
    """Where the last prompt of the shown chat came from; None before it was read."""
    n_slots: int = 1
    """Sequences that the context has room for."""
    tiers: CacheReport | None = None
    """The cache's last report, None before there is one."""
    cache_log: tuple[CacheNote, ...] = ()
    """What the cache's reports noted, oldest first; a bounded number."""
    buffers: tuple[BufferSize, ...] = ()
    planned: PlannedBytes | None = None
    process_bytes: int | None = None
    server: tuple[ServerFigure, ...] = ()
    """What a server's own counters say, and what it does not tell."""
    background_title: str | None = None
    """Title of the chat that is being answered while another one is shown."""
    thinking: Thinking | None = None
    """How far the thinking of the reply is; None where it does not think."""
    n_beside: int = 0
    """Replies under way beside the one whose figures these are."""
