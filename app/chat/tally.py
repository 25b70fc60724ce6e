"""Counts of speculation over a reply or a session, and the figures that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import hypot

from app.render.format import share
from engine.events import GenerationStats, PositionCounts, RoundFinished, SourceCounts
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
    """From the first place of a draft to the last that was examined."""

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
