"""Counts and times of one reply, and where two replies part."""

from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from math import hypot

from engine.events import GenerationStats, PositionCounts, RoundFinished, SourceCounts
from engine.speculation.costs import PlainStep


class TimeSaved:
    """What the drafts of a reply saved against plain steps, and how far that may be off.

    A round that verified a draft is compared with the plain steps that its tokens would have taken.
    Any other one lost what it spent on guesses and, right behind a batch, on switching back; that
    it was slow itself is the machine's doing and no draft's. Rounds from before the plain step and
    its spread are known are compared as soon as they are.

    Rounds between two plain steps share an error of the plain step, those of different stretches do
    not. No round decides alone: what the one that won or lost most did is a part of the error.
    """

    def __init__(self) -> None:
        self._n_rounds = self._n_emitted = self._n_counted = 0
        self._decode_s = self._won_s = self._most_s = 0.0
        self._error_s = self._stretch_error_s = 0.0
        self._is_behind_draft = False
        self._waiting: list[tuple[int, int, float, float, float]] = []
        """Rounds that nothing could be compared with yet."""

    @property
    def seconds(self) -> float | None:
        """Negative is a loss; None where no verified draft could be compared."""
        if not self._n_counted:
            return None
        return min(self._won_s, most_saved_s(self._n_emitted, self._n_rounds, self._decode_s))

    @property
    def error_s(self) -> float | None:
        """How far it may be off, either way; None where it is."""
        if not self._n_counted:
            return None
        return hypot(self._error_s, self._stretch_error_s) + self._most_s

    def add(
        self,
        step: PlainStep,
        *,
        n_verified: int,
        n_emitted: int,
        draft_s: float,
        elapsed_s: float,
        switching: float = 0.0,
    ) -> None:
        """Take a round.

        Args:
            step: the plain step as it is known by now.
            n_verified: drafted tokens in the batch, 0 of a plain round.
            n_emitted: tokens that it gave.
            draft_s: time of guessing, whether anything was guessed or not.
            elapsed_s: time of the whole round.
            switching: share that a plain step right behind a batch takes longer.
        """
        self._n_rounds += 1
        self._n_emitted += n_emitted
        self._decode_s += elapsed_s
        was_behind_draft, self._is_behind_draft = self._is_behind_draft, n_verified > 0
        switching *= was_behind_draft
        self._waiting.append((n_verified, n_emitted, draft_s, elapsed_s, switching))
        if step.seconds is not None and step.spread is not None:
            for counts in self._waiting:
                self._compare(step.seconds, step.spread, *counts)
            self._waiting.clear()

    def _compare(
        self,
        plain_step_s: float,
        spread: float,
        n_verified: int,
        n_emitted: int,
        draft_s: float,
        elapsed_s: float,
        switching: float,
    ) -> None:
        if not n_verified:
            self._error_s = hypot(self._error_s, self._stretch_error_s)
            self._stretch_error_s = 0.0
            self._won_s -= draft_s + switching * plain_step_s
            return
        plain_s = n_emitted * plain_step_s
        self._n_counted += 1
        self._won_s += plain_s - elapsed_s
        self._most_s = max(self._most_s, abs(plain_s - elapsed_s))
        self._stretch_error_s += plain_s * spread


def most_saved_s(n_emitted: int, n_rounds: int, decode_s: float) -> float:
    """What can have been saved at most: no batch is faster than a plain step is."""
    return (n_emitted / n_rounds - 1.0) * decode_s if n_rounds else 0.0


@dataclass(slots=True)
class ReplyStats:
    """Adds rounds up; the counts are kept apart and none is derived from another."""

    n_prompt: int
    n_reused: int
    prefill_s: float
    n_rounds: int = 0
    n_drafted: int = 0
    n_verified: int = 0
    n_examined: int = 0
    n_accepted: int = 0
    n_emitted: int = 0
    n_near_ties: int = 0
    n_redecoded: int = 0
    exactness_s: float = 0.0
    first_token_s: float | None = None
    decode_s: float = 0.0
    n_thinking: int = 0
    thinking_s: float = 0.0
    by_source: dict[str, list[int]] = field(default_factory=dict)
    """Drafted, verified, examined and accepted tokens and rounds of each source, as bare numbers:
    no round waits for its statistics."""
    by_position: list[list[int]] = field(default_factory=list)
    """Examined and accepted tokens of each place."""
    predictor: str | None = None
    controller: str | None = None
    saved: TimeSaved = field(default_factory=TimeSaved)

    def add(self, finished: RoundFinished) -> None:
        """Count one round."""
        self.n_rounds += 1
        self.n_drafted += finished.n_drafted
        self.n_verified += finished.n_verified
        self.n_examined += finished.n_examined
        self.n_accepted += finished.n_accepted
        self.n_emitted += finished.n_emitted
        self.n_near_ties += finished.n_near_ties
        self.n_redecoded += finished.is_redecoded
        self.decode_s += finished.elapsed_s
        count_sources(self.by_source, finished)
        count_positions(self.by_position, finished)

    def summary(self, step: PlainStep) -> GenerationStats:
        """The figures as they stand; rates are None where nothing was measured."""
        n_emitted, saved_s = self.n_emitted, self.saved.seconds
        as_counted = {name: getattr(self, name) for name in AS_COUNTED}
        return GenerationStats(
            **as_counted,
            by_source={name: SourceCounts(*counts) for name, counts in self.by_source.items()},
            by_position=tuple(PositionCounts(*counts) for counts in self.by_position),
            decode_tps=n_emitted / self.decode_s if self.decode_s > 0 and n_emitted else None,
            plain_step_s=step.seconds,
            plain_spread=step.spread,
            saved_s=saved_s,
            saved_error_s=self.saved.error_s,
            tokens_per_round=n_emitted / self.n_rounds if self.n_rounds else None,
            speedup=None if saved_s is None else speedup_of(saved_s, self.decode_s),
        )


AS_COUNTED = {each.name for each in fields(ReplyStats)} - {"by_source", "by_position", "saved"}
"""Figures of a reply that are what was added up."""


def speedup_of(saved_s: float, decode_s: float) -> float | None:
    """The time that plain decoding would have taken over the time that it took."""
    return 1.0 + saved_s / decode_s if decode_s > 0 else None


def count_sources(by_source: dict[str, list[int]], finished: RoundFinished) -> None:
    """Add a round to the counts of who drafted it."""
    if finished.source is None:
        return
    counts = by_source.setdefault(finished.source, [0, 0, 0, 0, 0])
    counts[0] += finished.n_drafted
    counts[1] += finished.n_verified
    counts[2] += finished.n_examined
    counts[3] += finished.n_accepted
    counts[4] += finished.n_verified > 0


def count_positions(by_position: list[list[int]], finished: RoundFinished) -> None:
    """Add the tokens of a round to the counts of their places."""
    while len(by_position) < finished.n_examined:
        by_position.append([0, 0])
    for place in range(finished.n_examined):
        by_position[place][0] += 1
        by_position[place][1] += place < finished.n_accepted


def sources_of(finished: RoundFinished) -> dict[str, SourceCounts]:
    """The counts of one round apart by who drafted each token."""
    by_source: dict[str, list[int]] = {}
    count_sources(by_source, finished)
    return {name: SourceCounts(*counts) for name, counts in by_source.items()}


def positions_of(finished: RoundFinished) -> tuple[PositionCounts, ...]:
    """The counts of one round apart by the place in the draft."""
    by_position: list[list[int]] = []
    count_positions(by_position, finished)
    return tuple(PositionCounts(*counts) for counts in by_position)


def added_sources(
    one: Mapping[str, SourceCounts], other: Mapping[str, SourceCounts]
) -> dict[str, SourceCounts]:
    """The sums of two counts by source."""
    none = SourceCounts()
    return {name: one.get(name, none) + other.get(name, none) for name in {**one, **other}}


def added_positions(
    one: tuple[PositionCounts, ...], other: tuple[PositionCounts, ...]
) -> tuple[PositionCounts, ...]:
    """The sums of two counts by place; either may be the longer one."""
    both = zip_longest(one, other, fillvalue=PositionCounts())
    return tuple(first + second for first, second in both)


def first_divergence(first: Tokens[object], second: Tokens[object]) -> int | None:
    """The index of the first token or letter that differs, None where two replies are the same.

    Where one reply is the start of the other, that is the length of the shorter one: it ended
    where the other went on.
    """
    pairs = zip(first, second, strict=False)
    differing = (index for index, (one, other) in enumerate(pairs) if one != other)
    shorter = min(len(first), len(second))
    return next(differing, None if len(first) == len(second) else shorter)
