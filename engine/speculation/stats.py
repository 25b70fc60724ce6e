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
    by_source: dict[str, list[int]] = field(default_factory=dict)
    """Drafted, verified, examined and accepted tokens and rounds of each source, as bare numbers:
    no round waits for its statistics."""
    by_position: list[list[int]] = field(default_factory=list)
    """Examined and accepted tokens of each place."""
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
        count_sources(self.by_source, finished)
        count_positions(self.by_position, finished)

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
            by_source={name: SourceCounts(*counts) for name, counts in self.by_source.items()},
            by_position=tuple(PositionCounts(*counts) for counts in self.by_position),
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


def count_sources(by_source: dict[str, list[int]], finished: RoundFinished) -> None:
    """Add the tokens of a round to the counts of who drafted each."""
    names = finished.sources
    if not names and finished.source is not None:
        names = (finished.source,) * finished.n_drafted
    n_verified, n_examined = finished.n_verified, finished.n_examined
    for place, name in enumerate(names):
        counts = by_source.get(name)
        if counts is None:
            counts = by_source[name] = [0, 0, 0, 0, 0]
        counts[0] += 1
        counts[1] += place < n_verified
        counts[2] += place < n_examined
        counts[3] += place < finished.n_accepted
    for name in set(names[:n_verified]):
        by_source[name][4] += 1


def count_positions(by_position: list[list[int]], finished: RoundFinished) -> None:
    """Add the tokens of a round to the counts of their places."""
    while len(by_position) < finished.n_examined:
        by_position.append([0, 0])
    for place in range(finished.n_examined):
        by_position[place][0] += 1
        by_position[place][1] += place < finished.n_accepted


def sources_of(finished: RoundFinished) -> dict[str, SourceCounts]:
    """Give the counts of one round apart by who drafted each token."""
    by_source: dict[str, list[int]] = {}
    count_sources(by_source, finished)
    return {name: SourceCounts(*counts) for name, counts in by_source.items()}


def positions_of(finished: RoundFinished) -> tuple[PositionCounts, ...]:
    """Give the counts of one round apart by the place in the draft."""
    by_position: list[list[int]] = []
    count_positions(by_position, finished)
    return tuple(PositionCounts(*counts) for counts in by_position)


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
