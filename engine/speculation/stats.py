"""Counts and times of one reply."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from engine.events import GenerationStats, PositionCounts, RoundFinished, SourceCounts


@dataclass(slots=True)
class ReplyStats:
    """Adds rounds up; the counts are kept apart and none is derived from another."""

    n_prompt: int
    n_reused: int
    prefill_s: float
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    examined: int = 0
    accepted: int = 0
    emitted: int = 0
    near_ties: int = 0
    redecoded: int = 0
    first_token_s: float | None = None
    decode_s: float = 0.0
    by_source: dict[str, SourceCounts] = field(default_factory=dict)
    by_position: tuple[PositionCounts, ...] = ()
    predictor: str | None = None
    controller: str | None = None

    def add(self, finished: RoundFinished) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted += finished.n_drafted
        self.verified += finished.n_verified
        self.examined += finished.n_examined
        self.accepted += finished.n_accepted
        self.emitted += finished.n_emitted
        self.near_ties += finished.n_near_ties
        self.redecoded += finished.is_redecoded
        self.decode_s += finished.elapsed_s
        if finished.n_drafted:
            self.by_source = added_sources(self.by_source, sources_of(finished))
            self.by_position = added_positions(self.by_position, positions_of(finished))

    def summary(self, plain_step_s: float | None) -> GenerationStats:
        """Give the figures as they stand; rates are None where nothing was measured."""
        tps = self.emitted / self.decode_s if self.decode_s > 0 and self.emitted else None
        saved = None if plain_step_s is None else self.emitted * plain_step_s - self.decode_s
        return GenerationStats(
            n_prompt=self.n_prompt,
            n_reused=self.n_reused,
            n_rounds=self.rounds,
            n_drafted=self.drafted,
            n_verified=self.verified,
            n_examined=self.examined,
            n_accepted=self.accepted,
            n_emitted=self.emitted,
            by_source=dict(self.by_source),
            by_position=self.by_position,
            n_near_ties=self.near_ties,
            n_redecoded=self.redecoded,
            prefill_s=self.prefill_s,
            first_token_s=self.first_token_s,
            decode_s=self.decode_s,
            decode_tps=tps,
            plain_step_s=plain_step_s,
            saved_s=saved,
            tokens_per_round=self.emitted / self.rounds if self.rounds else None,
            speedup=self._speedup(plain_step_s),
            predictor=self.predictor,
            controller=self.controller,
        )

    def _speedup(self, plain_step_s: float | None) -> float | None:
        if plain_step_s is None or not self.drafted or self.decode_s <= 0:
            return None
        return self.emitted * plain_step_s / self.decode_s


def sources_of(finished: RoundFinished) -> dict[str, SourceCounts]:
    """Give the counts of one round apart by who drafted each token."""
    names = finished.sources
    if not names and finished.source is not None:
        names = (finished.source,) * finished.n_drafted
    return {
        name: _counts([place for place, each in enumerate(names) if each == name], finished)
        for name in dict.fromkeys(names)
    }


def positions_of(finished: RoundFinished) -> tuple[PositionCounts, ...]:
    """Give the counts of one round apart by the place in the draft."""
    return tuple(
        PositionCounts(1, int(index < finished.n_accepted)) for index in range(finished.n_examined)
    )


def added_sources(
    one: Mapping[str, SourceCounts], other: Mapping[str, SourceCounts]
) -> dict[str, SourceCounts]:
    """Give the sums of two counts by source."""
    total = dict(one)
    for name, counts in other.items():
        old = total.get(name, SourceCounts())
        total[name] = SourceCounts(
            n_drafted=old.n_drafted + counts.n_drafted,
            n_verified=old.n_verified + counts.n_verified,
            n_examined=old.n_examined + counts.n_examined,
            n_accepted=old.n_accepted + counts.n_accepted,
            n_rounds=old.n_rounds + counts.n_rounds,
        )
    return total


def added_positions(
    one: tuple[PositionCounts, ...], other: tuple[PositionCounts, ...]
) -> tuple[PositionCounts, ...]:
    """Give the sums of two counts by place; either may be the longer one."""
    return tuple(
        PositionCounts(a.n_examined + b.n_examined, a.n_accepted + b.n_accepted)
        for a, b in zip_longest(one, other, fillvalue=PositionCounts())
    )


def _counts(places: list[int], finished: RoundFinished) -> SourceCounts:
    n_verified = sum(place < finished.n_verified for place in places)
    return SourceCounts(
        n_drafted=len(places),
        n_verified=n_verified,
        n_examined=sum(place < finished.n_examined for place in places),
        n_accepted=sum(place < finished.n_accepted for place in places),
        n_rounds=int(n_verified > 0),
    )
